"""Python steers the mock in other processes: the layout is that of the C header, and rules act where they should."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bed.mock_control import Action, ControlLayout, CounterLayout, MockControl, RuleLayout

ROOT = Path(__file__).parent.parent
MOCK = ROOT / "python_hooks" / "seqshift" / "_mock"

# Calls aclrtMemsetAsync three times as the given rank and prints the results, with that of each synchronization.
PROGRAM = """
import ctypes, sys
acl = ctypes.CDLL(sys.argv[1] + "/libascendcl.so")
stream, block = ctypes.c_void_p(), ctypes.c_void_p()
assert (acl.aclInit(None), acl.aclrtSetDevice(0), acl.aclrtCreateStream(ctypes.byref(stream))) == (0, 0, 0)
assert acl.aclrtMalloc(ctypes.byref(block), ctypes.c_size_t(64), 0) == 0
for _ in range(3):
    call = acl.aclrtMemsetAsync(block, ctypes.c_size_t(64), 7, ctypes.c_size_t(64), stream)
    print(call, acl.aclrtSynchronizeStream(stream), flush=True)
    acl.aclrtStreamAbort(stream)
"""


def start(control: MockControl, rank: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "SEQSHIFT_MOCK_CONTROL": str(control.path), "RANK": str(rank)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(MOCK)], env=environment, stdout=subprocess.PIPE, text=True
    )


def results(process: subprocess.Popen[str]) -> list[str]:
    return process.communicate(timeout=60)[0].splitlines()


@pytest.fixture
def control(tmp_path: Path) -> MockControl:
    return MockControl(tmp_path / "control")


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("SeqshiftMockCounter", CounterLayout),
        ("SeqshiftMockRule", RuleLayout),
        ("SeqshiftMockControl", ControlLayout),
    ],
)
def test_layout_is_that_of_the_header(tmp_path: Path, name: str, layout: type[ctypes.Structure]) -> None:
    fields = [field[0] for field in layout._fields_]
    offsets = "".join(f'printf("%zu\\n", offsetof({name}, {field}));' for field in fields)
    source = tmp_path / "layout.c"
    body = f'{offsets} printf("%zu\\n", sizeof({name}));'
    source.write_text(f'#include <stdio.h>\n#include "seqshift_mock.h"\nint main(void) {{ {body} }}')
    program = tmp_path / "layout"
    subprocess.run(["cc", f"-I{ROOT / 'cann_shim' / 'include'}", "-o", program, source], check=True, timeout=60)
    printed = subprocess.run([program], check=True, timeout=60, capture_output=True, text=True).stdout.split()
    assert printed == [str(getattr(layout, field).offset) for field in fields] + [str(ctypes.sizeof(layout))]


def test_a_rule_hits_one_call_of_one_rank(control: MockControl) -> None:
    refused = control.arm("aclrtMemsetAsync", Action.RETURN, rank=1, first=2, value=500000)
    failed = control.arm("aclrtMemsetAsync", Action.FAIL_TASK, rank=2, first=3, value=507015)
    processes = [start(control, rank) for rank in range(3)]
    assert [results(process) for process in processes] == [
        ["0 0", "0 0", "0 0"],
        ["0 0", "500000 0", "0 0"],
        ["0 0", "0 0", "0 507015"],
    ]
    assert (refused.seen, refused.hits, failed.seen, failed.hits) == (3, 1, 3, 1)
    assert [control.calls("aclrtMemsetAsync", rank) for rank in range(4)] == [3, 3, 3, 0]


def test_a_stalled_task_goes_on_when_released(control: MockControl) -> None:
    rule = control.arm("aclrtMemsetAsync", Action.STALL, first=2)
    process = start(control, 0)
    deadline = time.monotonic() + 60
    while rule.stalled == 0:
        assert time.monotonic() < deadline, "the task never came"
        time.sleep(0.001)
    rule.release()
    assert results(process) == ["0 0", "0 0", "0 0"]
    assert rule.stalled == 0


def test_a_killed_process_is_killed(control: MockControl) -> None:
    control.arm("aclrtMemsetAsync", Action.KILL, first=2)
    process = start(control, 0)
    assert results(process) == ["0 0"]
    assert process.returncode == -signal.SIGKILL


def test_a_disarmed_rule_does_nothing(control: MockControl) -> None:
    rule = control.arm("acl*", Action.RETURN, count=0, value=500000)
    rule.disarm()
    assert results(start(control, 0)) == ["0 0", "0 0", "0 0"]
    assert rule.seen == 0


def test_the_rules_run_out(control: MockControl) -> None:
    for _ in range(64):
        control.arm("none", Action.RETURN)
    with pytest.raises(ValueError, match="all 64 rules"):
        control.arm("none", Action.RETURN)
