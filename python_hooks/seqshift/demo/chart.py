"""Step charts as inline SVG. Colours are CSS classes of the page, so that they follow its theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 16, 14, 38
TICKS = 6


@dataclass(frozen=True)
class Line:
    """One value per step, held until the next step."""

    name: str
    style: str
    """CSS class."""
    values: Sequence[int]


def steps(
    lines: Sequence[Line],
    *,
    title: str,
    unit: str,
    top: int,
    steps: int,
    marks: Sequence[int] = (),
    levels: Sequence[int] | None = None,
) -> str:
    """A chart of lines over steps 1 to `steps` and values 0 to `top`.

    `marks` are steps that get a vertical line, `levels` the labelled values (round ones if not given).
    """

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / max(1, steps)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / max(1, top)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">']
    for value in ticks(top) if levels is None else levels:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    for step in ticks(steps):
        at = max(1, step)
        parts.append(f'<text class="tick" x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{at}</text>')
    parts.append(
        f'<text class="tick" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">step</text>'
        f'<text class="tick" transform="translate(11 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(unit)}</text>'
    )
    for step in marks:
        parts.append(
            f'<line class="mark" x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
            f"<title>sequences moved before step {step}</title></line>"
        )
    for line in lines:
        parts.append(f'<path class="line {line.style}" d="{_path(line.values, x, y)}"/>')
    parts.append("</svg>")
    return "".join(parts)


def legend(lines: Sequence[Line], mark: str | None = None) -> str:
    """The names of the lines with their colours."""
    items = [f'<span><i class="key {line.style}"></i>{escape(line.name)}</span>' for line in lines]
    if mark:
        items.append(f'<span><i class="key marked"></i>{escape(mark)}</span>')
    return f'<p class="legend">{"".join(items)}</p>'


def bars(values: dict[int, float], *, title: str, unit: str) -> str:
    """Horizontal bars with their values, in the order given."""
    row, left, room = 24, 60, 150
    height = row * len(values) + 6
    largest = max(values.values(), default=0) or 1
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">']
    for index, (name, value) in enumerate(values.items()):
        y = 4 + index * row
        width = (WIDTH - left - room) * value / largest
        parts.append(
            f'<text class="tick" x="{left - 8}" y="{y + 13}" text-anchor="end">{name}</text>'
            f'<rect class="bar" x="{left}" y="{y}" width="{width:.1f}" height="17" rx="2"/>'
            f'<text class="value" x="{left + width + 8:.1f}" y="{y + 13}">{value:.1f} {escape(unit)}</text>'
        )
    parts.append("</svg>")
    return "".join(parts)


def ticks(top: int) -> list[int]:
    """About six round values from 0 up to `top`."""
    step = 1
    while top / step > TICKS:
        # 1, 2, 5, 10, ...
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(0, top + 1, step))


def _path(values: Sequence[int], x: object, y: object) -> str:
    """Horizontal and vertical moves only, one pair per change."""
    parts: list[str] = []
    last = None
    for step, value in enumerate(values, 1):
        if value != last:
            parts.append(f"M{x(step):.1f} {y(value):.1f}" if last is None else f"H{x(step):.1f}V{y(value):.1f}")
            last = value
    parts.append(f"H{x(len(values) + 1):.1f}")
    return "".join(parts) if values else ""
