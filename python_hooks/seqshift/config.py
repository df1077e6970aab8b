"""`RolloutRebalanceConfig`: every setting with its default, its environment variable and its check.

A field takes its value from the first of: the argument, the dict or YAML file, the environment, the default. This
holds for every way of making a config, the constructor included, with one exception: `enable` is read from the
environment by `from_env` alone, because who passes a config means it to be used (see `resolve`).
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import logging
import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["BACKENDS", "TRIGGERS", "ConfigError", "RolloutRebalanceConfig"]

TRIGGERS = ("interval", "adaptive")
BACKENDS = ("auto", "cann", "mock")

_PREFIX = "ROLLOUT_REBALANCE_"
_log = logging.getLogger("seqshift")


class ConfigError(ValueError):
    """A setting that cannot be used: `field` names it, `value` is what was given, `problem` says what would do."""

    def __init__(self, field: str, value: Any, problem: str) -> None:
        super().__init__(f"{field} = {value!r}: {problem}")
        self.field = field
        self.value = value
        self.problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled by their message alone, and this one may come from a worker process.
        return ConfigError, (self.field, self.value, self.problem)


# --- Kinds of values: `parse` reads an environment variable, `check` returns the value to store or raises _Problem. ---


class _Problem(Exception):
    """What is wrong with a value, and the way out; the caller knows which field it is."""


class _Unset:
    """Stands for a field that was not given."""

    def __repr__(self) -> str:
        return "<unset>"


_UNSET = _Unset()
_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}


@dataclass(frozen=True)
class _Kind:
    parse: Callable[[str], Any]
    check: Callable[[Any], Any]


def _parse_boolean(text: str) -> bool:
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise _Problem("must be one of 0, 1, true, false") from None


def _check_boolean(value: Any) -> bool:
    if isinstance(value, numbers.Integral) and value in (0, 1):
        return bool(value)
    raise _Problem("must be True or False")


def _optional(kind: _Kind) -> _Kind:
    return _Kind(kind.parse, lambda value: None if value is None else kind.check(value))


def _parse_whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _Problem("must be a whole number") from None


# What the native side counts in 32 bits.
_MOST = 2**31 - 1


def _check_whole(value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _Problem(f"must be a whole number of at least {least}, not {type(value).__name__}")
    if value < least:
        raise _Problem(f"must be a whole number of at least {least}")
    if value > _MOST:
        raise _Problem(f"must be a whole number of at most {_MOST}")
    return int(value)


def _whole(least: int) -> _Kind:
    return _Kind(_parse_whole, lambda value: _check_whole(value, least))


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _Problem("must be a number") from None


def _number(wanted: str, accepts: Callable[[float], bool]) -> _Kind:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise _Problem(f"must be {wanted}, not {type(value).__name__}")
        if not math.isfinite(value) or not accepts(value):
            raise _Problem(f"must be {wanted}")
        return float(value)

    return _Kind(_parse_number, check)


def _choice(choices: tuple[str, ...]) -> _Kind:
    def check(value: Any) -> str:
        if isinstance(value, str) and value in choices:
            return str(value)
        raise _Problem(f"must be one of {', '.join(choices)}")

    return _Kind(str, check)


def _check_gears(value: Any) -> list[int]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _Problem(f"must be a list of batch sizes such as [64, 32, 16], not {type(value).__name__}")
    sizes = list(value)
    if not sizes:
        raise _Problem("must hold at least one batch size")
    for position, size in enumerate(sizes):
        try:
            sizes[position] = _check_whole(size, 1)
        except _Problem as problem:
            raise _Problem(f"batch size {size!r} {problem}") from None
    return sorted(set(sizes), reverse=True)


_SWITCH = _Kind(_parse_boolean, _check_boolean)
_GEARS = _Kind(lambda text: [_parse_whole(item) for item in text.split(",")], _check_gears)


def _setting(default: Any, kind: _Kind, meaning: str, *, agree: bool = True, variables: tuple[str, ...] = ()) -> Any:
    """A field. `agree`: all ranks must hold the same value. `variables`: names besides ROLLOUT_REBALANCE_<FIELD>."""
    metadata = {"default": default, "kind": kind, "meaning": meaning, "agree": agree, "variables": variables}
    return field(default=_UNSET, metadata=metadata)


@dataclass
class RolloutRebalanceConfig:
    """Settings of the rebalancing of sequences. Every assignment is checked; a bad value raises `ConfigError`."""

    enable: bool | None = _setting(
        None,
        _optional(_SWITCH),
        "whether to rebalance; unset: `ROLLOUT_REBALANCE_ENABLE` decides when no config is passed, else on",
        agree=False,
    )
    check_interval: int = _setting(1000, _whole(1), "decode steps between two checks")
    multi_graph: bool = _setting(True, _SWITCH, "compile a graph for each of the gears")
    graph_batch_sizes: list[int] = _setting(  # noqa: RUF009 - it returns a dataclasses.field
        (64, 32, 16, 8, 4), _GEARS, "the gears: graph batch sizes, in sequences per rank"
    )
    profile: bool = _setting(True, _SWITCH, "print profile lines", agree=False)
    profile_interval: int = _setting(100, _whole(1), "decode steps between two profile lines", agree=False)
    trigger: str = _setting("interval", _choice(TRIGGERS), "when to check: every `check_interval` steps, or adaptive")
    backend: str = _setting(
        "auto",
        _choice(BACKENDS),
        "native library: CANN, its CPU mock, or what is found",
        variables=("SEQSHIFT_BACKEND",),
    )
    deadline_seconds: float = _setting(
        60.0,
        _number("a number of seconds above 0, at most a day", lambda value: 0 < value <= 86_400),
        "longest wait on a peer, in seconds",
    )
    staging_mib: int = _setting(
        64, _whole(1), "staging per direction, in MiB of device memory; verify_kv takes as much pinned host memory"
    )
    comm_buffer_mib: int = _setting(64, _whole(1), "HCCL buffer of the project's own communicator, in MiB")
    verify_kv: bool = _setting(True, _SWITCH, "compare a digest of moved KV before a move is committed")
    precopy: bool = _setting(
        True,
        _SWITCH,
        "copy full KV blocks in the background while decoding goes on, where a stop would take several steps",
    )
    max_failures: int = _setting(
        3,
        _whole(1),
        "faults after which nothing more moves for the rest of the rollout; results and aborts still travel",
    )
    minimum_gain: float = _setting(
        0.0,
        _number("a fraction from 0 to 1", lambda value: 0 <= value <= 1),
        "predicted fraction of the rollout time that a plan must save",
    )

    def __setattr__(self, name: str, value: Any) -> None:
        known = _fields()
        if name not in known:
            raise ConfigError(name, value, _unknown(name))
        setting = known[name].metadata
        if value is _UNSET:
            value = _UNSET if name == "enable" else _from_environment(name, os.environ)
            value = setting["default"] if value is _UNSET else value
        try:
            value = setting["kind"].check(value)
        except _Problem as problem:
            raise ConfigError(name, value, str(problem)) from None
        object.__setattr__(self, name, value)

    @classmethod
    def from_env(cls, **arguments: Any) -> RolloutRebalanceConfig:
        """The environment's settings, `ROLLOUT_REBALANCE_ENABLE` included. Keyword arguments take precedence."""
        for variable in sorted(os.environ):
            name = variable[len(_PREFIX) :].lower()
            if variable.startswith(_PREFIX) and name not in _fields():
                _log.warning("%s is ignored: %s", variable, _unknown(name))
        if "enable" not in arguments:
            arguments["enable"] = _from_environment("enable", os.environ)
        return cls.from_dict(arguments)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], **arguments: Any) -> RolloutRebalanceConfig:
        """Settings from a mapping of field names (a dict, an OmegaConf node). Keyword arguments take precedence."""
        if not isinstance(mapping, Mapping):
            raise ConfigError("config", mapping, "must be a mapping of field names to values")
        given = {**mapping, **arguments}
        for name, value in given.items():
            if name not in _fields():
                raise ConfigError(str(name), value, _unknown(name))
        return cls(**given)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **arguments: Any) -> RolloutRebalanceConfig:
        """Settings from a YAML file whose top level holds field names. Keyword arguments take precedence."""
        import yaml

        try:
            content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ConfigError("config", str(path), f"is not a YAML file: {error}") from error
        if content is not None and not isinstance(content, Mapping):
            raise ConfigError("config", str(path), "must hold a mapping of field names to values at its top level")
        try:
            return cls.from_dict(content or {}, **arguments)
        except ConfigError as error:
            raise ConfigError(error.field, error.value, f"{error.problem} (in {path})") from None

    @classmethod
    def resolve(cls, config: RolloutRebalanceConfig | Mapping[str, Any] | None) -> RolloutRebalanceConfig:
        """The config to use, with `enable` decided: None asks the environment; a config or mapping that is passed is
        enabled unless it says otherwise."""
        if config is None:
            config = cls.from_env()
            return dataclasses.replace(config, enable=bool(config.enable))
        if not isinstance(config, cls):
            config = cls.from_dict(config)
        return dataclasses.replace(config, enable=config.enable is not False)

    def to_dict(self) -> dict[str, Any]:
        """A plain dict that `from_dict` reads back."""
        return dataclasses.asdict(self)

    def agreement_hash(self) -> str:
        """SHA-256, in hex, of the settings that all ranks must share: all but `enable`, which a rank without our hooks
        cannot tell, and what only concerns printing. Equal for equal settings on every platform and Python."""
        shared = {name: getattr(self, name) for name, entry in _fields().items() if entry.metadata["agree"]}
        text = json.dumps(shared, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _fields() -> dict[str, dataclasses.Field[Any]]:
    return RolloutRebalanceConfig.__dataclass_fields__


def _unknown(name: Any) -> str:
    close = difflib.get_close_matches(str(name), _fields(), n=1)
    return f"no such field{f', did you mean {close[0]}' if close else ''}; there are {', '.join(_fields())}"


def variables_of(name: str) -> tuple[str, ...]:
    """The environment variables that set a field; the first that is set and not empty counts."""
    return (_PREFIX + name.upper(), *_fields()[name].metadata["variables"])


def _from_environment(name: str, environment: Mapping[str, str]) -> Any:
    """A field's checked value from its environment variable, or _UNSET."""
    kind = _fields()[name].metadata["kind"]
    for variable in variables_of(name):
        text = environment.get(variable, "").strip()
        if not text:
            continue
        try:
            return kind.check(kind.parse(text))
        except _Problem as problem:
            raise ConfigError(name, text, f"{problem} (environment variable {variable})") from None
    return _UNSET
