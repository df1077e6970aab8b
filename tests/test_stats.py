"""`seqshift.stats()` is all zeros before the hooks go in, and the README says what each of its keys counts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import seqshift


def test_zeros_before_the_hooks_go_in():
    code = "import json, seqshift; print(json.dumps(seqshift.stats()))"
    zeros = json.loads(subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60))
    assert zeros["steps"] == 0
    assert not any(zeros.values())


def test_the_readme_lists_every_key():
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    section = readme.split("\n## Counters\n")[1].split("\n## ")[0]
    first_cells = (line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(seqshift.stats())
