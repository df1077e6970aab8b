"""The vllm.general_plugins entry point: when it installs the hooks, and that it never raises into vLLM."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import spec_from_loader
from types import ModuleType, SimpleNamespace

import pytest
from seqshift import plugin


@pytest.fixture
def rebalance(monkeypatch):
    """A stand-in for `seqshift.rebalance` that keeps the configs it was enabled with."""
    module = ModuleType("seqshift.rebalance")
    module.configs = []
    module.enable_rollout_rebalance = module.configs.append
    monkeypatch.setitem(sys.modules, "seqshift.rebalance", module)
    monkeypatch.delenv("ROLLOUT_REBALANCE_ENABLE", raising=False)
    return module


def test_vllm_finds_the_entry_point():
    found = [point for point in entry_points(group="vllm.general_plugins") if point.name == "seqshift"]
    assert [point.load() for point in found] == [plugin.register]


@pytest.mark.parametrize("value", [None, "", "0", "false"])
def test_nothing_happens_unless_asked_for(value, rebalance, monkeypatch, caplog):
    if value is not None:
        monkeypatch.setenv("ROLLOUT_REBALANCE_ENABLE", value)
    plugin.register()
    assert rebalance.configs == []
    assert caplog.records == []


def test_it_enables_with_the_settings_of_the_environment_each_time_it_is_called(rebalance, monkeypatch):
    monkeypatch.setenv("ROLLOUT_REBALANCE_ENABLE", "1")
    monkeypatch.setenv("ROLLOUT_REBALANCE_CHECK_INTERVAL", "7")
    plugin.register()
    plugin.register()
    assert [(config.enable, config.check_interval) for config in rebalance.configs] == 2 * [(True, 7)]


@pytest.mark.parametrize(
    ("variable", "value"), [("ROLLOUT_REBALANCE_ENABLE", "yes"), ("ROLLOUT_REBALANCE_CHECK_INTERVAL", "-1")]
)
def test_a_bad_setting_is_one_error_in_the_log(variable, value, rebalance, monkeypatch, caplog):
    monkeypatch.setenv("ROLLOUT_REBALANCE_ENABLE", "1")
    monkeypatch.setenv(variable, value)
    plugin.register()
    assert rebalance.configs == []
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert value in record.getMessage()
    assert f"(environment variable {variable})" in record.getMessage()


def test_a_failure_to_install_is_logged_with_its_cause_and_goes_no_further(rebalance, monkeypatch, caplog):
    def fail(config):
        raise RuntimeError("unknown engine")

    rebalance.enable_rollout_rebalance = fail
    monkeypatch.setenv("ROLLOUT_REBALANCE_ENABLE", "1")
    plugin.register()
    assert "hooks could not be installed" in caplog.text
    assert "unknown engine" in caplog.text


def test_the_process_that_inspects_model_classes_is_left_alone(rebalance, monkeypatch, caplog):
    spec = spec_from_loader("vllm.model_executor.models.registry", None)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    for value in ("1", "yes"):
        monkeypatch.setenv("ROLLOUT_REBALANCE_ENABLE", value)
        plugin.register()
    assert rebalance.configs == []
    assert caplog.records == []


def test_registering_without_being_asked_imports_neither_torch_nor_vllm():
    code = "import sys; from seqshift.plugin import register; register(); print({'torch', 'vllm'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env={})
    assert out.stdout.strip() == "set()"
