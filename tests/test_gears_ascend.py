"""Graph batch sizes as vLLM and vllm-ascend 0.9.1 get them from us, and as they come back.

The real `TorchairGraphConfig` and `CompilationConfig` judge what `place_gears` produces, in a process of their own
with vLLM's plugins off. The methods of vllm-ascend that rewrite the sizes need torch_npu to be imported; their source
is compiled out of the unpacked wheel and run as it stands.
"""

from __future__ import annotations

import ast
import copy
import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
from seqshift.gears import DEFAULT_MAX_NUM_SEQS, effective_gears, place_gears

ASCEND = Path(sys.prefix) / "ascend"
GEARS = [64, 32, 16, 8, 4]


def torchair(**settings):
    return {"torchair_graph_config": settings}


def frozen(value):
    """A copy that cannot be changed, down to its lists."""
    if isinstance(value, dict):
        return MappingProxyType({key: frozen(entry) for key, entry in value.items()})
    return tuple(value) if isinstance(value, list) else value


# --- What is placed where ---


@pytest.mark.parametrize(
    ("given", "max_num_seqs", "gears", "expected"),
    [
        ({}, 64, GEARS, [64, 32, 16, 8, 4]),
        ({}, 128, GEARS, [128, 64, 32, 16, 8, 4]),
        ({}, 20, GEARS, [20, 16, 8, 4]),
        ({}, 2, GEARS, [2]),
        ({}, None, GEARS, [DEFAULT_MAX_NUM_SEQS, 64, 32, 16, 8, 4]),
        ({"graph_batch_sizes": []}, 64, [4, 8], [64, 8, 4]),
        ({"graph_batch_sizes": [16]}, 64, GEARS, [16, 8, 4]),
        ({"graph_batch_sizes": [2, 48, 24]}, 64, GEARS, [48, 32, 16, 8, 4]),
        ({"graph_batch_sizes": [256]}, 64, GEARS, [256, 64, 32, 16, 8, 4]),
        ({"graph_batch_sizes_init": True}, 64, GEARS, [64, 32, 16, 8, 4]),
    ],
)
def test_torchair_gets_the_users_largest_size_and_the_gears_below(given, max_num_seqs, gears, expected):
    user = {**torchair(enabled=True, enable_kv_nz=True, **given), "refresh": True}
    before = copy.deepcopy(user)
    placed = place_gears(user, None, max_num_seqs, gears, aclgraph=True)
    assert placed.additional_config == {
        "refresh": True,
        "torchair_graph_config": {
            **given,
            "enabled": True,
            "enable_kv_nz": True,
            "graph_batch_sizes": expected,
            "graph_batch_sizes_init": False,
            "use_cached_graph": True,
        },
    }
    assert placed.capture_sizes is None
    assert user == before


@pytest.mark.parametrize("sizes", ["16", 16, [16, "8"], [0], {16: 8}])
def test_sizes_that_vllm_ascend_refuses_are_left_for_it_to_refuse(sizes):
    user = torchair(enabled=True, graph_batch_sizes=sizes)
    assert place_gears(user, None, 64, GEARS, aclgraph=False) == (user, None)


@pytest.mark.parametrize(
    "user",
    [None, {}, {"refresh": True}, torchair(), torchair(enabled=False), {"torchair_graph_config": None}],
)
@pytest.mark.parametrize("sizes", [None, [16, 8]])
def test_without_torchair_and_aclgraph_nothing_is_placed(user, sizes):
    placed = place_gears(user, sizes, 64, GEARS, aclgraph=False)
    assert placed.additional_config is user
    assert placed.capture_sizes is sizes


@pytest.mark.parametrize(
    ("sizes", "max_num_seqs", "expected"),
    [
        (None, 64, [64, 32, 16, 8, 4]),
        (None, 100, [100, 64, 32, 16, 8, 4]),
        (None, 10, [10, 8, 4]),
        (None, None, [DEFAULT_MAX_NUM_SEQS, 64, 32, 16, 8, 4]),
        ([], 64, [64, 32, 16, 8, 4]),
        ([1, 24, 48], 64, [48, 32, 24, 16, 8, 4, 1]),
        ([16], 64, [16, 8, 4]),
    ],
)
def test_aclgraph_gets_the_gears_besides_the_users_sizes(sizes, max_num_seqs, expected):
    user = torchair(enabled=False)
    before = copy.copy(sizes)
    placed = place_gears(user, sizes, max_num_seqs, GEARS, aclgraph=True)
    assert placed.additional_config is user
    assert placed.capture_sizes == expected
    assert type(placed.capture_sizes) is list
    assert sizes == before


@pytest.mark.parametrize("user", [None, torchair(enabled=True), torchair(enabled=True, graph_batch_sizes=[24, 12])])
def test_placing_twice_is_placing_once_and_nothing_is_written_to(user):
    once = place_gears(frozen(user) if user else user, (20, 10), 64, tuple(GEARS), aclgraph=True)
    assert place_gears(*once, 64, GEARS, aclgraph=True) == once


