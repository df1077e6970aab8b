"""`plan_migrations` and `seqshift plan`: names, shapes, mappings, ids, and errors that name field and value."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import seqshift
from seqshift.cli import app
from typer.testing import CliRunner


def rank(rank, running, waiting=0, free=None, **more):
    """A rank whose running sequences hold 10 blocks each."""
    sequences = [{"request_id": f"{rank}-{i}", "kv_blocks": 10} for i in range(running)]
    return {
        "rank": rank,
        "running": running,
        "waiting": waiting,
        "free_kv_blocks": free,
        "sequences": sequences,
        **more,
    }


def with_ids(*ids):
    """Rank 0 with running sequences of these ids."""
    return {"rank": 0, "running": len(ids), "sequences": [{"request_id": id, "kv_blocks": 1} for id in ids]}


def moved(plan):
    return sum(move.count for move in plan.moves)


@pytest.mark.parametrize(
    ("gears", "loads", "slots", "gear", "moves"),
    [
        ([16, 8, 4], [rank(0, 12, free=100), rank(1, 2, free=20)], None, 16, 0),
        ([16, 8, 4], [rank(0, 12, free=100), rank(1, 2, free=40)], None, 8, 4),
        ([6, 3], [rank(0, 5), rank(1, 1, free=20)], None, 3, 2),
        ([6, 3], [rank(0, 5), rank(1, 1, free=10)], None, 6, 0),
        ([16, 8, 4], [rank(0, 12, free=5), rank(1, 2, free=100)], None, 8, 4),
        ([16, 8, 4, 2, 1], [rank(0, 0), rank(1, 1), rank(2, 4)], 4, 2, 2),
        ([16, 8, 4], [rank(0, 1, 3, free=0), rank(1, 0)], None, 4, 3),
        ([16, 8, 4], [rank(i, 0 if i else 16) for i in range(8)], None, 4, 12),
        ([16, 8, 4], [rank(0, 40), rank(1, 10, free=150)], 64, 25, 15),
        ([16, 8, 4], [rank(0, 40), rank(1, 10, free=60)], 64, 34, 6),
        ([64, 32, 16, 8, 4], [{"rank": i, "running": n} for i, n in enumerate([200, 0, 0])], None, 67, 133),
        ([], [{"rank": i, "running": n} for i, n in enumerate([200, 0, 0])], None, 67, 133),
        ([512, 408, 304, 192, 88, 1], [rank(0, 400), rank(1, 100)], None, 304, 96),
    ],
)
def test_right_answers(gears, loads, slots, gear, moves):
    plan = seqshift.plan_migrations(loads, gears, max_num_seqs=slots)
    assert (plan.gear_after, moved(plan)) == (gear, moves)
    assert plan.lower_bound <= plan.gear_after
    assert plan == seqshift.plan_migrations(loads[::-1], gears[::-1], max_num_seqs=slots)


def test_shape():
    plan = seqshift.plan_migrations([rank(0, 12), rank(1, 2)], [16, 8, 4])
    move = seqshift.Move(0, 1, 4, ("0-1", "0-4", "0-7", "0-10"), True)
    assert plan == seqshift.Plan(16, 8, 8, ("lowered",), (move,))
    assert json.loads(json.dumps(plan.to_dict())) == {
        "gear_before": 16,
        "gear_after": 8,
        "lower_bound": 8,
        "reasons": ["lowered"],
        "moves": [
            {
                "from_rank": 0,
                "to_rank": 1,
                "count": 4,
                "request_ids": ["0-1", "0-4", "0-7", "0-10"],
                "needs_kv": True,
                "waiting_positions": [],
            }
        ],
    }


def test_objects_and_mappings_are_the_same():
    sequences = [seqshift.SequenceLoad(f"r{i}", 1 + i, movable=i > 0) for i in range(3)]
    loads = [seqshift.RankLoad(0, 3, sequences=sequences), {"rank": 1, "running": 0}]
    plan = seqshift.plan_migrations(loads, [4, 2])
    assert plan.moves == (seqshift.Move(0, 1, 1, ("r1",), True),)
    as_mapping = {"rank": 0, "running": 3, "sequences": [vars(sequence) for sequence in sequences]}
    assert seqshift.plan_migrations([as_mapping, loads[1]], [4, 2]) == plan


def test_waiting_requests_are_named_by_their_places():
    """The first two of the queue do not fit: whoever takes the first ones of `count` gets a plan that cannot be."""
    loads = [
        {"rank": 0, "running": 0, "waiting": 4, "free_kv_blocks": 0, "waiting_kv_blocks": [9, 9, 2, 2]},
        {"rank": 1, "running": 0, "free_kv_blocks": 4},
    ]
    plan = seqshift.plan_migrations(loads, [4])
    assert plan.moves == (seqshift.Move(0, 1, 2, (), False, (2, 3)),)
    assert plan.to_dict()["moves"][0]["waiting_positions"] == [2, 3]


def test_counts_alone_and_waiting_requests_have_no_ids():
    plan = seqshift.plan_migrations([seqshift.RankLoad(0, 8), seqshift.RankLoad(1, 0)], [8, 4])
    assert plan.moves == (seqshift.Move(0, 1, 4, (), True),)
    plan = seqshift.plan_migrations([rank(0, 1, 3, free=0), rank(1, 0, free=7, max_num_seqs=2)], [8, 4])
    assert plan.moves == (seqshift.Move(0, 1, 2, (), False),)
    assert "waiting_served" in plan.reasons
    # Seven free blocks take two prompts of three.
    for blocks in (3, [3, 3, 3]):
        loads = [rank(0, 1, 3, free=0, waiting_kv_blocks=blocks), rank(1, 0, free=7)]
        assert moved(seqshift.plan_migrations(loads, [8, 4])) == 2


def test_waiting_requests_that_cannot_move_keep_their_room():
    """Of 20 free blocks rank 1's own take what they need; sequences of 10 blocks find room in what is left."""

    def count(**pinned):
        return moved(seqshift.plan_migrations([rank(0, 4), rank(1, 0, free=20, max_num_seqs=3, **pinned)], [4, 3, 2]))

    assert count() == 2
    assert count(pinned_waiting=1) == 1
    assert count(pinned_waiting=1, pinned_waiting_kv_blocks=10) == 1
    assert count(pinned_waiting=1, pinned_waiting_kv_blocks=[11]) == 0
    assert count(pinned_waiting=2, pinned_waiting_kv_blocks=[0, 0]) == 1
    assert count(pinned_waiting=3, pinned_waiting_kv_blocks=0) == 0
    assert count(pinned_waiting_kv_blocks=[]) == 2


