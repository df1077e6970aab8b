"""Writes tiny Qwen2 models with fixed random weights and a tokenizer that knows the words "t0".."t1023".

The weights are drawn at a large scale, so that greedy output does not fall into a short loop and a wrong KV block
shows at once in the tokens. A folder is written once and named by what it holds.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from seqshift.cpu_bed.cache import CACHE

MODELS = CACHE / "models"
VOCABULARY = 1024
EOS_TOKEN_ID = 1
# In units of 1/sqrt(fan_in); 1 would keep the variance.
WEIGHT_SCALE = 1.6
# Changes with what this file writes for the same parameters.
FORMAT = 1


@dataclass(frozen=True)
class ModelSpec:
    """Shape of a model; `dtype` is what config.json says, the weights are always written as fp32."""

    hidden: int = 256
    intermediate: int = 512
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    positions: int = 4096
    dtype: str = "float32"
    seed: int = 20240501
    characters: bool = False
    """The first words are single characters, so that text can be spelled: printable ASCII without the space."""

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of K and V of one token over all layers, one element being `element_bytes` long."""
        return 2 * self.layers * self.kv_heads * (self.hidden // self.heads) * element_bytes


DEFAULT = ModelSpec()
DEEP = ModelSpec(layers=64)
SPELLING = ModelSpec(characters=True)


def model_path(spec: ModelSpec = DEFAULT) -> str:
    """The folder of that model, written now if it does not exist yet; safe to call from several processes."""
    key = json.dumps([FORMAT, WEIGHT_SCALE, asdict(spec)], sort_keys=True)
    folder = MODELS / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not folder.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=MODELS))
        _write(scratch, spec)
        try:
            os.rename(scratch, folder)
        except OSError:
            # Another process was faster; the content is the same.
            shutil.rmtree(scratch)
    return str(folder)


def _write(folder: Path, spec: ModelSpec) -> None:
    from safetensors.numpy import save_file

    (folder / "config.json").write_text(json.dumps(_config(spec), indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(words(spec))))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": f"t{EOS_TOKEN_ID}",
        "clean_up_tokenization_spaces": False,
        "model_max_length": spec.positions,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    save_file(_weights(spec), str(folder / "model.safetensors"), metadata={"format": "pt"})


def _config(spec: ModelSpec) -> dict:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "max_position_embeddings": spec.positions,
        "vocab_size": VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": EOS_TOKEN_ID,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": spec.dtype,
        "use_cache": True,
    }


def words(spec: ModelSpec) -> list[str]:
    """The vocabulary, by token id."""
    known = [f"t{i}" for i in range(VOCABULARY)]
    if spec.characters:
        # Behind the two special tokens.
        spelled = [chr(code) for code in range(ord("!"), ord("~") + 1)]
        known[2 : 2 + len(spelled)] = spelled
    return known


def _tokenizer(known: list[str]) -> dict:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([f"t{EOS_TOKEN_ID}"])
    return json.loads(tokenizer.to_str())


def _weights(spec: ModelSpec) -> dict:
    import numpy

    random = numpy.random.default_rng(spec.seed)
    head = spec.hidden // spec.heads

    def matrix(rows: int, columns: int) -> numpy.ndarray:
        scale = WEIGHT_SCALE / math.sqrt(columns)
        return (random.standard_normal((rows, columns)) * scale).astype(numpy.float32)

    def ones(size: int) -> numpy.ndarray:
        return numpy.ones(size, dtype=numpy.float32)

    weights = {"model.embed_tokens.weight": random.standard_normal((VOCABULARY, spec.hidden)).astype(numpy.float32)}
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}"
        for name, size in (("q", spec.hidden), ("k", spec.kv_heads * head), ("v", spec.kv_heads * head)):
            weights[f"{prefix}.self_attn.{name}_proj.weight"] = matrix(size, spec.hidden)
            weights[f"{prefix}.self_attn.{name}_proj.bias"] = (0.1 * random.standard_normal(size)).astype(numpy.float32)
        weights[f"{prefix}.self_attn.o_proj.weight"] = matrix(spec.hidden, spec.hidden)
        weights[f"{prefix}.mlp.gate_proj.weight"] = matrix(spec.intermediate, spec.hidden)
        weights[f"{prefix}.mlp.up_proj.weight"] = matrix(spec.intermediate, spec.hidden)
        weights[f"{prefix}.mlp.down_proj.weight"] = matrix(spec.hidden, spec.intermediate)
        weights[f"{prefix}.input_layernorm.weight"] = ones(spec.hidden)
        weights[f"{prefix}.post_attention_layernorm.weight"] = ones(spec.hidden)
    weights["model.norm.weight"] = ones(spec.hidden)
    weights["lm_head.weight"] = matrix(VOCABULARY, spec.hidden)
    return weights
