"""While one thread waits in the native group for a peer that does not come, every call of another thread lets Python's
threads run: a wait that holds the interpreter would keep the first one from ever ending. Each case has a process of its
own, which prints its stacks and ends when it hangs.
"""

from __future__ import annotations

import faulthandler
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import seqshift
from seqshift import _native

SECONDS = 2.0
OPTIONS = {
    "gears": [4, 8],
    "minimum_gain": 0.0,
    "block_size": 16,
    "max_num_seqs": 8,
    "deadline_seconds": SECONDS,
    "library_dir": str(Path(seqshift.__file__).parent / "_mock"),
    "staging_mib": 8,
    "comm_buffer_mib": 8,
    "verify_kv": True,
    "profile": False,
    "profile_interval": 100,
    "adaptive": False,
    "check_interval": 5,
    "forced_plan": None,
    "precopy": False,
    "test_precopy": "",
}
CALLS = {
    "close": lambda group: group.close(),
    "end": lambda group: group.end("the engine has failed"),
    "set_producer": lambda group: group.set_producer(0),
    "set_layout": lambda group: group.set_layout([]),
}


def two_groups() -> list[_native.Group]:
    """Both ranks of a DP group, in this process."""
    listeners = [_native.Listener(b"0123456789abcdef") for _ in range(2)]
    addresses = [f"127.0.0.1:{one.port}" for one in listeners]
    groups = {}

    def make(rank: int) -> None:
        groups[rank] = _native.Group((listeners[rank], rank, addresses), None, {**OPTIONS, "device": rank})

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [groups[0], groups[1]]


def scenario(call: str) -> None:
    """One thread starts the first group, whose peer does not; another one makes the call."""
    first, second = two_groups()
    errors, began = [], threading.Event()

    def start() -> None:
        began.set()
        try:
            first.start()
        except Exception as error:
            errors.append(str(error))

    waiting = threading.Thread(target=start)
    waiting.start()
    began.wait(10)
    before = time.monotonic()
    calling = threading.Thread(target=lambda: CALLS[call](first))
    calling.start()
    waiting.join()
    calling.join()
    assert time.monotonic() - before < 5 * SECONDS
    assert errors
    first.close()
    second.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_second_thread_waits_without_the_interpreter(call):
    done = subprocess.run([sys.executable, __file__, call], timeout=120, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    faulthandler.dump_traceback_later(40, exit=True)
    scenario(sys.argv[1])
