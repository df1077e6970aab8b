"""A segment is left behind if no process has it mapped; one that another process uses is not."""

from __future__ import annotations

from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory

from bed.segments import left_behind, segments


def test_only_what_nobody_has_mapped():
    before = segments()
    one = SharedMemory(create=True, size=4096)
    resource_tracker.unregister(one._name, "shared_memory")
    try:
        assert one.name in segments()
        assert one.name not in left_behind(before)
        one.close()
        assert one.name in left_behind(before)
        assert one.name not in left_behind([*before, one.name])
    finally:
        again = SharedMemory(one.name)
        again.close()
        again.unlink()
