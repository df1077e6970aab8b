"""Makes verl's load balancer, its factory and its client importable without verl's requirements.

A pytest plugin of the inner run (`-p lean`), in the venv of `tests/bed/verl_env.py`. Parent packages are registered
empty with their real `__path__`, so that no `__init__` runs; the few names that the files in question take from
heavy modules are stand-ins. What is tested is verl's own code: `router.py`, `llm_server.py`, and its test file.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
import types
from pathlib import Path

import pytest
import ray

WHEELS = Path(os.environ["SEQSHIFT_TEST_VERL"])
NEWEST = "0.9.1"
PACKAGES = ("verl", "verl.utils", "verl.workers", "verl.workers.rollout", "verl.experimental")


class TokenOutput(types.SimpleNamespace):
    """Stands in for verl's, which is a model of pydantic."""

    def __init__(self, **fields):
        blank = {"routed_experts": None, "num_preempted": 0, "stop_reason": "completed", "log_probs": None}
        super().__init__(**{**blank, "extra_fields": {}, **fields})


# Names that verl's files import from modules with heavy requirements.
STAND_INS = {
    "verl.utils": {"normalize_token_ids": list, "hf_tokenizer": None},
    "verl.utils.tracking": {"RLInsightLogger": None},
    "verl.single_controller": {},
    "verl.single_controller.ray": {},
    "verl.single_controller.ray.base": {"RayResourcePool": object, "RayWorkerGroup": object},
    "verl.workers.rollout.replica": {
        "RolloutReplica": object,
        "TokenOutput": TokenOutput,
        "get_rollout_replica_class": None,
    },
    "verl.workers.rollout.utils": {"update_prometheus_config": None},
    "verl.experimental.agent_loop": {"get_trajectory_info": None},
    "verl.protocol": {"DataProto": object},
    "verl.tools": {},
    "verl.tools.base_tool": {"BaseTool": object, "OpenAIFunctionToolSchema": object},
    "verl.tools.schemas": {"ToolResponse": object},
    "transformers": {},
    "transformers.utils": {"get_json_schema": None},
    "tests.experimental": {},
    "tests.experimental.agent_loop": {},
    "tests.experimental.agent_loop.agent_utils": {"init_agent_loop_manager": None},
}


@contextlib.contextmanager
def installed(version: str):
    """verl of `version` is what `import verl` and its distribution's metadata find."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "verl"}
    wheel = WHEELS / version
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(wheel.joinpath(*name.split(".")))]
        sys.modules[name] = package
    for name, names in STAND_INS.items():
        module = sys.modules.setdefault(name, types.ModuleType(name))
        for attribute, value in names.items():
            setattr(module, attribute, value)
    sys.path.insert(0, str(wheel))
    try:
        yield
    finally:
        sys.path.remove(str(wheel))
        for name in [name for name in sys.modules if name.split(".")[0] == "verl"]:
            del sys.modules[name]
        sys.modules.update(before)


# The newest is there for the whole run; verl's own tests find our class in place of theirs.
_newest = contextlib.ExitStack()
_newest.enter_context(installed(NEWEST))


def pytest_unconfigure() -> None:
    """Pytest's hook at its end."""
    _newest.close()


def replace_balancer() -> None:
    from seqshift.integrations.verl import Router

    importlib.import_module("verl.workers.rollout.router").GlobalRequestLoadBalancer = Router


replace_balancer()


@pytest.fixture(scope="session", autouse=True)
def ray_session():
    """One small Ray for the whole run; verl's own fixture finds it initialised."""
    folder = tempfile.mkdtemp(prefix=os.environ["SEQSHIFT_TEST_RAY_PREFIX"], dir="/tmp")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, _temp_dir=folder)
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


class Replica:
    """Stands in for an inference server: says who it is."""

    def __init__(self, name: str):
        self.name = name

    def generate(self, request_id, prompt_ids, **_):
        """An output whose one token is the length of the prompt."""
        return TokenOutput(token_ids=[len(prompt_ids)], extra_fields={"global_steps": 1, "by": self.name})


@pytest.fixture(scope="session")
def replicas():
    """Two servers by address."""
    return {name: ray.remote(num_cpus=0)(Replica).remote(name) for name in ("r0", "r1")}


def manager(llm_server, servers, balancer_class=None, **rollout):
    """verl's `LLMServerManager` as after its servers have started, before it makes the load balancer."""
    made = object.__new__(llm_server.LLMServerManager)
    made.rollout_config = types.SimpleNamespace(name="vllm", **rollout)
    made.config = types.SimpleNamespace(actor_rollout_ref=types.SimpleNamespace(rollout=made.rollout_config))
    made.server_addresses = list(servers)
    made.server_handles = list(servers.values())
    made._load_balancer_cls = balancer_class
    return made
