"""What the demo concludes from the ranks' logs: the group's course, its cost by gear, and whether it has failed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from seqshift.cpu_bed.compare import CompletionRecord, OutputRecord
from seqshift.cpu_bed.ranks import ScenarioError
from seqshift.demo import run
from seqshift.demo.rank import RankResult, Rollout, Step
from seqshift.demo.result import Check, Point, result
from seqshift.demo.settings import Settings

SETTINGS = Settings(sequences=4, median_length=2, longest=9, check_interval=2, seed=5, hidden=128, layers=1)


def output(request_id, tokens=(7, 8)):
    completion = CompletionRecord(0, "t7 t8", tuple(tokens), -1.5, None, "length", None)
    return OutputRecord(request_id, None, (3, 4), None, True, 0, (completion,))


def rollout(seconds, counts, cpu, moved=None, stats=None):
    steps = [
        Step(float(i), cpu, count, *(moved[i] if moved else (0, 0, 0.0)))
        for i, count in enumerate(counts)
    ]  # fmt: skip
    return Rollout(seconds, steps, [output("0"), output("1")], stats or {})


def stats(**values):
    return {"checks": 2, "sequences_moved": 0, "kv_bytes_moved": 0, "pause_seconds": 0.0, "moves_rejected": 0,
            "moves_rolled_back": 0, **values}  # fmt: skip


@pytest.fixture
def ranks():
    sent = [(0, 0, 0.0), (0, 0, 0.01), (2, 4096, 0.05), (2, 4096, 0.06)]
    received = [(0, 0, 0.0), (0, 0, 0.02), (0, 0, 0.04), (0, 0, 0.05)]
    return [
        RankResult(
            {4: 0.4, 2: 0.2, 1: 0.1},
            rollout(3.0, [4, 4, 3], 0.5),
            rollout(2.5, [4, 4, 1, 0], 0.25, sent,
                    stats(sequences_moved=2, kv_bytes_moved=4096, pause_seconds=0.06, moves_rejected=1)),
        ),
        RankResult(
            {4: 0.6, 2: 0.4, 1: 0.3},
            rollout(3.5, [4, 1, 0], 0.25),
            rollout(2.0, [4, 1, 2, 0], 0.125, received, stats(pause_seconds=0.05, moves_rejected=1)),
        ),
    ]  # fmt: skip


def test_the_course_of_the_group(ranks):
    found = result(SETTINGS, ranks, 0.5)
    assert found.without.timeline == (Point(1, (4, 4), 4), Point(2, (4, 1), 4), Point(3, (3, 0), 4))
    assert [p.gear for p in found.rebalanced.timeline] == [4, 4, 2, 1]
    (check,) = found.rebalanced.checks
    assert (check.step, check.moved, check.kv_bytes) == (3, 2, 4096)
    assert check.pause_seconds == pytest.approx(0.04)
    assert isinstance(check, Check)


def test_costs_follow_one_formula(ranks):
    found = result(SETTINGS, ranks, 0.5)
    assert found.step_cost == pytest.approx({4: 0.5, 2: 0.3, 1: 0.2})
    assert found.without.computed_seconds == pytest.approx(3 * 0.5)
    assert found.rebalanced.computed_seconds == pytest.approx(2 * 0.5 + 0.3 + 0.2)
    assert (found.without.wall_seconds, found.rebalanced.wall_seconds) == (3.5, 2.5)
    assert (found.without.cpu_seconds, found.rebalanced.cpu_seconds) == (1.5, 1.0)


def test_equal_outputs_are_no_failure(ranks):
    found = result(SETTINGS, ranks, 0.5)
    assert (found.identical, found.problems, found.compared, found.moves_rejected) == (True, [], 4, 1)
    document = json.loads(json.dumps(found.to_dict()))
    assert document["identical"] is True
    assert document["rebalanced"]["steps"] == 4
    assert document["rebalanced"]["timeline"][2] == {"step": 3, "sequences": [1, 2], "gear": 2}


def test_one_token_makes_it_fail(ranks):
    ranks[1].rebalanced.outputs[0] = output("0", tokens=(7, 9))
    found = result(SETTINGS, ranks, 0.5)
    assert not found.identical
    assert found.problems == ["1 differences between outputs"]
    assert found.differences[0].startswith("rank 1: request 0[0]: token_ids")


def test_moves_that_failed_and_rebalancing_that_was_off_make_it_fail(ranks):
    found = result(SETTINGS, ranks, 0.5)
    assert replace(found, moves_rolled_back=2).problems == ["2 moves failed and were undone"]
    assert replace(found, checks=0).problems == ["rebalancing was off"]


def test_ranks_out_of_lockstep_are_an_error(ranks):
    ranks[0].rebalanced.steps.pop()
    with pytest.raises(RuntimeError, match=r"different numbers of steps: \[3, 4\]"):
        result(SETTINGS, ranks, 0.5)


class NoBed:
    def start(self):
        return self

    def stop(self):
        pass


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs the command with a given outcome instead of engines; (exit status, report)."""

    def call(outcome, as_json=True):
        def measure(*_):
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(run.metadata, "version", lambda name: run.VLLM)
        monkeypatch.setattr(run, "Bed", NoBed)
        monkeypatch.setattr(run, "model_path", lambda spec: "")
        monkeypatch.setattr(run, "measure", measure)
        path = tmp_path / "reports" / "demo.html"
        return run.main(SETTINGS, report_path=path, as_json=as_json, deadline=5), path

    return call


def test_the_exit_status_tells(ranks, command, capsys):
    good = result(SETTINGS, ranks, 0.5)
    status, path = command(good)
    assert status == 0
    assert "identical" in path.read_text()
    assert json.loads(capsys.readouterr().out)["identical"] is True
    bad = replace(good, differences=("rank 0: request 1[0]: text",))
    assert command(bad)[0] == 1
    assert command(bad, as_json=False)[0] == 1
    assert "rank 0: request 1[0]: text" in capsys.readouterr().out


def test_a_rank_that_hangs_is_a_failure_with_its_stacks(command, capsys):
    status, path = command(ScenarioError("not finished within 5 s\nstacks: [in barrier]"))
    assert status == 1
    assert not path.exists()
    assert "stacks: [in barrier]" in capsys.readouterr().err


def test_another_vllm_is_named_with_the_way_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(run.metadata, "version", lambda name: "0.10.2")
    assert run.main(SETTINGS, report_path=tmp_path / "demo.html", as_json=True, deadline=5) == 1
    assert "vllm = 0.10.2: the demo needs 0.9.1+cpu; `make bed` installs it" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_workload_is_long_tailed_and_repeatable():
    settings = Settings(seed=3)
    long, short = settings.lengths()
    assert min(long) >= max(short)
    assert max(long) == settings.longest
    assert sorted(long)[len(long) // 2] < settings.longest / 2
    assert settings.lengths() == Settings(seed=3).lengths() != Settings(seed=4).lengths()
    assert settings.prompts(0) == Settings(seed=3).prompts(0) != settings.prompts(1)


@pytest.mark.parametrize(("name", "value"), [("sequences", 1), ("hidden", 100), ("longest", 4), ("check_interval", 0)])
def test_a_bad_size_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name} = {value}: must be"):
        Settings(**{name: value})