# --- The real config classes ---

REAL_CLASSES = """
import json, sys
sys.path.insert(0, sys.argv[1])
from vllm.config import CompilationConfig
from vllm_ascend.ascend_config import AscendConfig, TorchairGraphConfig
from types import SimpleNamespace

answers = []
for additional_config, capture_sizes in json.load(sys.stdin):
    try:
        ascend = AscendConfig(SimpleNamespace(additional_config=additional_config))
        graphs = CompilationConfig(cudagraph_capture_sizes=capture_sizes)
        graphs.init_with_cudagraph_sizes([512])
        config = ascend.torchair_graph_config
        assert type(config) is TorchairGraphConfig
        answers.append({
            "enabled": config.enabled,
            "sizes": config.graph_batch_sizes,
            "cached": config.use_cached_graph,
            "capture": graphs.cudagraph_capture_sizes,
            "padded": graphs.bs_to_padded_graph_size,
        })
    except Exception as error:
        answers.append({"error": f"{type(error).__name__}: {error}"})
print("\\n" + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def judged():
    """Answers of the real classes, by name, to what we place and to what we avoid placing."""
    user_sizes = torchair(enabled=True, graph_batch_sizes=[24, 48])
    dynamic = torchair(enabled=True, graph_batch_sizes_init=True)
    asked = {
        "torchair": place_gears(torchair(enabled=True), None, 64, GEARS, aclgraph=True),
        "torchair, user's sizes": place_gears(user_sizes, None, 64, GEARS, aclgraph=True),
        "torchair, dynamic": place_gears(dynamic, None, 64, GEARS, aclgraph=True),
        "torchair off": place_gears(torchair(enabled=False), None, 64, GEARS, aclgraph=True),
        "nothing given": place_gears(None, None, 64, GEARS, aclgraph=True),
        "eager": place_gears(None, None, 64, GEARS, aclgraph=False),
        "sizes though torchair is off": (torchair(enabled=False, graph_batch_sizes=[64]), None),
        "cached graph though torchair is off": (torchair(enabled=False, use_cached_graph=True), None),
        "no list": (torchair(enabled=True, graph_batch_sizes="64"), None),
        "dynamic beside sizes": (torchair(enabled=True, graph_batch_sizes=[64], graph_batch_sizes_init=True), None),
    }
    environment = {**os.environ, "VLLM_PLUGINS": "none", "VLLM_USE_V1": "1"}
    out = subprocess.run(
        [sys.executable, "-c", REAL_CLASSES, str(ASCEND)],
        input=json.dumps(list(asked.values())),
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert out.returncode == 0, out.stderr
    return dict(zip(asked, json.loads(out.stdout.splitlines()[-1])))


@pytest.mark.parametrize(
    ("case", "sizes"),
    [
        ("torchair", [64, 32, 16, 8, 4]),
        ("torchair, user's sizes", [48, 32, 16, 8, 4]),
        ("torchair, dynamic", [64, 32, 16, 8, 4]),
    ],
)
@pytest.mark.timeout(360)
def test_the_real_config_accepts_our_sizes_when_torchair_is_enabled(judged, case, sizes):
    answer = judged[case]
    assert answer.get("error") is None
    assert (answer["enabled"], answer["sizes"], answer["cached"]) == (True, sizes, True)


@pytest.mark.parametrize("case", ["torchair off", "nothing given", "eager"])
@pytest.mark.timeout(360)
def test_the_real_config_is_content_when_torchair_is_not_enabled(judged, case):
    answer = judged[case]
    assert answer.get("error") is None
    assert (answer["enabled"], answer["sizes"], answer["cached"]) == (False, [], False)


@pytest.mark.timeout(360)
def test_the_real_compilation_config_pads_to_our_gears(judged):
    for case in ("torchair off", "nothing given"):
        assert judged[case]["capture"] == GEARS
        padded = judged[case]["padded"]
        assert [padded[batch] for batch in (1, 4, 5, 9, 32, 33, 64)] == [4, 4, 8, 16, 32, 64, 64]
    assert judged["eager"]["capture"] == [512]


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("sizes though torchair is off", "RuntimeError: graph_batch_sizes is valid only"),
        ("cached graph though torchair is off", "RuntimeError: use_cached_graph is valid only"),
        ("no list", r"TypeError: graph_batch_sizes must be list"),
        ("dynamic beside sizes", "ValueError: graph_batch_sizes_init is only valid"),
    ],
)
@pytest.mark.timeout(360)
def test_the_real_config_refuses_what_we_take_care_not_to_place(judged, case, error):
    assert judged[case]["error"].startswith(error)


# --- What the engine makes of the sizes ---


def source_of(module, name, **names):
    """A function or method of vllm-ascend, compiled from the wheel's source."""
    tree = ast.parse((ASCEND / "vllm_ascend" / module).read_text())
    function = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    function.returns = None
    for argument in function.args.args:
        argument.annotation = None
    scope = {"logger": logging.getLogger("vllm_ascend"), "math": math, **names}
    exec(compile(ast.Module([function], []), module, "exec"), scope)
    return scope[name]


