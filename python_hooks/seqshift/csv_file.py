"""CSV files with a header, read strictly: what is not well-formed is an error with its line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from seqshift.messages import shown


def read_csv(file: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header, and of each further record the line where it starts and its stripped cells, as many as the header's.

    Raises `ValueError` with file and line: for an empty line, a quote that is not closed, more or fewer cells than the
    header has, and a column that the header has twice.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror or 'cannot be read'}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is not UTF-8 text") from None
    records = _records(file, text)
    _, header = next(records, (1, []))
    if text and not header:
        raise ValueError(f"{file}: line 1: empty; it must be the header")
    for number, name in enumerate(header):
        if name and name in header[:number]:
            raise ValueError(f"{file}: line 1: column {shown(name)} is there twice; give each column its own name")
    return header, _checked(file, header, records)


def _records(file: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    with io.StringIO(text, newline="") as lines:
        reader = csv.reader(lines, strict=True)
        while True:
            start = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                problem = "a quote is opened and not closed" if "unexpected end" in str(error) else str(error)
                raise ValueError(f"{file}: line {start}: {problem}") from None
            if cells is None:
                return
            yield start, [cell.strip() for cell in cells]


def _checked(
    file: Path, header: list[str], records: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, list[str]]]:
    for line, cells in records:
        if not cells:
            raise ValueError(f"{file}: line {line}: empty; take it out")
        if len(cells) < len(header):
            raise ValueError(
                f"{file}: line {line}: {header[len(cells)]} = '': missing; the line has {len(cells)} cells, the header "
                f"{len(header)}"
            )
        if len(cells) > len(header):
            raise ValueError(
                f"{file}: line {line}: {len(cells)} cells, but the header has {len(header)}; a cell with a comma needs "
                "quotes"
            )
        yield line, cells
