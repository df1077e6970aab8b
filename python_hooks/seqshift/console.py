"""Literal text on a terminal."""

from __future__ import annotations

from rich.console import Console


def literal_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: `[a]` is no markup, `:a:` no emoji."""
    return Console(stderr=stderr, markup=False, emoji=False)


def printable(value: object) -> str:
    """`value` as text for a cell; as a literal where control characters would move the cursor or colour the rest."""
    text = str(value)
    return text if text.isprintable() else ascii(text)