def torchair_runner(placed, max_num_seqs, *, tp=1, expert_parallel=False, batched_tokens=4096):
    """A runner whose sizes the real method has rewritten."""
    runner = SimpleNamespace(
        torchair_graph_enabled=True,
        torchair_graph_batch_sizes=placed.additional_config["torchair_graph_config"]["graph_batch_sizes"],
        decode_token_per_req=1,
        is_kv_consumer=False,
        max_num_reqs=max_num_seqs,
        parallel_config=SimpleNamespace(tensor_parallel_size=tp, enable_expert_parallel=expert_parallel),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=batched_tokens),
    )
    source_of("worker/model_runner_v1.py", "check_torchair_graph_batch_sizes")(runner)
    return runner


@pytest.mark.parametrize(
    ("given", "max_num_seqs", "parallel", "expected"),
    [
        ([], 64, {}, (64, 32, 16, 8, 4)),
        ([], 100, {}, (100, 64, 32, 16, 8, 4)),
        ([256], 64, {}, (64, 32, 16, 8, 4)),
        ([16], 64, {}, (64, 16, 8, 4)),
        ([], 64, {"tp": 8}, (64, 32, 16, 8, 4)),
        ([], 64, {"tp": 8, "expert_parallel": True}, (64, 32, 16, 8)),
        ([], 20, {"tp": 6, "expert_parallel": True}, (24, 18, 12, 6)),
        ([], 64, {"tp": 4, "expert_parallel": True, "batched_tokens": 32}, (64, 32, 16, 8, 4)),
    ],
)
def test_gears_of_torchair_are_read_back_after_the_runner_rewrote_them(given, max_num_seqs, parallel, expected):
    user = torchair(enabled=True, graph_batch_sizes=given)
    placed = place_gears(user, None, max_num_seqs, GEARS, aclgraph=False)
    runner = torchair_runner(placed, max_num_seqs, **parallel)
    assert effective_gears(runner, GEARS, max_num_seqs) == expected


def aclgraph_runner(capture_sizes, layers, *, parallel_size=1):
    """A runner that got the sizes that the real function leaves of ours."""
    graphs = SimpleNamespace(full_cuda_graph=False, cudagraph_capture_sizes=capture_sizes)

    def init_with_cudagraph_sizes(sizes):
        graphs.cudagraph_capture_sizes = sizes

    graphs.init_with_cudagraph_sizes = init_with_cudagraph_sizes
    config = SimpleNamespace(
        compilation_config=graphs,
        model_config=SimpleNamespace(hf_config=SimpleNamespace(num_hidden_layers=layers), architectures=["Qwen3"]),
        parallel_config=SimpleNamespace(
            data_parallel_size_local=parallel_size,
            tensor_parallel_size=parallel_size,
            expert_parallel_size=parallel_size,
            expert_tensor_parallel_size=1,
        ),
    )
    capture_limit = 1920
    source_of("utils.py", "update_aclgraph_sizes", MAX_CAPTURE_SIZE=capture_limit)(config)
    return SimpleNamespace(use_aclgraph=True, aclgraph_batch_sizes=list(reversed(graphs.cudagraph_capture_sizes)))


@pytest.mark.parametrize(
    ("sizes", "max_num_seqs", "layers", "parallel_size", "expected"),
    [
        (None, 64, 28, 1, (64, 32, 16, 8, 4)),
        (None, 64, 94, 2, (64, 32, 16, 8, 4)),
        (None, 128, 94, 2, (128, 64, 32, 8, 4)),
        ([512, 48], 64, 28, 1, (64, 48, 32, 16, 8, 4)),
        ([512, 48], 100, 28, 1, (512, 64, 48, 32, 16, 8, 4)),
        ([16], 64, 28, 1, (64, 16, 8, 4)),
    ],
)
def test_gears_of_aclgraph_are_read_back_after_the_device_limit(sizes, max_num_seqs, layers, parallel_size, expected):
    placed = place_gears(None, sizes, max_num_seqs, GEARS, aclgraph=True)
    runner = aclgraph_runner(placed.capture_sizes, layers, parallel_size=parallel_size)
    assert effective_gears(runner, GEARS, max_num_seqs) == expected


def test_the_device_limit_is_the_one_of_the_wheel():
    assert "\nMAX_CAPTURE_SIZE = 1920\n" in (ASCEND / "vllm_ascend" / "utils.py").read_text()


@pytest.mark.parametrize(
    "runner", [SimpleNamespace(), SimpleNamespace(use_aclgraph=False, torchair_graph_enabled=False)]
)
def test_an_engine_without_graphs_has_the_configured_gears(runner):
    assert effective_gears(runner, [16, 8, 4], 12) == (16, 8, 4)