def test_running_sequences_make_room_for_waiting_requests_that_cannot_move():
    full = rank(0, 4, free=0, max_num_seqs=4, pinned_waiting=2)
    plan = seqshift.plan_migrations([full, rank(1, 1, free=99)], [8, 4])
    assert (plan.moves[0].from_rank, plan.moves[0].to_rank, plan.moves[0].needs_kv) == (0, 1, True)
    assert plan.reasons == ("waiting_served",)
    as_object = seqshift.RankLoad(0, 4, 0, 0, 4, [seqshift.SequenceLoad(**s) for s in full["sequences"]], None, 2)
    assert seqshift.plan_migrations([as_object, rank(1, 1, free=99)], [8, 4]) == plan
    full["pinned_waiting"] = 0
    assert seqshift.plan_migrations([full, rank(1, 1, free=99)], [8, 4]).moves == ()


def test_reasons():
    assert seqshift.plan_migrations([rank(0, 9)], [16, 8]).reasons == ("single_rank",)
    assert seqshift.plan_migrations([rank(0, 8), rank(1, 1)], [16, 8]).reasons == ("already_lowest",)
    full = seqshift.plan_migrations([rank(0, 12), rank(1, 4)], [16, 8], max_num_seqs=4)
    assert full.reasons == ("blocked_by_max_num_seqs",)
    short = [rank(0, 12), rank(1, 2, free=0)]
    assert seqshift.plan_migrations(short, [16, 8]).reasons == ("blocked_by_kv",)
    pinned = [rank(0, 12), rank(1, 2)]
    for sequence in pinned[0]["sequences"]:
        sequence["movable"] = False
    assert seqshift.plan_migrations(pinned, [16, 8]).reasons == ("blocked_by_pins",)
    # Nobody is pinned: with KV for them, requests would wait elsewhere.
    waiting = [{"rank": 0, "running": 1, "waiting": 3, "free_kv_blocks": 0}, {"rank": 1, "running": 0}]
    assert seqshift.plan_migrations(waiting, []).reasons == ("waiting_served", "blocked_by_kv")
    waiting = [
        {"rank": 0, "running": 0, "free_kv_blocks": 0},
        {"rank": 1, "running": 0, "waiting": 3, "waiting_kv_blocks": 2},
    ]
    assert seqshift.plan_migrations(waiting, [8, 4, 2, 1]).reasons == ("blocked_by_kv",)
    enough = [rank(0, 12), rank(1, 2)]
    assert seqshift.plan_migrations(enough, [16, 8], minimum_gain=0.6).reasons == ("below_minimum_gain",)


