"""The wheel: one for all supported Pythons, with the mock in it, nothing left lying about, and importable as it is."""

from __future__ import annotations

import configparser
import email
import fnmatch
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "python_hooks"
BUILD_SECONDS = 900

pytestmark = pytest.mark.timeout(BUILD_SECONDS + 60)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built as `make build` builds, so that little is compiled twice."""
    folder = tmp_path_factory.mktemp("wheel")
    maturin = Path(sys.executable).with_name("maturin")
    command = [maturin, "build", "--release", "--quiet", "--out", folder]
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=BUILD_SECONDS)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def archive(wheel):
    with zipfile.ZipFile(wheel) as archive:
        yield archive


def metadata(archive, name):
    return archive.read(next(path for path in archive.namelist() if path.endswith(f".dist-info/{name}"))).decode()


def test_one_wheel_serves_every_python_from_3_9_on(wheel, archive):
    assert re.fullmatch(r"seqshift-[^-]+-cp39-abi3-(many)?linux\w*\.whl", wheel.name)
    tags = email.message_from_string(metadata(archive, "WHEEL")).get_all("Tag")
    assert {tag.rsplit("-", 1)[0] for tag in tags} == {"cp39-abi3"}
    assert email.message_from_string(metadata(archive, "METADATA"))["Requires-Python"] == ">=3.9"


def test_its_entry_points(archive):
    parser = configparser.ConfigParser()
    parser.read_string(metadata(archive, "entry_points.txt"))
    assert {section: dict(parser[section]) for section in parser.sections()} == {
        "console_scripts": {"seqshift": "seqshift.cli:main"},
        "vllm.general_plugins": {"seqshift": "seqshift.plugin:register"},
    }


def test_it_requires_neither_torch_nor_vllm(archive):
    required = email.message_from_string(metadata(archive, "METADATA")).get_all("Requires-Dist")
    assert {re.match(r"[\w-]+", line)[0] for line in required} == {"pyyaml", "rich", "typer"}


def test_it_holds_the_package_and_nothing_else(archive):
    wanted = {"seqshift/_native.abi3.so"}
    for pattern in ("*.py", "*.pyi", "py.typed", "_mock/*.so"):
        wanted |= {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob(pattern)}
    found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == wanted
    described = {name.split(".dist-info/")[1] for name in archive.namelist() if ".dist-info/" in name}
    known = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE", "sboms/*.json")
    assert [name for name in described if not any(fnmatch.fnmatch(name, pattern) for pattern in known)] == []


@pytest.mark.skipif(not list(SOURCES.glob("seqshift/_mock/*.so")), reason="the mock is not built: make mock")
def test_it_brings_all_libraries_of_the_mock_under_their_sonames(archive):
    libraries = [name for name in archive.namelist() if name.startswith("seqshift/_mock/")]
    sonames = ["libascendcl.so", "libhccl.so", "libnnopbase.so", "libopapi.so", "libopapi_nn.so"]
    assert sorted(libraries) == [f"seqshift/_mock/{soname}" for soname in sonames]


def test_it_is_importable_from_where_it_is_unpacked(archive, tmp_path):
    archive.extractall(tmp_path)
    code = "import seqshift; print(seqshift.__file__, seqshift._native.__file__, seqshift.__version__)"
    out = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    module, native, version = out.stdout.split()
    assert Path(module).parent == Path(native).parent == tmp_path / "seqshift"
    assert (tmp_path / f"seqshift-{version}.dist-info").is_dir()
