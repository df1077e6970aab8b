"""The CPU mock of CANN and HCCL keeps the C ABI and the behaviour that its README promises.

Each case is a case of a C program in tests/c, which finds the mock through LD_LIBRARY_PATH as any other program would.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "c"
ROOT = SOURCES.parent.parent
# With SEQSHIFT_TEST_SANITIZE the programs and the mock are instrumented; `make test-mock-sanitized` builds that mock.
SANITIZE = os.environ.get("SEQSHIFT_TEST_SANITIZE", "")
MOCK = Path(os.environ.get("SEQSHIFT_TEST_MOCK_DIR", ROOT / "python_hooks" / "seqshift" / "_mock"))
CASES = [
    (source.stem, name)
    for source in sorted(SOURCES.glob("*.c"))
    for name in re.findall(r"^CASE\((\w+)\)", source.read_text(), re.MULTILINE)
]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("c")
    for source in SOURCES.glob("*.c"):
        flags = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'cann_shim' / 'include'}"]
        flags += [f"-fsanitize={SANITIZE}"] if SANITIZE else []
        subprocess.run(
            ["cc", *flags, "-o", str(directory / source.stem), str(source), "-ldl", "-lpthread"], check=True, timeout=60
        )
    return directory


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("program", "case"), CASES, ids=[f"{program}-{name}" for program, name in CASES])
def test_case(programs: Path, tmp_path: Path, program: str, case: str) -> None:
    environment = {
        "LD_LIBRARY_PATH": str(MOCK),
        "SEQSHIFT_MOCK_CONTROL": str(tmp_path / "control"),
        "UBSAN_OPTIONS": "halt_on_error=1",
    }
    run = subprocess.run(
        [str(programs / program), case], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