@pytest.mark.parametrize(
    ("loads", "more", "field", "value"),
    [
        ([], {}, "loads", "empty"),
        ("x", {}, "loads", "'x'"),
        ([3], {}, "loads[0]", "3"),
        ([{"running": 1}], {}, "loads[0].rank", "missing"),
        ([rank(0, 1), rank(0, 1)], {}, "rank", "0"),
        ([{"rank": 0, "running": -1}], {}, "loads[0].running", "-1"),
        ([{"rank": 0, "running": True}], {}, "loads[0].running", "True"),
        ([{"rank": 0, "running": 1.5}], {}, "loads[0].running", "1.5"),
        ([{"rank": 0, "running": 2**40}], {}, "loads[0].running", str(2**40)),
        ([{"rank": 0, "running": 1, "wait": 1}], {}, "loads[0].wait", "1"),
        ([seqshift.RankLoad(0, 1, waiting=-2)], {}, "loads[0].waiting", "-2"),
        ([rank(0, 1, free=-5)], {}, "loads[0].free_kv_blocks", "-5"),
        ([rank(0, 1, max_num_seqs="a")], {}, "loads[0].max_num_seqs", "'a'"),
        ([{**rank(0, 2), "running": 1}], {}, "loads[0].sequences", "2"),
        ([{**rank(0, 2), "running": 3}], {}, "loads[0].sequences", "2"),
        ([rank(0, 1, 2, waiting_kv_blocks=[1])], {}, "loads[0].waiting_kv_blocks", "1"),
        ([rank(0, 1, 2, waiting_kv_blocks=[1, -1])], {}, "loads[0].waiting_kv_blocks[1]", "-1"),
        ([rank(0, 1, 2, waiting_kv_blocks="x")], {}, "loads[0].waiting_kv_blocks", "'x'"),
        ([rank(0, 1, pinned_waiting=-1)], {}, "loads[0].pinned_waiting", "-1"),
        ([rank(0, 1, pinned_waiting=None)], {}, "loads[0].pinned_waiting", "None"),
        (
            [rank(0, 1, pinned_waiting=2, pinned_waiting_kv_blocks=[1])],
            {},
            "loads[0].pinned_waiting_kv_blocks",
            "1 entries, but pinned_waiting = 2; give one per request",
        ),
        (
            [rank(0, 1, pinned_waiting_kv_blocks=[3])],
            {},
            "loads[0].pinned_waiting_kv_blocks",
            "1 entries, but pinned_waiting = 0",
        ),
        ([rank(0, 1, pinned_waiting=1, pinned_waiting_kv_blocks=["a"])], {}, "pinned_waiting_kv_blocks[0]", "'a'"),
        ([rank(0, 1, pinned_waiting=2**26)], {}, "loads", "running and waiting in total"),
        ([{"rank": 0, "running": 1, "sequences": [{"request_id": "a"}]}], {}, "sequences[0].kv_blocks", "missing"),
        (
            [{"rank": 0, "running": 1, "sequences": [{"request_id": "a", "kv_blocks": 1, "movable": 2}]}],
            {},
            "sequences[0].movable",
            "2",
        ),
        ([with_ids("a", "b", "a")], {}, "loads[0].sequences[2].request_id", "'a': loads[0].sequences[0]"),
        ([with_ids([])], {}, "loads[0].sequences[0].request_id", "[]: must be hashable"),
        ([{"rank": 0, "running": 10**5000}], {}, "loads[0].running", "must be an integer"),
        ([{"rank": 0, "running": "x" * 5000}], {}, "loads[0].running", "... (5002 characters)"),
        ([rank(0, 1)], {"graph_batch_sizes": [8, 0]}, "graph_batch_sizes[1]", "0"),
        ([rank(0, 1)], {"graph_batch_sizes": "8"}, "graph_batch_sizes", "'8'"),
        ([rank(0, 1)], {"max_num_seqs": -1}, "max_num_seqs", "-1"),
        ([rank(0, 1)], {"minimum_gain": 1.5}, "minimum_gain", "1.5"),
        ([rank(0, 1)], {"minimum_gain": float("nan")}, "minimum_gain", "nan"),
    ],
)
def test_errors_name_field_and_value(loads, more, field, value):
    gears = more.pop("graph_batch_sizes", [8, 4])
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - field and value are compared below
        seqshift.plan_migrations(loads, gears, **more)
    assert field in str(caught.value)
    assert value in str(caught.value)


