"""The router in the real verl 0.8.0, 0.9.0 and 0.9.1, through real Ray actors.

verl and Ray live in a venv of their own, so all of it is one pytest run in a process of that venv, with one Ray.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bed import verl_env

HERE = Path(__file__).resolve().parent
OWN_TESTS = verl_env.wheel("0.9.1") / "tests" / "experimental" / "agent_loop" / "test_basic_agent_loop.py"
DEADLINE_SECONDS = 400
# The installation of the venv comes on top of the run.
pytestmark = pytest.mark.timeout(DEADLINE_SECONDS + 600)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, list[str]]:
    """The tests that ran, by class or module; a failure fails here with the whole output."""
    verl_env.prepare()
    folder = tmp_path_factory.mktemp("verl")
    report = folder / "report.xml"
    prefix = f"sq{os.getpid()}-"
    files = [OWN_TESTS, HERE / "verl" / "check_plugin.py", HERE / "verl" / "check_patch.py"]
    # Of verl's own file only the tests of the load balancer need no GPU.
    own = ["-k", "TestLoadBalancer or check_"]
    command = [verl_env.PYTHON, "-m", "pytest", "-q", "-p", "lean", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command += ["-c", os.devnull, "--rootdir", "/", "--timeout=150", "--junitxml", report, *own, *files]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTEST_"))}
    env |= {
        "PYTHONPATH": os.pathsep.join([str(HERE.parent / "python_hooks"), str(HERE / "verl")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "SEQSHIFT_TEST_RAY_PREFIX": prefix,
        "SEQSHIFT_TEST_VERL": str(verl_env.CACHE),
    }
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        end_ray(f"/tmp/{prefix}")
    print(output)
    assert process.returncode == 0, output
    passed: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        passed.setdefault(case.get("classname", "").rpartition(".")[2], []).append(case.get("name", ""))
    return passed


def end_ray(marker: str) -> None:
    """Waits for the processes whose command line names our Ray folder, and ends those that stay."""
    deadline = time.monotonic() + 10
    while (left := running(marker)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    for folder in Path("/tmp").glob(f"{Path(marker).name}*"):
        shutil.rmtree(folder, ignore_errors=True)


def running(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def test_verls_own_load_balancer_tests_pass_with_our_class(outcomes):
    own = {name: len(tests) for name, tests in outcomes.items() if name.startswith("TestLoadBalancer")}
    assert own == {"TestLoadBalancerRouting": 5, "TestLoadBalancerStickySession": 1, "TestLoadBalancerHybrid": 9}


def test_the_plugin_of_verl_0_9_1(outcomes):
    assert "test_turns_follow_their_pin_and_are_released_with_their_id" in outcomes["check_plugin"]


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0"])
def test_the_patch_of_older_verl(outcomes, version):
    assert f"test_the_manager_gets_our_router_and_the_client_uses_it[{version}]" in outcomes["check_patch"]
