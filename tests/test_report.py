"""The demo's report: one file that needs nothing else, whose numbers and curves are those of the result."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from seqshift.demo import report, terminal
from seqshift.demo.result import Arm, Check, Point, Result
from seqshift.demo.settings import Settings

SETTINGS = Settings(sequences=8, median_length=20, longest=64, check_interval=3, seed=77, hidden=256, layers=2)


def arm(wall, cpu, computed, sequences, checks=()):
    timeline = tuple(
        Point(step, counts, next(g for g in reversed(SETTINGS.gears) if g >= max(counts)))
        for step, counts in enumerate(sequences, 1)
    )
    return Arm(wall, cpu, computed, 4321, timeline, checks)


@pytest.fixture
def result():
    return Result(
        settings=SETTINGS,
        machine={"cpu": "Some <CPU>", "cores": 4, "load_before": 0.25},
        step_cost={8: 0.0715, 4: 0.0402, 2: 0.0223, 1: 0.0134},
        without=arm(12.34, 11.25, 10.5, [(8, 8), (8, 5), (8, 1), (7, 0), (5, 0), (3, 0)]),
        rebalanced=arm(
            9.87, 9.25, 7.75, [(8, 8), (8, 5), (8, 1), (4, 3), (3, 2), (2, 1), (0, 0)],
            (Check(4, 3, 5 * 2**20, 0.0473),),
        ),
        checks=2,
        sequences_moved=3,
        kv_bytes_moved=5 * 2**20,
        pause_seconds=0.0581,
        moves_rejected=1,
        moves_rolled_back=0,
        compared=16,
        differences=(),
    )  # fmt: skip


class Page(HTMLParser):
    """Tags with attributes, table rows by their cells, and all visible text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.text, self._open = [], [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "rect", "line", "path"):
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        if tag not in ("meta", "rect", "line", "path"):
            assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" in self._open:
            return
        self.text += data
        if self._open and self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    def curves(self):
        """(class, path) of each curve."""
        return [(a["class"].split()[-1], a["d"]) for tag, a in self.tags if tag == "path"]


def values(path, top, count):
    """The values of a curve of `count` steps, read from its path."""
    start = re.match(r"M([\d.]+) ([\d.]+)", path)
    moves = re.findall(r"H([\d.]+)(?:V([\d.]+))?", path)
    end = float(moves[-1][0])
    x0, y = float(start[1]), float(start[2])
    width = (end - x0) / count
    levels, changes = [], iter([(round((float(x) - x0) / width), float(v)) for x, v in moves[:-1]])
    change = next(changes, None)
    for step in range(count):
        if change and step == change[0]:
            y, change = change[1], next(changes, None)
        levels.append(y)
    bottom, height = 230 - 38, 230 - 14 - 38
    return [round((bottom - y) / height * top) for y in levels]


def test_it_needs_nothing_else(result):
    text = report.html(result)
    page = Page(text)
    assert not {"link", "script", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    assert not {"src", "href", "srcset", "xlink:href", "style", "onload"} & {k for _, a in page.tags for k in a}
    assert not re.search(r"https?:|//|@import|url\(", text)


def test_it_is_light_and_dark(result):
    text = report.html(result)
    light, _, dark = text.partition("@media (prefers-color-scheme: dark)")
    defined = set(re.findall(r"(--\w+):", light))
    assert defined
    assert defined == set(re.findall(r"(--\w+):", dark))
    assert set(re.findall(r"var\((--\w+)\)", text)) == defined


def test_the_table_holds_the_numbers(result):
    rows = {row[0]: row[1:] for row in Page(report.html(result)).rows}
    assert rows["wall time, measured"] == ["12.34 s", "9.87 s", "1.25x"]
    assert rows["busier rank's CPU time, measured"] == ["11.25 s", "9.25 s", "1.22x"]
    assert rows["step cost by gear, computed"] == ["10.50 s", "7.75 s", "1.35x"]
    assert rows["steps"] == ["6", "7", ""]
    assert rows["tokens"] == ["4321", "4321", ""]
    assert rows["mean gear"] == ["7.3", "5.0", ""]
    assert [rows[name][1] for name in ("checks", "sequences moved", "moves rejected")] == ["2", "3", "1"]
    assert rows["KV moved"][1] == "5.0 MiB"
    assert rows["pause of all checks"][1] == "58.1 ms"
    assert rows["outputs identical"][1] == "all 16"


def test_a_check_and_the_course_over_time(result):
    rows = Page(report.html(result)).rows
    assert ["4", "3", "8 \N{RIGHTWARDS ARROW} 4", "5.0 MiB", "47.3 ms"] in rows
    # Every third step, as checks are.
    assert rows[-3:] == [
        ["1", "8", "8 | 8", "8", "8 | 8"],
        ["4", "8", "7 | 0", "4", "4 | 3"],
        ["7", "", "", "1", "0 | 0"],
    ]


def test_the_curves_are_those_of_the_result(result):
    curves = Page(report.html(result)).curves()
    drawn = [(name, values(path, 8, count)) for (name, path), count in zip(curves, (6, 7, 6, 6, 7, 7))]
    assert drawn == [
        ("before", [8, 8, 8, 8, 8, 4]),
        ("after", [8, 8, 8, 4, 4, 2, 1]),
        ("first", [8, 8, 8, 7, 5, 3]),
        ("second", [8, 5, 1, 0, 0, 0]),
        ("first", [8, 8, 8, 4, 3, 2, 0]),
        ("second", [8, 5, 1, 3, 2, 1, 0]),
    ]


def test_it_says_what_is_computed_and_what_is_not_padded(result):
    text = Page(report.html(result)).text
    assert "does not pad a batch to a gear" in text
    assert "71.5 ms" in text
    assert "Some <CPU>" in text


def test_a_busy_machine_is_mentioned_only_when_it_was_busy(result):
    assert "kept this machine busy" not in report.html(result)
    busy = replace(result, machine={**result.machine, "load_before": 2.1})
    assert "kept this machine busy (load 2.1 on 4 cores" in report.html(busy)


def test_a_difference_is_shown_as_text(result):
    line = "rank 0: request 3[0]: text: '<b>one</b>' != 'two'"
    text = report.html(replace(result, differences=(line,)))
    page = Page(text)
    assert line in page.text
    assert "b" not in [tag for tag, a in page.tags if not a]
    assert terminal.verdict(replace(result, differences=(line,))) == "NO, 1 differences"
