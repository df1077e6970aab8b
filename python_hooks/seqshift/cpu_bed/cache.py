"""Where models and logs go: the user's cache folder, since an installed package may not be writable."""

from __future__ import annotations

import os
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqshift"
