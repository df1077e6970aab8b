"""The demo's report: one HTML file that needs nothing else, light and dark."""

from __future__ import annotations

from html import escape
from string import Template

from seqshift.demo import chart, terminal
from seqshift.demo.result import NO_PADDING, Arm, Result
from seqshift.demo.settings import RANKS

# Labels of smaller gears, as a part of the largest, would overlap.
SMALLEST_LABEL = 8
RANK_STYLES = ("first", "second")

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>seqshift demo</title>
<style>
:root {
  --page: #f7f7f5; --card: #ffffff; --ink: #1c1d20; --soft: #61646b; --rule: #e2e2de;
  --before: #8b8f98; --after: #0a7d6c; --first: #2864d2; --second: #c2560c; --good: #0a7d6c; --bad: #c0272d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15171a; --card: #1d2024; --ink: #e8e9eb; --soft: #a2a6ae; --rule: #34383e;
    --before: #8d929c; --after: #45c4ae; --first: #78a6ff; --second: #ff9c5b; --good: #45c4ae; --bad: #ff7b7f;
  }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 2.5rem 1.25rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 60rem; margin: auto; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.05rem; margin: 0 0 .5rem; }
h3 { font-size: .9rem; font-weight: 600; margin: 1rem 0 .2rem; }
p { margin: .3rem 0; }
.soft, caption { color: var(--soft); font-size: .87rem; text-align: left; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 1.1rem 1.3rem;
  margin-top: 1.1rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11.5rem, 1fr)); gap: .8rem; margin-top: 1.2rem; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .82rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .32rem .6rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; font-size: .84rem; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tbody tr:last-child td { border-bottom: 0; }
