"""RolloutRebalanceConfig: where values come from, which are refused and how, and what ranks must agree on."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import pickle
import re
import subprocess
import sys
from collections import UserDict, UserList
from pathlib import Path

import pytest
from seqshift.config import ConfigError, RolloutRebalanceConfig, variables_of

DEFAULTS = {
    "enable": None,
    "check_interval": 1000,
    "multi_graph": True,
    "graph_batch_sizes": [64, 32, 16, 8, 4],
    "profile": True,
    "profile_interval": 100,
    "trigger": "interval",
    "backend": "auto",
    "deadline_seconds": 60,
    "staging_mib": 64,
    "comm_buffer_mib": 64,
    "verify_kv": True,
    "precopy": True,
    "max_failures": 3,
    "minimum_gain": 0.0,
}
# For each field: another value, and the text that says it in the environment.
OTHERS = {
    "enable": (True, "true"),
    "check_interval": (7, "7"),
    "multi_graph": (False, "0"),
    "graph_batch_sizes": ([12, 6], " 6, 12 "),
    "profile": (False, "false"),
    "profile_interval": (9, " 9 "),
    "trigger": ("adaptive", "adaptive"),
    "backend": ("mock", "mock"),
    "deadline_seconds": (2.5, "2.5"),
    "staging_mib": (1, "1"),
    "comm_buffer_mib": (2, "2"),
    "verify_kv": (False, "FALSE"),
    "precopy": (False, "False"),
    "max_failures": (1, "1"),
    "minimum_gain": (0.25, "0.25"),
}
WHOLE = ["check_interval", "profile_interval", "staging_mib", "comm_buffer_mib", "max_failures"]
SWITCHES = ["enable", "multi_graph", "profile", "verify_kv", "precopy"]
PRINT_ONLY = {"profile", "profile_interval"}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No test sees the variables of whoever runs it."""
    for name in list(os.environ):
        if name.startswith("ROLLOUT_REBALANCE_") or name == "SEQSHIFT_BACKEND":
            monkeypatch.delenv(name)
    return monkeypatch


def values(config):
    return {name: getattr(config, name) for name in DEFAULTS}


# --- Sources and their precedence ---


def test_fields_and_defaults():
    assert [field.name for field in dataclasses.fields(RolloutRebalanceConfig)] == list(DEFAULTS)
    assert values(RolloutRebalanceConfig()) == DEFAULTS
    assert values(RolloutRebalanceConfig.from_env()) == DEFAULTS
    assert values(RolloutRebalanceConfig.from_dict({})) == DEFAULTS


def test_the_default_list_is_not_shared():
    RolloutRebalanceConfig().graph_batch_sizes.append(1)
    assert RolloutRebalanceConfig().graph_batch_sizes == DEFAULTS["graph_batch_sizes"]


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_field_from_each_source(name, environment, tmp_path):
    value, text = OTHERS[name]
    expected = {**DEFAULTS, name: value}
    path = tmp_path / "config.yaml"
    path.write_text(f"{name}: {value!r}\n".replace("True", "true").replace("False", "false"))
    assert values(RolloutRebalanceConfig(**{name: value})) == expected
    assert values(RolloutRebalanceConfig.from_dict({name: value})) == expected
    assert values(RolloutRebalanceConfig.from_yaml(path)) == expected
    environment.setenv(f"ROLLOUT_REBALANCE_{name.upper()}", text)
    assert values(RolloutRebalanceConfig.from_env()) == expected


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name != "enable"])
def test_argument_before_dict_and_yaml_before_environment_before_default(name, environment, tmp_path):
    value, text = OTHERS[name]
    default = DEFAULTS[name]
    path = tmp_path / "config.yaml"
    path.write_text(f"{name}: {default}\n")
    environment.setenv(f"ROLLOUT_REBALANCE_{name.upper()}", text)
    for filled in (
        RolloutRebalanceConfig(),
        RolloutRebalanceConfig.from_dict({}),
        RolloutRebalanceConfig.from_dict({name: default}, **{name: value}),
        RolloutRebalanceConfig.from_yaml(path, **{name: value}),
    ):
        assert getattr(filled, name) == value
    for given in (
        RolloutRebalanceConfig(**{name: default}),
        RolloutRebalanceConfig.from_env(**{name: default}),
        RolloutRebalanceConfig.from_dict({name: default}),
        RolloutRebalanceConfig.from_yaml(path),
    ):
        assert getattr(given, name) == default


def test_backend_has_a_second_variable_that_gives_way_to_the_first(environment):
    environment.setenv("SEQSHIFT_BACKEND", "mock")
    assert RolloutRebalanceConfig().backend == "mock"
    environment.setenv("ROLLOUT_REBALANCE_BACKEND", "cann")
    assert RolloutRebalanceConfig().backend == "cann"


