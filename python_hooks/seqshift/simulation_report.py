"""A simulation as a self-contained SVG or HTML page: gears, sequences and TPOT over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

_COLOURS = ("#7f7f7f", "#1f77b4", "#9467bd", "#ff7f0e", "#2ca02c", "#17becf", "#d62728")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 240, 70, 15, 34, 34

Points = list[tuple[float, float]]

_CHARTS: tuple[tuple[str, Callable[[dict[str, Any]], float]], ...] = (
    ("Gear (graph batch size)", lambda sample: sample["gear"]),
    ("Running sequences of the group", lambda sample: sample["running"]),
    ("Sequences on the busiest rank", lambda sample: sample["busiest"]),
    ("TPOT (ms)", lambda sample: sample["tpot_seconds"] * 1000),
)


def svg(result: dict[str, Any]) -> str:
    """All charts below each other, with a legend."""
    names = [policy["policy"] for policy in result["policies"]]
    parts = []
    for number, (title, value) in enumerate(_CHARTS):
        lines = [_steps(policy, value) for policy in result["policies"]]
        parts.append(f'<g transform="translate(0 {20 + number * _HEIGHT})">{_chart(title, lines)}</g>')
    height = 20 + len(_CHARTS) * _HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
        f"{_legend(names)}{''.join(parts)}</svg>"
    )


def html(result: dict[str, Any], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """A page with the table `rows` (the first one is the header), `notes` and the charts."""
    head, *body = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    said = "".join(f"<p>{escape(note)}</p>" for note in notes)
    style = (
        "body{font-family:sans-serif;margin:2em}"
        "td,th{padding:.2em .8em;text-align:right}td:first-child{text-align:left}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>seqshift simulate</title><style>{style}</style>'
        f"<h1>Rollout simulation</h1>{said}<table><tr>{cells}</tr>{lines}</table>{svg(result)}</html>\n"
    )


def _steps(policy: dict[str, Any], value: Callable[[dict[str, Any]], float]) -> Points:
    """Points of a step line that ends with the rollout."""
    points: Points = []
    for sample in policy["timeline"]:
        if points:
            points.append((sample["seconds"], points[-1][1]))
        points.append((sample["seconds"], value(sample)))
    if points:
        points.append((policy["wall_seconds"], points[-1][1]))
    return points


def _chart(title: str, lines: list[Points]) -> str:
    right = max((x for line in lines for x, _ in line), default=1.0) or 1.0
    top = max((y for line in lines for _, y in line), default=1.0) or 1.0
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(x: float, y: float) -> str:
        return f"{_LEFT + x / right * wide:.1f},{_TOP + (1 - y / top) * high:.1f}"

    parts = [f'<text x="{_LEFT}" y="{_TOP - 10}" font-weight="bold">{escape(title)}</text>']
    for i in range(5):
        share = i / 4
        _, y = at(0, top * share).split(",")
        x, _ = at(right * share, 0).split(",")
        parts.append(f'<path d="M{_LEFT} {y}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{top * share:.4g}</text>')
        parts.append(f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{right * share:.0f} s</text>')
    for line, colour in zip(lines, _COLOURS):
        path = " ".join(at(x, y) for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return "".join(parts)


def _legend(names: Sequence[str]) -> str:
    parts = []
    for i, (name, colour) in enumerate(zip(names, _COLOURS)):
        x = _LEFT + i * 115
        parts.append(f'<path d="M{x} 14h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 23}" y="18">{escape(name)}</text>')
    return "".join(parts)
