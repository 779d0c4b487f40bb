"""GGUF files of every family that is converted, against the models that they were written from, and
against llama.cpp where the package xllamacpp, which has it, is installed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from gguf_writing import ARCHITECTURES, TOKENS, write_model
from model_files import TEXTS, home
from test_families import family_model

from esa_cli import models
from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import list_stored_weights

__all__ = ["home"]

pytestmark = pytest.mark.families

FOUR = {"num_hidden_layers": 4, "layer_types": None, "sliding_window": 12}
YARN_OF_QUERIES = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0,
    "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.2,
    "original_max_position_embeddings": 16,
}  # fmt: skip
OF_HEADS = {"head_dim": 16, "query_pre_attn_scalar": 16, "layer_types": None}
IN_GGUF: dict[str, dict[str, Any]] = {
    # settings for which llama.cpp has no other
    "qwen3_moe": {"norm_topk_prob": True},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layers": None},
    "gemma2": {**OF_HEADS, "num_hidden_layers": 4},
    "gemma3_text": {
        **OF_HEADS,
        "num_hidden_layers": 7,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "olmo3": {**FOUR, "rope_parameters": None},
    "cohere2": {**FOUR, "head_dim": 16},
    "gpt_oss": FOUR,
    "ministral3": {"rope_parameters": YARN_OF_QUERIES},
}


def tiny(kind: str = "llama", **changes: Any) -> Any:
    options = {"vocab_size": len(TOKENS), "hidden_size": 96} | IN_GGUF.get(kind, {}) | changes
    return family_model(kind, **options)


def converted(path: Path) -> Any:
    return models.load(str(path), device="cpu", dtype="float32")


IDS = torch.randint(3, 200, (1, 40), generator=torch.Generator().manual_seed(0))


def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(IDS).logits
    return found


def llama_cpp(path: Path) -> dict[int, float]:
    """Log probabilities of the next token by llama.cpp, an independent reading of the format; {}:
    it is not installed."""
    try:
        import xllamacpp
    except ImportError:
        return {}
    params: Any = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    asked = {"prompt": IDS[0].tolist(), "n_predict": 1, "temperature": 0, "n_probs": len(TOKENS)}
    # Of half a character it reports nothing; what it reports is without the bias.
    asked |= {"logit_bias": [[TOKENS.index("A"), 1000.0]]}
    (choice,) = xllamacpp.Server(params).handle_completions(asked)["choices"]
    return {one["id"]: one["logprob"] for one in choice["logprobs"]["content"][0]["top_logprobs"]}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_family(kind: str, tmp_path: Path) -> None:
    model = tiny(kind)
    loaded = converted(path := write_model(tmp_path / "a.gguf", model))
    assert loaded.model.config.model_type == kind
    wanted = logits(model)
    assert torch.equal(logits(loaded.model), wanted)
    for text in TEXTS:
        assert loaded.tokenizer.decode(loaded.tokenizer(text).input_ids) == text
    assert loaded.tokenizer.tokenize("19he") == ["1", "9", "he"]
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    likely = torch.log_softmax(wanted[0, -1].float(), -1)
    for token, value in llama_cpp(path).items():
        assert abs(likely[token].item() - value) < 0.07


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("llama", "F16"), ("llama", "Q4_0"), ("qwen3_moe", "Q8_0"), ("qwen3_moe", "MXFP4"),
        ("phi3", "BF16"), ("glm4", "Q5_1"),
    ],
)  # fmt: skip
def test_the_numbers_are_those_that_quantisation_left(kind: str, form: str, tmp_path: Path) -> None:
    experts = {"moe_intermediate_size": 32} if "moe" in kind else {}
    model = tiny(kind, head_dim=16, **experts)
    path = write_model(tmp_path / "a.gguf", model, form)
    for weight in model.parameters():
        if weight.dim() > 1 and weight.shape[0] > 1:
            kept = quantize(weight.numpy(), GGMLQuantizationType[form])
            weight.copy_(torch.from_numpy(dequantize(kept, GGMLQuantizationType[form])))
    assert torch.allclose(logits(converted(path).model), logits(model), atol=1e-5)


def linear(factor: float, **more: Any) -> dict[str, Any]:
    return {"rope_type": "linear", "rope_theta": 10000.0, "factor": factor, **more}


YARN = linear(4.0, rope_type="yarn", original_max_position_embeddings=128)
SCALED = {"rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 128}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 4.0, 8.0],
    "original_max_position_embeddings": 32,
}  # fmt: skip


def llama3_factors(dims: int) -> list[float]:
    """What rope_freqs.weight of Llama 3.1 holds."""
    factors = []
    for index in range(0, dims, 2):
        turns = 8192 / (2 * math.pi * LLAMA3["rope_theta"] ** (index / dims))
        part = min(max((turns - 1) / (4 - 1), 0.0), 1.0)
        factors.append(1 / ((1 - part) / 8.0 + part))
    return factors


ODD: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: family, settings of the model, entries of the file
    "linear": (
        "qwen2", {"rope_parameters": linear(4.0)}, {"rope__scaling__type": "linear"} | SCALED
    ),
    "yarn": ("qwen2", {"rope_parameters": YARN}, {"rope__scaling__type": "yarn"} | SCALED),
    "llama 3.1": (
        "llama", {"head_dim": 32, "rope_parameters": LLAMA3},
        {"extra": {"rope_freqs.weight": llama3_factors(32)}},
    ),
    "longrope": (
        "phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 32},
        {
            "rope__scaling__original_context_length": 32,
            "rope__scaling__attn_factor": math.sqrt(1 + math.log(512 / 32) / math.log(32)),
            "extra": {
                f"rope_factors_{name}.weight": LONG[f"{name}_factor"] for name in ("long", "short")
            },
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_settings_of_known_models(name: str, tmp_path: Path) -> None:
    kind, settings, entries = ODD[name]
    model = tiny(kind, **settings)
    found = converted(write_model(tmp_path / "a.gguf", model, **entries)).model
    assert torch.allclose(logits(found), logits(model), atol=1e-5)
    assert (found.lm_head.weight is found.model.embed_tokens.weight) == bool(
        model.config.tie_word_embeddings
    )


@pytest.mark.parametrize("form", ["BF16", "MXFP4", "F16", "Q8_0"])
def test_16_bits_are_kept_where_they_hold_the_numbers(form: str, tmp_path: Path) -> None:
    """Of gpt-oss that is half of the disk."""
    model = tiny("gpt_oss", head_dim=16)
    folder = models.fetch_model_folder(str(write_model(tmp_path / "a.gguf", model, form)))
    kept = {one.name: one.kind for one in list_stored_weights(folder)}
    short = {"BF16": "BF16", "MXFP4": "BF16", "F16": "F16", "Q8_0": "F32"}[form]
    assert kept["model.layers.1.mlp.experts.gate_up_proj"] == short
    assert kept["model.layers.1.self_attn.sinks"] == "F32"


def test_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are written in several; a model that comes in several is refused."""
    monkeypatch.setattr("esa_cli.models.files.gguf_conversion.SHARD_BYTES", 100_000)
    model = tiny("gpt_oss")
    loaded = converted(write_model(tmp_path / "b.gguf", model))
    assert len(list(loaded.folder.glob("*.safetensors"))) > 2
    assert torch.equal(logits(loaded.model), logits(model))
    write_model(tmp_path / "a.gguf", model, most=20)
    for part in tmp_path.glob("a-*.gguf"):
        with pytest.raises(ModelError, match="holds only a part of a model"):
            converted(part)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"attention__clamp_kqv": 3.0}, "the setting llama.attention.clamp_kqv"),
        ({"rope__scaling__type": "dynamic", "rope__scaling__factor": 2.0}, "scaled by dynamic"),
        ({"extra": {"rope_freqs.weight": [2.0] * 8}}, "of unknown frequencies"),
        ({"attention__value_length": 4}, "values .* of another size than keys"),
        ({"embedding_length": None}, "lacks the setting llama.embedding_length"),
        ({"feed_forward_length": 48}, "must have shape"),
        ({"block_count": 3}, "lacks the weights blk.2"),
        ({"block_count": 1}, "has the weights blk.1"),
        ({"extra": {"blk.0.attn_sinks.weight": [0.0] * 6}}, "has the weights blk.0.attn_sinks"),
        ({"architecture": "rwkv7"}, "rwkv7"),
        ({"architecture": "stablelm"}, "stablelm"),  # transformers' own reader would take it
    ],
)
def test_what_cannot_be_kept_is_refused(
    entries: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "a.gguf", tiny(), **entries)
    with pytest.raises(ModelError, match=message):
        converted(path)
