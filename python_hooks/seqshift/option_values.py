"""Numbers on the command line: what is none is an error with option and value, like any other wrong value."""

from __future__ import annotations

import re

from seqshift.messages import shown


def integer(option: str, text: str | None, allowed: str = "must be an integer") -> int | None:
    """The integer in `text`, None where the option is not given. Raises `ValueError` that says what is `allowed`."""
    if text is None:
        return None
    # Few digits: conversion takes time quadratic in them.
    if not re.fullmatch("[+-]?[0-9]{1,30}", text.strip()):
        raise ValueError(f"--{option} = {shown(text)}: {allowed}")
    return int(text)


def number(option: str, text: str | None) -> float | None:
    """The number in `text`, None where the option is not given; `nan` and `inf` are numbers. Raises `ValueError`."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--{option} = {shown(text)}: must be a number") from None
