"""`seqshift simulate`: table, JSON, charts, gear advisor; bad input is one clear error with exit status 2."""

from __future__ import annotations

import csv
import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from seqshift import simulation
from seqshift.cli import app
from typer.testing import CliRunner

SMALL = ("--ranks", "8", "--prompts", "32", "--samples", "4", "--lengths", "longtail_32k")
TRACES = Path(os.environ.get("SEQSHIFT_TRACE_DIR", Path(__file__).parents[2] / "shared" / "traces"))


def run(*args):
    result = CliRunner().invoke(app, ["simulate", *map(str, args)])
    # Anything but an exit is a traceback for the user.
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_table():
    out = run(*SMALL)
    assert out.exit_code == 0, out.stderr
    for policy in simulation.POLICIES:
        assert policy in out.stdout


def test_json():
    out = run(*SMALL, "--json")
    assert out.exit_code == 0, out.stderr
    result = json.loads(out.stdout)
    assert [policy["policy"] for policy in result["policies"]] == list(simulation.POLICIES)
    assert result["sequences"] == 128
    by_name = {policy["policy"]: policy for policy in result["policies"]}
    assert by_name["oracle"]["gap_to_oracle"] == 0 <= by_name["oracle"]["gap_to_bound"]
    assert by_name["bound"]["gap_to_bound"] == 0
    assert by_name["adaptive"]["wall_seconds"] < by_name["gears"]["wall_seconds"] < by_name["static"]["wall_seconds"]
    timeline = by_name["adaptive"]["timeline"]
    assert timeline[0]["gear"] == 16
    assert timeline[-1]["gear"] == 4
    assert run(*SMALL, "--json").stdout == out.stdout


def test_published_setups_say_what_was_published():
    for name, published in simulation.presets()["setups"].items():
        result = json.loads(run("--setup", name, "--policy", "static", "--policy", "published", "--json").stdout)
        assert result["published"]["static_seconds"] == published["published_without_seconds"]
        assert len(result["policies"]) == 2


@pytest.mark.parametrize("suffix", [".html", ".svg"])
def test_charts(tmp_path, suffix):
    file = tmp_path / f"report{suffix}"
    out = run(*SMALL, "--policy", "gears", "--policy", "adaptive", "--report", file)
    assert out.exit_code == 0, out.stderr
    text = file.read_text(encoding="utf-8")
    start = text.index("<svg")
    svg = ET.fromstring(text[start : text.index("</svg>") + 6])
    lines = svg.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2 * 4
    for title in ("Gear", "Running sequences", "TPOT"):
        assert title in text
    assert "src=" not in text
    assert "href=" not in text


def test_gear_advisor():
    out = run("--suggest-gears", 4, "--json")
    assert out.exit_code == 0, out.stderr
    found = json.loads(out.stdout)
    assert len(found["gears"]) == 4
    assert found["gears"][0] == 64
    assert found["baseline"] == [64, 32, 16, 8, 4]
    out = run("--suggest-gears", 5, "--graph-seconds", 10, "--graph-mib", 300)
    assert out.exit_code == 0, out.stderr
    assert "expected gain" in out.stdout


def test_gear_advisor_compares_with_the_same_largest_graph():
    many = ("--ranks", 8, "--prompts", 128, "--samples", 8, "--max-num-seqs", 128)
    found = json.loads(run(*many, "--suggest-gears", 2, "--json").stdout)
    assert found["baseline_given"] == [64, 32, 16, 8, 4]
    assert found["baseline"] == [128, 64, 32, 16, 8, 4]
    assert found["expected_gain"] < 0
    out = run(*many, "--suggest-gears", 2, "--graph-mib", 100).stdout
    lines = " ".join(out.split())
    assert "max_num_seqs is 128, [64, 32, 16, 8, 4] has no graph for so many" in lines
    assert f"no gain over [128, 64, 32, 16, 8, 4]: {-found['expected_gain']:.2%} more time expected" in lines
    assert "600" in out
    lines = " ".join(run(*many, "--suggest-gears", 6).stdout.split())
    assert "expected gain over [128, 64, 32, 16, 8, 4]: " in lines
    assert "-" not in lines.split("expected gain over")[1]


def test_gear_advisor_takes_the_check_interval():
    found = [json.loads(run("--suggest-gears", 4, "--check-interval", n, "--json").stdout) for n in (10, 1000)]
    assert found[0]["gears"] == found[1]["gears"]
    assert found[0]["adaptive_seconds"] != found[1]["adaptive_seconds"]


