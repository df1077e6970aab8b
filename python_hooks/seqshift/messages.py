"""Parts of error messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SHOWN = 100
"""Characters of a wrong value in a message."""


def shown(value: Any) -> str:
    """A value for a message; a long one is cut, and not every one has a `repr`."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"({type(value).__name__}, too large to show)"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def with_option(error: ValueError, options: Mapping[str, str]) -> str:
    """The message of an error about a field or a file, with the option in front that sets it.

    `options` maps the field or path with which a message begins; other fields have an option of their own name.
    """
    message = str(error)
    for start, option in options.items():
        if message.startswith((f"{start} = ", f"{start}: ")):
            return f"{option}: {message}"
    field = re.match(r"(\w+) = ", message)
    return message if field is None else f"--{field.group(1).replace('_', '-')}: {message}"
