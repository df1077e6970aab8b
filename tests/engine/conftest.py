"""The server process that has imported vLLM, once per test session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from seqshift.cpu_bed.ranks import Bed


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    server = Bed().start()
    yield server
    server.stop()
