"""Field-by-field comparison of what `LLM.generate` returns.

`record` turns RequestOutputs into plain values inside the rank, so that they can be pickled to a process without
vLLM; `differences` compares two lists of them exactly, or with a tolerance for logprobs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

# One position: token id -> (logprob, rank, decoded token), in the order vLLM gave them.
Position = list[tuple[int, float, "int | None", "str | None"]]
# More would not be read.
SHOWN = 30


@dataclass(frozen=True)
class CompletionRecord:
    """All fields of a CompletionOutput."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None
    logprobs: tuple[Position, ...] | None
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(frozen=True)
class OutputRecord:
    """All fields of a RequestOutput that a caller of generate() sees."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[Position | None, ...] | None
    finished: bool
    num_cached_tokens: int | None
    outputs: tuple[CompletionRecord, ...]


def record(outputs: list[Any]) -> list[OutputRecord]:
    """Plain copies of RequestOutputs, in their order."""
    return [
        OutputRecord(
            o.request_id,
            o.prompt,
            tuple(o.prompt_token_ids),
            _positions(o.prompt_logprobs),
            o.finished,
            o.num_cached_tokens,
            tuple(
                CompletionRecord(
                    c.index,
                    c.text,
                    tuple(c.token_ids),
                    None if c.cumulative_logprob is None else float(c.cumulative_logprob),
                    _positions(c.logprobs),
                    c.finish_reason,
                    c.stop_reason,
                )
                for c in o.outputs
            ),
        )
        for o in outputs
    ]


def differences(
    expected: list[OutputRecord],
    actual: list[OutputRecord],
    *,
    logprob_tolerance: float = 0.0,
    ignore: tuple[str, ...] = (),
) -> list[str]:
    """Every difference as one line, `[]` if there is none.

    `logprob_tolerance` is absolute and per position (cumulative values get it times their number of tokens); 0
    means equal. With a tolerance, entries that two near-equal logprobs have swapped are compared by token id.
    `ignore` names fields of the two records that may differ.
    """
    found: list[str] = []
    if [o.request_id for o in expected] != [o.request_id for o in actual]:
        found.append(f"request ids: {[o.request_id for o in expected]} != {[o.request_id for o in actual]}")
        return found
    for one, two in zip(expected, actual):
        where = f"request {one.request_id}"
        for name in _names(OutputRecord, ignore):
            a, b = getattr(one, name), getattr(two, name)
            if name == "outputs":
                if [c.index for c in a] != [c.index for c in b]:
                    found.append(f"{where}: completion indices {[c.index for c in a]} != {[c.index for c in b]}")
                    continue
                for x, y in zip(a, b):
                    found += _completion(f"{where}[{x.index}]", x, y, logprob_tolerance, ignore)
            elif name == "prompt_logprobs":
                found += _compare_positions(f"{where}: {name}", a, b, logprob_tolerance)
            elif a != b:
                found.append(f"{where}: {name}: {_short(a)} != {_short(b)}")
    return found


def assert_equal(expected: list[OutputRecord], actual: list[OutputRecord], what: str = "", **options: Any) -> None:
    """Raises AssertionError with the differences, if any."""
    found = differences(expected, actual, **options)
    if found:
        more = f"\n... and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise AssertionError(f"{what}: {len(found)} differences\n" + "\n".join(found[:SHOWN]) + more)


def _completion(
    where: str, one: CompletionRecord, two: CompletionRecord, tolerance: float, ignore: tuple[str, ...]
) -> list[str]:
    found = []
    for name in _names(CompletionRecord, ignore):
        a, b = getattr(one, name), getattr(two, name)
        if name == "logprobs":
            found += _compare_positions(f"{where}: {name}", a, b, tolerance)
        elif name == "cumulative_logprob" and None not in (a, b):
            if not _close(a, b, tolerance * max(1, len(one.token_ids))):
                found.append(f"{where}: {name}: {a!r} != {b!r}")
        elif name == "token_ids" and a != b:
            at = _first_difference(a, b)
            found.append(
                f"{where}: token_ids: lengths {len(a)} and {len(b)}, first difference at {at}: "
                f"{list(a[at : at + 6])} != {list(b[at : at + 6])}"
            )
        elif a != b:
            found.append(f"{where}: {name}: {_short(a)} != {_short(b)}")
    return found


def _compare_positions(where: str, a: Any, b: Any, tolerance: float) -> list[str]:
    if a is None or b is None:
        return [] if a is b else [f"{where}: {_short(a)} != {_short(b)}"]
    if len(a) != len(b):
        return [f"{where}: {len(a)} positions != {len(b)}"]
    wrong = [i for i, (x, y) in enumerate(zip(a, b)) if not _same_position(x, y, tolerance)]
    if not wrong:
        return []
    at = wrong[0]
    return [f"{where}: {len(wrong)} of {len(a)} positions differ, first at {at}: {_short(a[at])} != {_short(b[at])}"]


def _same_position(x: Position | None, y: Position | None, tolerance: float) -> bool:
    if x is None or y is None or tolerance == 0.0:
        return x == y
    left, right = ({e[0]: e for e in p} for p in (x, y))
    if len(x) != len(y):
        return False
    # The lowest entry of one side may be another token on the other, at a near-equal value.
    return all(_close(p[1], q[1], tolerance) for p, q in zip(sorted(x, key=_value), sorted(y, key=_value))) and all(
        left[t][3] == right[t][3] for t in left.keys() & right.keys()
    )


def _value(entry: tuple) -> float:
    return -entry[1]


def _close(a: float, b: float, tolerance: float) -> bool:
    return a == b or (math.isfinite(a) and math.isfinite(b) and abs(a - b) <= tolerance)


def _positions(logprobs: Any) -> Any:
    if logprobs is None:
        return None
    return tuple(
        None if p is None else [(int(t), float(e.logprob), e.rank, e.decoded_token) for t, e in p.items()]
        for p in logprobs
    )


def _names(cls: type, ignore: tuple[str, ...]) -> list[str]:
    return [f.name for f in fields(cls) if f.name not in ignore]


def _first_difference(a: tuple, b: tuple) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:120]} ... {text[-30:]}"
