"""A venv with Ray and the unpacked wheels of verl, in `.cache/`, apart from the main venv.

verl's requirements are some gigabytes; its load balancer and the client that uses it need only Ray, cachetools,
omegaconf and pydantic. So the wheels are unpacked, not installed, and tests put one of them on `sys.path`.
Idempotent: a stamp that names this file's content makes a second run return at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

VERSIONS = ("0.8.0", "0.9.0", "0.9.1")
PACKAGES = (
    "ray==2.49.2",
    "cachetools",
    "numpy<2.4",
    "omegaconf",
    "pydantic>=2",
    "pytest>=8",
    "pytest-timeout",
    "pyyaml",
)
ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "verl"
VENV = CACHE / "venv"
PYTHON = VENV / "bin" / "python"
STAMP = CACHE / "stamp"


def wheel(version: str) -> Path:
    """The folder that holds the unpacked wheel of `version`."""
    return CACHE / version


def prepare() -> None:
    """Makes the venv and unpacks the wheels if the stamp does not say that this is done."""
    wanted = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if STAMP.exists() and STAMP.read_text() == wanted:
            return
        uv = Path(sys.prefix) / "bin" / "uv"
        run = [str(uv), "--quiet"]
        subprocess.run([*run, "venv", "--clear", "--python", sys.executable, str(VENV)], check=True)
        subprocess.run([*run, "pip", "install", "--python", str(PYTHON), *PACKAGES], check=True)
        for version in VERSIONS:
            unpack(version)
        STAMP.write_text(wanted)


def unpack(version: str) -> None:
    """Downloads the wheel of `version` without its requirements and unpacks it."""
    folder = CACHE / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--dest", str(folder), f"verl=={version}"], check=True)
    shutil.rmtree(wheel(version), ignore_errors=True)
    with zipfile.ZipFile(next(folder.glob(f"verl-{version}-*.whl"))) as archive:
        archive.extractall(wheel(version))
    shutil.rmtree(folder)


if __name__ == "__main__":
    prepare()