def test_an_empty_variable_counts_as_unset(environment):
    for name in DEFAULTS:
        environment.setenv(f"ROLLOUT_REBALANCE_{name.upper()}", " ")
    assert values(RolloutRebalanceConfig.from_env()) == DEFAULTS


@pytest.mark.parametrize("text", ["1", "true", "True", "TRUE", " 1"])
def test_words_for_true(text, environment):
    environment.setenv("ROLLOUT_REBALANCE_ENABLE", text)
    assert RolloutRebalanceConfig.from_env().enable is True


@pytest.mark.parametrize("text", ["0", "false", "False", "FALSE"])
def test_words_for_false(text, environment):
    environment.setenv("ROLLOUT_REBALANCE_ENABLE", text)
    assert RolloutRebalanceConfig.from_env().enable is False


def test_a_misspelt_variable_is_named_in_the_log(environment, caplog):
    environment.setenv("ROLLOUT_REBALANCE_CHECK_INTERVALL", "5")
    with caplog.at_level(logging.WARNING, logger="seqshift"):
        RolloutRebalanceConfig.from_env()
    assert "ROLLOUT_REBALANCE_CHECK_INTERVALL is ignored: no such field, did you mean check_interval" in caplog.text


def test_mappings_and_lists_of_other_libraries_are_read():
    config = RolloutRebalanceConfig.from_dict(UserDict(graph_batch_sizes=UserList([4, 8]), profile=False))
    assert config.graph_batch_sizes == [8, 4]
    assert type(config.graph_batch_sizes) is list
    assert config.profile is False