def run(*args):
    return subprocess.run([sys.executable, "-m", "seqshift", "plan", *args], capture_output=True, text=True)


def test_command(tmp_path):
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"graph_batch_sizes": [16, 8, 4], "loads": [rank(0, 12), rank(1, 2)]}))
    out = run(str(file), "--json")
    assert out.returncode == 0, out.stderr
    expected = seqshift.plan_migrations([rank(0, 12), rank(1, 2)], [16, 8, 4]).to_dict()
    assert json.loads(out.stdout) == expected
    out = run(str(file))
    assert out.returncode == 0, out.stderr
    assert "gear 16 -> 8" in out.stdout


@pytest.mark.parametrize("id", ["r[/a]", "req[a]", "[bold]x[/bold]", ":smile:", "\u001b[31mred", "a\\[b]"])
def test_ids_are_printed_as_they_are(tmp_path, monkeypatch, id):
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"graph_batch_sizes": [2, 1], "loads": [with_ids("b", id), rank(1, 0)]}))
    monkeypatch.setenv("COLUMNS", "160")
    out = CliRunner().invoke(app, ["plan", str(file)])
    assert out.exit_code == 0, out.exception
    assert seqshift.plan_migrations([with_ids("b", id), rank(1, 0)], [2, 1]).moves[0].request_ids == (id,)
    assert (id if id.isprintable() else ascii(id)) in out.stdout


def test_places_of_waiting_requests_are_printed(tmp_path):
    file = tmp_path / "state.json"
    waiting = {"rank": 0, "running": 0, "waiting": 2, "free_kv_blocks": 0, "waiting_kv_blocks": [5, 1]}
    loads = [waiting, {"rank": 1, "running": 0, "free_kv_blocks": 4}]
    file.write_text(json.dumps({"graph_batch_sizes": [2, 1], "loads": loads}))
    assert "position 1" in CliRunner().invoke(app, ["plan", str(file)]).stdout


def test_pinned_waiting_requests_in_a_file(tmp_path, monkeypatch):
    file = tmp_path / "state.json"
    loads = [rank(0, 2, max_num_seqs=2, pinned_waiting=1, pinned_waiting_kv_blocks=3), rank(1, 0)]
    file.write_text(json.dumps({"graph_batch_sizes": [4, 2], "loads": loads}))
    monkeypatch.setenv("COLUMNS", "160")
    out = CliRunner().invoke(app, ["plan", str(file)])
    assert out.exit_code == 0, out.stderr
    assert "0 + 1 pinned" in out.stdout
    assert "waiting_served" in out.stdout
    assert "0-1" in out.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("[" * 100_000, "nested too deeply"),
        (
            '{"loads": [{"rank": 0, "running": ' + "1" * 5000 + '}], "graph_batch_sizes": [4]}',
            "a number of 5000 digits",
        ),
        ('{"loads": [{"rank": 0, "rank": 1, "running": 2}], "graph_batch_sizes": [4]}', "rank = 1: given twice"),
        ('{"graph_batch_sizes": [4], "loads": [], "graph_batch_sizes": [8]}', "graph_batch_sizes = [8]: given twice"),
        ("{\n]", "line 2"),
        ("[]", "must be an object"),
        ('{"loads": []}', "graph_batch_sizes: missing"),
        ('{"loads": [], "graph_batch_sizes": [4], "gears": 1}', "gears = 1"),
        ('{"loads": [{"rank": 0, "running": -1}], "graph_batch_sizes": [4]}', "loads[0].running = -1"),
    ],
)
def test_command_errors(tmp_path, text, message):
    file = tmp_path / "state.json"
    if text is not None:
        file.write_text(text)
    out = CliRunner().invoke(app, ["plan", str(file)])
    assert isinstance(out.exception, SystemExit)
    assert out.exit_code == 2
    assert message in out.stderr
    assert out.stderr.count("\n") == 1
    assert out.stdout == ""
