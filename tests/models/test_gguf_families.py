"""GGUF files of every family that is converted, against the models that they were written from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from gguf_writing import ARCHITECTURES, TOKENS, tensors, write_model
from model_files import TEXTS, home
from test_families import family_model

from esa_cli import models
from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import stored_weights
from esa_cli.models.gguf.gguf_settings import GGUF_FAMILIES

__all__ = ["home"]

pytestmark = pytest.mark.families

FOUR = {"num_hidden_layers": 4, "layer_types": None, "sliding_window": 12}
YARN_OF_QUERIES = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.2,
    "original_max_position_embeddings": 16,
}
IN_GGUF: dict[str, dict[str, Any]] = {
    # settings for which llama.cpp has no other
    "qwen3_moe": {"norm_topk_prob": True},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layers": None},
    "gemma2": {
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 4,
        "layer_types": None,
    },
    "gemma3_text": {
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 7,
        "layer_types": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "olmo3": {**FOUR, "rope_parameters": None},
    "cohere2": FOUR,
    "gpt_oss": FOUR,
    "ministral3": {"rope_parameters": YARN_OF_QUERIES},
}


def tiny(kind: str = "llama", **changes: Any) -> Any:
    options = {"vocab_size": len(TOKENS), "hidden_size": 96} | IN_GGUF.get(kind, {}) | changes
    return family_model(kind, **options)


def converted(path: Path) -> Any:
    return models.load(str(path), device="cpu", dtype="float32")


def logits(model: Any) -> torch.Tensor:
    ids = torch.randint(3, 200, (1, 40), generator=torch.Generator().manual_seed(0))
    found: torch.Tensor = model(ids).logits
    return found


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_family(kind: str, tmp_path: Path) -> None:
    model = tiny(kind)
    loaded = converted(write_model(tmp_path / "a.gguf", model))
    assert loaded.model.config.model_type == kind
    assert torch.equal(logits(loaded.model), logits(model))
    for text in TEXTS:
        assert loaded.tokenizer.decode(loaded.tokenizer(text).input_ids) == text
    assert loaded.tokenizer.tokenize("19he") == ["1", "9", "he"]
    assert loaded.tokenizer.eos_token == "<|im_end|>"


YARN_OF_LATENTS = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.7,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def test_the_largest_gemma_scales_its_queries_by_another_size(tmp_path: Path) -> None:
    """Of 46 layers; llama.cpp knows it by their number."""
    model = tiny("gemma2", num_hidden_layers=46, head_dim=8, query_pre_attn_scalar=96 // 6)
    loaded = converted(write_model(tmp_path / "a.gguf", model))
    assert torch.equal(logits(loaded.model), logits(model))


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "phi3", "glm4"])
@pytest.mark.parametrize("form", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "MXFP4"])
def test_the_numbers_are_those_that_quantisation_left(kind: str, form: str, tmp_path: Path) -> None:
    experts = {"moe_intermediate_size": 32} if "moe" in kind else {}
    model = tiny(kind, head_dim=16, **experts)
    path = write_model(tmp_path / "a.gguf", model, form)
    for weight in model.parameters():
        if weight.dim() > 1 and weight.shape[0] > 1:
            kept = quantize(weight.numpy(), GGMLQuantizationType[form])
            weight.copy_(torch.from_numpy(dequantize(kept, GGMLQuantizationType[form])))
    assert torch.allclose(logits(converted(path).model), logits(model), atol=1e-5)


def test_windows_as_a_number_of_the_metadata(tmp_path: Path) -> None:
    model = tiny("cohere2", **FOUR | {"layer_types": ["sliding_attention", "full_attention"] * 2})
    entries = {"attention__sliding_window_pattern": 2}
    loaded = converted(write_model(tmp_path / "a.gguf", model, **entries))
    assert torch.equal(logits(loaded.model), logits(model))
    assert (logits(tiny("cohere2")) - logits(model)).abs().max() > 0.1


@pytest.mark.parametrize("form", ["BF16", "MXFP4", "F16", "Q8_0"])
def test_16_bits_are_kept_where_they_hold_the_numbers(form: str, tmp_path: Path) -> None:
    """Of gpt-oss that is half of the disk."""
    model = tiny("gpt_oss", head_dim=16)
    folder = converted(write_model(tmp_path / "a.gguf", model, form)).folder
    kept = {one.name: one.kind for one in stored_weights(folder)}
    short = {"BF16": "BF16", "MXFP4": "BF16", "F16": "F16", "Q8_0": "F32"}[form]
    assert kept["model.layers.1.mlp.experts.gate_up_proj"] == short
    assert kept["model.layers.1.self_attn.sinks"] == "F32"


def test_an_untied_head_and_biases(tmp_path: Path) -> None:
    model = tiny(attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    assert torch.equal(
        logits(converted(write_model(tmp_path / "a.gguf", model)).model), logits(model)
    )
    tied = tiny(tie_word_embeddings=True)
    found = converted(write_model(tmp_path / "b.gguf", tied)).model
    assert found.lm_head.weight is found.model.embed_tokens.weight
    assert torch.equal(logits(found), logits(tied))


def test_weights_are_written_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esa_cli.models.gguf.gguf_weights.SHARD_BYTES", 100_000)
    model = tiny("qwen3_moe")
    loaded = converted(write_model(tmp_path / "a.gguf", model))
    assert len(list(loaded.folder.glob("*.safetensors"))) > 2
    assert torch.equal(logits(loaded.model), logits(model))


def test_a_model_in_several_files(tmp_path: Path) -> None:
    model = tiny("gpt_oss")
    write_model(tmp_path / "a.gguf", model, most=20)
    first, second, *more = sorted(tmp_path.glob("a-*.gguf"))
    assert more
    assert torch.equal(logits(converted(first).model), logits(model))
    with pytest.raises(ModelError, match="is part 2 of a model of") as refused:
        converted(second)
    assert first.name in refused.value.hint
    first = first.rename(tmp_path / first.name.replace("a-", "b-"))
    more[0].rename(tmp_path / more[0].name.replace("a-", "b-"))
    with pytest.raises(ModelError, match=f"lacks {len(more)} of its .* b-00002"):
        converted(first)


def test_the_other_layout_would_be_another_model(tmp_path: Path) -> None:
    """Without llama.cpp's order of rows these tests would pass with none undone."""
    model = tiny()
    stored = tensors(model, "llama", GGUF_FAMILIES["llama"])
    query = model.model.layers[0].self_attn.q_proj.weight.numpy()
    assert (stored["blk.0.attn_q.weight"] != query).any()


LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN = {**LINEAR, "rope_type": "yarn", "original_max_position_embeddings": 128}
LLAMA3 = {
    **LINEAR,
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama3_factors(rope: dict[str, Any], dims: int) -> list[float]:
    """What rope_freqs.weight of Llama 3.1 holds."""
    found = []
    for index in range(0, dims, 2):
        turns = rope["original_max_position_embeddings"] / (
            2 * math.pi * rope["rope_theta"] ** (index / dims)
        )
        part = (turns - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        part = min(max(part, 0.0), 1.0)
        found.append(1 / ((1 - part) / rope["factor"] + part))
    return found


@pytest.mark.parametrize("rope", [LINEAR, YARN], ids=["linear", "yarn"])
def test_a_scaled_rotary_embedding(rope: dict[str, Any], tmp_path: Path) -> None:
    model = tiny("qwen2", rope_parameters=rope)
    path = write_model(
        tmp_path / "a.gguf", model, rope__scaling__type=rope["rope_type"],
        rope__scaling__factor=4.0, rope__scaling__original_context_length=128,
    )  # fmt: skip
    assert torch.equal(logits(converted(path).model), logits(model))


def test_the_frequencies_of_llama_3_1(tmp_path: Path) -> None:
    model = tiny(head_dim=32, rope_parameters=LLAMA3)
    factors = llama3_factors(LLAMA3, 32)
    assert 1 in factors
    assert 8 in factors
    assert any(1 < one < 8 for one in factors)
    extra = {"rope_freqs.weight": factors}
    path = write_model(tmp_path / "a.gguf", model, extra=extra)
    found = converted(path).model
    assert found.config.rope_parameters["rope_type"] == "llama3"
    assert torch.allclose(logits(found), logits(model), atol=1e-5)
    with pytest.raises(ModelError, match="frequencies of no rule"):
        converted(write_model(tmp_path / "b.gguf", model, extra={"rope_freqs.weight": [2.0] * 16}))


def test_longrope(tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 4.0, 8.0],
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    model = tiny("phi3", rope_parameters=rope, original_max_position_embeddings=32)
    factor = math.sqrt(1 + math.log(512 / 32) / math.log(32))
    path = write_model(
        tmp_path / "a.gguf", model, rope__scaling__original_context_length=32,
        rope__scaling__attn_factor=factor,
        extra={f"rope_factors_{name}.weight": rope[f"{name}_factor"] for name in ("long", "short")},
    )  # fmt: skip
    assert torch.allclose(logits(converted(path).model), logits(model), atol=1e-5)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"attention__clamp_kqv": 3.0}, "the setting llama.attention.clamp_kqv"),
        ({"rope__scaling__type": "dynamic", "rope__scaling__factor": 2.0}, "scaled by dynamic"),
        ({"attention__value_length": 4}, "values .* of another size than keys"),
        ({"embedding_length": None}, "lacks the setting llama.embedding_length"),
        ({"feed_forward_length": 48}, "must be of size"),
        ({"block_count": 3}, "lacks the weights blk.2"),
        ({"block_count": 1}, "has the weights blk.1"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    entries: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "a.gguf", tiny(), **entries)
    with pytest.raises(ModelError, match=message):
        converted(path)


def test_weights_that_the_model_has_not_are_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.gguf", tiny(), extra={"blk.0.attn_sinks.weight": [0.0] * 6})
    with pytest.raises(
        ModelError, match=r"has the weights blk\.0\.attn_sinks\.weight, which a llama"
    ):
        converted(path)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    """Also one that transformers' own reader would take, and read without its scaled rotary."""
    for name in ("rwkv7", "stablelm"):
        path = write_model(tmp_path / f"{name}.gguf", tiny(), architecture=name)
        with pytest.raises(ModelError, match=name):
            converted(path)