def test_an_empty_yaml_file_changes_nothing(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    assert values(RolloutRebalanceConfig.from_yaml(path)) == DEFAULTS


def test_to_dict_is_read_back():
    config = RolloutRebalanceConfig(**{name: value for name, (value, _) in OTHERS.items()})
    assert RolloutRebalanceConfig.from_dict(config.to_dict()) == config
    assert pickle.loads(pickle.dumps(config)) == config


# --- enable ---


@pytest.mark.parametrize(
    ("variable", "passed", "expected"),
    [
        (None, None, False),
        ("0", None, False),
        ("1", None, True),
        (None, {}, True),
        ("0", {}, True),
        ("1", {"enable": False}, False),
        ("0", {"enable": True}, True),
        (None, {"enable": None}, True),
    ],
)
def test_enable_asks_the_environment_only_when_no_config_is_passed(variable, passed, expected, environment):
    if variable is not None:
        environment.setenv("ROLLOUT_REBALANCE_ENABLE", variable)
    assert RolloutRebalanceConfig.resolve(passed).enable is expected
    if passed is not None:
        config = RolloutRebalanceConfig(**passed)
        assert RolloutRebalanceConfig.resolve(config).enable is expected
        assert config.enable is passed.get("enable")


def test_from_env_takes_the_variable_as_any_other(environment):
    environment.setenv("ROLLOUT_REBALANCE_ENABLE", "0")
    assert RolloutRebalanceConfig.resolve(RolloutRebalanceConfig.from_env()).enable is False


def test_resolve_keeps_the_other_settings():
    config = RolloutRebalanceConfig(check_interval=5, backend="mock")
    assert values(RolloutRebalanceConfig.resolve(config)) == {**values(config), "enable": True}


# --- Values that are refused ---

BAD = [
    *[(name, value) for name in WHOLE for value in (-1, 0, True, "5", 5.0, 2.5, None, math.nan, [5])],
    *[(name, value) for name in SWITCHES for value in ("yes", "1", 2, -1, 1.0, [])],
    *[(name, None) for name in SWITCHES if name != "enable"],
    *[("deadline_seconds", value) for value in (0, -1, math.nan, math.inf, "60", True, None)],
    *[("minimum_gain", value) for value in (-0.1, 1.5, math.nan, math.inf, "0.1", False, None)],
    *[(name, value) for name in ("trigger", "backend") for value in ("", "npu", "AUTO", 1, None, ["auto"])],
    *[
        ("graph_batch_sizes", value)
        for value in ([], (), [0], [8, -4], [8, True], [8, "4"], [8, 4.0], [math.nan], "8,4", 8, None, {8: 4})
    ],
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_refused_by_every_way_in(name, value):
    words = re.escape(f"{name} = {value!r}: ") + ".*must"
    for way in (
        lambda: RolloutRebalanceConfig(**{name: value}),
        lambda: RolloutRebalanceConfig.from_dict({name: value}),
        lambda: RolloutRebalanceConfig.from_env(**{name: value}),
        lambda: setattr(RolloutRebalanceConfig(), name, value),
        lambda: RolloutRebalanceConfig.resolve({name: value}),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            way()
        assert caught.value.field == name
        assert caught.value.value is value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("enable", "yes"),
        ("profile", "2"),
        ("check_interval", "-5"),
        ("check_interval", "ten"),
        ("check_interval", "5.5"),
        ("graph_batch_sizes", "64,,32"),
        ("graph_batch_sizes", ","),
        ("graph_batch_sizes", "64,0"),
        ("graph_batch_sizes", "64 32"),
        ("trigger", "sometimes"),
        ("backend", "gpu"),
        ("deadline_seconds", "nan"),
        ("deadline_seconds", "soon"),
        ("minimum_gain", "2"),
    ],
)
def test_a_bad_variable_is_refused_by_name(name, text, environment):
    for variable in variables_of(name):
        environment.setenv(variable, text)
        words = re.escape(f"{name} = {text!r}: ") + rf".*must .*\(environment variable {variable}\)"
        with pytest.raises(ConfigError, match=words):
            RolloutRebalanceConfig.from_env()
        environment.delenv(variable)


def test_an_unknown_key_is_refused_with_what_was_meant():
    with pytest.raises(ValueError, match="check_intervall = 5: no such field, did you mean check_interval; there are"):
        RolloutRebalanceConfig.from_dict({"check_intervall": 5})
    with pytest.raises(ValueError, match="3 = 4: no such field; there are enable, check_interval"):
        RolloutRebalanceConfig.from_dict({3: 4})
    with pytest.raises(ValueError, match="graphs = 1: no such field"):
        RolloutRebalanceConfig().graphs = 1
    with pytest.raises(TypeError, match="graphs"):
        RolloutRebalanceConfig(graphs=1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("check_interval: -3\n", r"check_interval = -3: must .*\(in .*bad\.yaml\)"),
        ("minimum_gain: 1e-3\n", r"minimum_gain = '1e-3': must .* not str \(in .*bad\.yaml\)"),
        ("gears: [4]\n", r"gears = \[4\]: no such field.*bad\.yaml"),
        ("- 1\n", r"bad\.yaml': must hold a mapping"),
        ("a: [1\n", r"bad\.yaml': is not a YAML file"),
    ],
)
def test_a_bad_yaml_file_is_named(content, words, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        RolloutRebalanceConfig.from_yaml(path)


@pytest.mark.parametrize("bad", [3, "check_interval", [("check_interval", 3)]])
def test_what_is_no_mapping_is_refused(bad):
    with pytest.raises(ConfigError, match="must be a mapping"):
        RolloutRebalanceConfig.from_dict(bad)


def test_the_error_survives_the_way_out_of_a_worker_process():
    error = pickle.loads(pickle.dumps(ConfigError("check_interval", -1, "must be positive")))
    assert (error.field, error.value, str(error)) == ("check_interval", -1, "check_interval = -1: must be positive")


@pytest.mark.parametrize("given", [[4, 8, 16], [16, 8, 4], (8, 4, 16), [8, 16, 8, 4, 4], {4, 8, 16}])
def test_gears_are_sorted_downwards_without_repeats(given):
    assert RolloutRebalanceConfig(graph_batch_sizes=given).graph_batch_sizes == [16, 8, 4]


# --- What ranks agree on ---


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name != "enable"])
def test_the_agreement_hash_depends_on_all_but_what_only_prints(name):
    changed = RolloutRebalanceConfig(**{name: OTHERS[name][0]}).agreement_hash()
    assert (changed == RolloutRebalanceConfig().agreement_hash()) == (name in PRINT_ONLY)


def test_the_agreement_hash_is_of_values_not_of_how_they_were_written():
    first = RolloutRebalanceConfig(
        graph_batch_sizes=[4, 8], deadline_seconds=30, minimum_gain=0, profile=1, enable=True
    )
    second = RolloutRebalanceConfig(graph_batch_sizes=(8, 4, 4), deadline_seconds=30.0)
    assert first.agreement_hash() == second.agreement_hash()


def test_the_agreement_hash_is_the_same_in_another_process():
    code = "from seqshift.config import RolloutRebalanceConfig as C; print(C(check_interval=3).agreement_hash())"
    environment = {**os.environ, "PYTHONHASHSEED": "17"}
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert out.stdout.strip() == RolloutRebalanceConfig(check_interval=3).agreement_hash()


# --- The README's table ---


def test_the_readme_lists_every_field_with_its_default_and_variables():
    def written(value):
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        if isinstance(value, tuple):
            return str(list(value))
        return "unset" if value is None else str(value)

    expected = [
        f"| `{field.name}` | `{written(field.metadata['default'])}` "
        f"| {', '.join(f'`{name}`' for name in variables_of(field.name))} | {field.metadata['meaning']} |"
        for field in dataclasses.fields(RolloutRebalanceConfig)
    ]
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    section = readme.split("\n## Configuration\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == expected