def test_lengths_from_a_file(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("id,output_tokens\na,100\nb,300\n")
    out = run("--ranks", 2, "--prompts", 4, "--samples", 2, "--lengths-csv", file, "--policy", "gears", "--json")
    assert out.exit_code == 0, out.stderr
    result = json.loads(out.stdout)
    assert result["setup"]["lengths"] == {"observed": [100, 300]}
    assert result["policies"][0]["steps"] == 300


def test_lengths_of_a_real_trace():
    file = TRACES / "azure_llm_2023_conv.csv"
    if not file.exists():
        pytest.skip(f"no trace in {TRACES}; SEQSHIFT_TRACE_DIR names the folder")
    with file.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    lengths = simulation.read_lengths(file)
    assert lengths == [int(row["GeneratedTokens"]) for row in rows]
    result = simulation.compare(simulation.make_setup("deepseek-v3", lengths=lengths), ["gears", "adaptive"])
    gears, adaptive = result["policies"]
    assert adaptive["wall_seconds"] < gears["wall_seconds"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--setup", "gpt"], "--setup: setup = 'gpt': unknown; known are deepseek-v3"),
        (["--lengths", "dapo"], "lengths = 'dapo': unknown; known are dapo_32k"),
        (["--policy", "best"], "policy = 'best': unknown"),
        (["--link", "usb"], "link = 'usb': unknown"),
        (["--ranks", "0"], "--ranks = 0: must be an integer in 1..4096"),
        (["--ranks", "5000"], "--ranks = 5000: must be an integer in 1..4096"),
        (["--max-num-seqs", "0"], "max-num-seqs = 0: must be an integer in 1..65535"),
        (["--graph-seconds", "3"], "graph-seconds = 3.0: needs --suggest-gears"),
        (["--graph-mib", "0"], "graph-mib = 0.0: needs --suggest-gears"),
        (["--graph-budget-mib", "0"], "graph-budget-mib = 0.0: needs --suggest-gears"),
        (["--prompts", "4000000", "--samples", "16"], "--prompts: prompts = 4000000"),
        (["--gears", "8,x"], "gears = '8,x'"),
        (["--correlation", "2"], "--correlation: prompt_correlation = 2"),
        (["--kv-capacity-tokens", "1000"], "--kv-capacity-tokens: kv_capacity_tokens = 1000"),
        (["--suggest-gears", "0"], "--suggest-gears: suggest_gears = 0"),
        (
            ["--suggest-gears", "4", "--graph-mib", "9", "--graph-budget-mib", "5"],
            "--graph-budget-mib: graph_budget_mib = 5",
        ),
        (["--suggest-gears", "4", "--graph-seconds", "-1"], "--graph-seconds: graph_seconds = -1"),
        (["--report", "x.pdf"], "--report = 'x.pdf'"),
        (["--column", "a"], "column = 'a': needs --lengths-csv"),
        (["--correlation", "nan"], "correlation = nan: must be a finite number"),
        (["--suggest-gears", "65"], "suggest_gears = 65: must be in 1..64"),
        (["--suggest-gears", "4", "--graph-seconds", "nan"], "graph_seconds = nan"),
        (["--suggest-gears", "4", "--policy", "static"], "policy: has no meaning with --suggest-gears"),
        (["--lengths-csv", "nowhere.csv"], "--lengths-csv: nowhere.csv: No such file"),
        (["--suggest-gears", "4", "--gears", "8,4"], "--gears: has no meaning with --suggest-gears"),
        (["--suggest-gears", "4", "--graph-budget-mib", "5"], "graph_budget_mib = 5.0: needs graph_mib"),
        (
            ["--suggest-gears", "4", "--graph-mib", "9", "--graph-budget-mib", "-1"],
            "--graph-budget-mib: graph_budget_mib = -1.0: must be a finite number of at least 0",
        ),
        (["--suggest-gears", "4", "--graph-mib", "inf"], "graph_mib = inf: must be a finite number"),
        (["--gears", "99999999999"], "--gears = '99999999999': must be integers in 1..65535"),
        (["--gears", "9" * 5000], "must be integers in 1..65535"),
        (["--report", "nowhere/to/x.html"], "--report = 'nowhere/to/x.html': the folder 'nowhere/to' does not exist"),
    ],
)
def test_bad_input(args, message):
    out = run(*args)
    assert out.exit_code == 2
    assert message in out.stderr
    assert out.stderr.count("\n") == 1
    assert out.stdout == ""


@pytest.mark.parametrize("value", ["nan", "x", "inf", "", "1.5", "[b]", "1" * 5000])
@pytest.mark.parametrize("option", ["--ranks", "--seed", "--suggest-gears", "--routing --seeds"])
def test_what_is_no_integer_is_shown(option, value):
    out = run(*option.split(), value)
    assert out.exit_code == 2
    assert f"{option.split()[-1]} = {value[:40]!r}"[:-1] in out.stderr
    assert "must be an integer" in out.stderr
    assert out.stderr.count("\n") == 1
    assert out.stdout == ""


@pytest.mark.parametrize("option", ["--correlation", "--graph-seconds", "--graph-mib", "--graph-budget-mib"])
def test_what_is_no_number_is_shown(option):
    out = run(option, "x")
    assert (out.exit_code, out.stdout) == (2, "")
    assert out.stderr == f"seqshift simulate: {option} = 'x': must be a number\n"


def test_help_names_routing():
    assert "--routing" in run("--help").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("output_tokens\n10\n-3\n", "line 3: output_tokens = '-3'"),
        ("output_tokens\n10\n20\nx\n", "line 4: output_tokens = 'x'"),
        ("a,output_tokens\n1\n", "line 2: output_tokens = ''"),
        ("a,b\n1,2\n", "line 1: none of the columns"),
        ("output_tokens\n", "no lengths"),
        ("", "line 1"),
        ("\nlength\n5\n", "line 1: empty"),
        ('length\n7\n"5\n6\n', "line 3: a quote is opened and not closed"),
        ('length\n"5"6\n', "line 2: "),
        ('id,length\n"a\nb",5\nc,x\n', "line 4: length = 'x'"),
        ("length\n1,000\n", "line 2: 2 cells, but the header has 1"),
        ("length,length\n1,2\n", "line 1: column 'length' is there twice"),
        ("length,id\n5\n", "line 2: id = '': missing"),
        ("length\n5\n\n6\n", "line 3: empty; take it out"),
        ("id,length\na,5\n\n", "line 3: empty; take it out"),
        ("length\n" + "1" * 5000 + "\n", "line 2: length = '1111"),
    ],
)
def test_bad_length_files(tmp_path, text, message):
    file = tmp_path / "lengths.csv"
    file.write_text(text)
    out = run("--lengths-csv", file)
    assert out.exit_code == 2
    assert message in out.stderr
    assert out.stderr.count("\n") == 1