svg { display: block; width: 100%; height: auto; }
.grid { stroke: var(--rule); }
.mark { stroke: var(--after); stroke-dasharray: 2 4; stroke-width: 1.5; }
.tick { fill: var(--soft); font-size: 11.5px; } .value { fill: var(--ink); font-size: 12px; }
.line { fill: none; stroke-width: 2; }
.before { stroke: var(--before); } .after { stroke: var(--after); }
.first { stroke: var(--first); } .second { stroke: var(--second); }
.bar { fill: var(--after); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; color: var(--soft); font-size: .85rem; }
.key { display: inline-block; width: 1.1rem; height: 3px; margin-right: .45rem; vertical-align: middle; }
.key.before { background: var(--before); } .key.after { background: var(--after); }
.key.first { background: var(--first); } .key.second { background: var(--second); }
.key.marked { background: none; border-top: 2px dotted var(--after); }
details summary { cursor: pointer; color: var(--soft); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .82rem; }
</style>
</head>
<body>
<main>
<h1>One rollout, without and with rebalancing</h1>
<p class="soft">$description</p>
<div class="tiles">$tiles</div>
$busy
$problems
<section><h2>Gear of the group</h2>
<p class="soft">The smallest graph batch size that holds the fullest rank; every rank would be padded to it.</p>
$gears
</section>
<section><h2>Sequences of each rank</h2>
<h3>without</h3>
$without
<h3>rebalanced</h3>
$rebalanced
</section>
<section><h2>In numbers</h2>
<div class="scroll"><table>
<thead><tr><th></th><th>without</th><th>rebalanced</th><th>speed-up</th></tr></thead>
<tbody>$summary</tbody></table></div>
$note
</section>
<section><h2>CPU time of a decode step by gear</h2>
<p class="soft">Measured with that many sequences on every rank; the step costs above are computed from it.</p>
$costs
</section>
<section><h2>Checks that moved sequences</h2>
<div class="scroll"><table>
<thead><tr><th>at step</th><th>moved</th><th>gear</th><th>KV</th><th>pause</th></tr></thead>
<tbody>$checks</tbody></table></div>
</section>
<section><h2>Over time</h2>
<details><summary>Gear and sequences at every $stride</summary>
<div class="scroll"><table>
<thead><tr><th>step</th><th>gear without</th><th>ranks without</th><th>gear rebalanced</th><th>ranks rebalanced</th>
</tr></thead><tbody>$timeline</tbody></table></div></details>
</section>
</main>
</body>
</html>
""")


def html(result: Result) -> str:
    """The whole page."""
    one, two = result.without, result.rebalanced
    steps = max(one.steps, two.steps)
    marks = [check.step for check in two.checks]
    gears = [
        chart.Line("without", "before", [p.gear for p in one.timeline]),
        chart.Line("rebalanced", "after", [p.gear for p in two.timeline]),
    ]
    top = result.settings.sequences
    stride = max(1, result.settings.check_interval)
    return PAGE.substitute(
        description=escape(terminal.describe(result)),
        tiles=_tiles(result),
        busy=_paragraphs(terminal.busy(result)),
        problems=_problems(result),
        gears=chart.steps(gears, title="Gear over steps", unit="gear", top=top, steps=steps, marks=marks,
                          levels=[0, *(gear for gear in result.settings.gears if gear * SMALLEST_LABEL >= top)])
        + chart.legend(gears, "sequences moved"),
        without=_ranks(one, "without", top, steps, ()),
        rebalanced=_ranks(two, "rebalanced", top, steps, marks),
        summary=_rows(terminal.summary_rows(result)),
        note=_paragraphs([NO_PADDING]),
        costs=chart.bars(
            {gear: 1000 * cost for gear, cost in result.step_cost.items()}, title="CPU time by gear", unit="ms"
        ),
        checks=_rows(
            (
                check.step,
                check.moved,
                terminal.gears_around(result, check.step).replace("->", "\N{RIGHTWARDS ARROW}"),
                terminal.mebibytes(check.kv_bytes),
                terminal.milliseconds(check.pause_seconds),
            )
            for check in two.checks
        ),
        stride="step" if stride == 1 else f"{stride} steps",
        timeline=_rows(
            (step, *_point(one, step), *_point(two, step)) for step in range(1, steps + 1, stride)
        ),
    )  # fmt: skip


def _tiles(result: Result) -> str:
    one, two = result.without, result.rebalanced

    def timed(what: str, a: float, b: float) -> tuple[str, str, str]:
        return terminal.change(a, b), f"{what}: {terminal.seconds(a)} and {terminal.seconds(b)}", ""

    tiles = [
        timed("wall time, measured", one.wall_seconds, two.wall_seconds),
        timed("step cost by gear, computed", one.computed_seconds, two.computed_seconds),
        (
            str(result.sequences_moved),
            f"sequences moved, with {terminal.mebibytes(result.kv_bytes_moved)} of KV, "
            f"in {terminal.milliseconds(result.pause_seconds)} of pause",
            "",
        ),
        ("identical" if result.identical else "different", f"{result.compared} outputs, compared field by field",
         "good" if result.identical else "bad"),
    ]  # fmt: skip
    return "".join(
        f'<div class="tile"><b class="{style}">{escape(value)}</b><span>{escape(text)}</span></div>'
        for value, text, style in tiles
    )


def _paragraphs(texts: list[str]) -> str:
    return "".join(f'<p class="soft">{escape(text)}</p>' for text in texts)


def _problems(result: Result) -> str:
    if not result.problems:
        return ""
    lines = escape("\n".join([*result.problems, "", *result.differences]))
    return f'<section><h2 class="bad">Failed</h2><pre>{lines}</pre></section>'


def _ranks(arm: Arm, name: str, top: int, steps: int, marks: tuple | list) -> str:
    lines = [
        chart.Line(f"rank {rank}", RANK_STYLES[rank], [point.sequences[rank] for point in arm.timeline])
        for rank in range(RANKS)
    ]
    drawn = chart.steps(lines, title=f"Sequences of each rank, {name}", unit="sequences", top=top, steps=steps,
                        marks=marks)  # fmt: skip
    return drawn + chart.legend(lines, "sequences moved" if marks else None)


def _point(arm: Arm, step: int) -> tuple:
    if step > arm.steps:
        return "", ""
    point = arm.timeline[step - 1]
    return point.gear, " | ".join(map(str, point.sequences))


def _rows(rows: object) -> str:
    return "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
