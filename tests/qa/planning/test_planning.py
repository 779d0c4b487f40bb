"""Memory and time worked out beforehand, sizes as text, and the remembered rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from esa_cli.errors import ModelError, PresetError, ResourceError
from esa_cli.models.attachment.attach import attach
from esa_cli.qa.planning import costs, model_shape, plan
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.resolved_preset import check_model, resolve

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 61,
}
LLAMA_3: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
}
"""Of Llama 3 8B's config.json."""


def folder_of(config: dict[str, Any], folder: Path) -> Path:
    """A model's folder before its weights are fetched."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESA_HOME", str(tmp_path))
    monkeypatch.delenv("ESA_MEMORY_LIMIT", raising=False)
    monkeypatch.chdir(tmp_path)
    return folder_of(TINY, tmp_path / "tiny")


def make_plan(
    tokens: int = 1000, *overrides: str, dtype: torch.dtype = torch.float32, **options: Any
) -> plan.Plan:
    chosen = resolve("tiny-random", overrides)
    return plan.Planner(chosen, Path("tiny"), dtype=dtype, device="cpu", **options).plan(tokens)


@pytest.mark.parametrize("kind", ["llama", "gemma3n_text", "qwen3_moe"])
def test_weights_are_counted_alike_before_and_after_they_are_fetched(
    make_model: Any, kind: str, tmp_path: Path
) -> None:
    model = make_model(kind)
    own = {one.data_ptr(): one.nbytes for one in model.parameters()}
    model.save_pretrained(tmp_path / "whole")
    index = folder_of({}, tmp_path / "config") / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}')
    whole = model_shape.weights_of(tmp_path / "whole", "cpu", 4)
    unmade = model_shape.weights_of(
        folder_of(model.config.to_dict(), tmp_path / "config"), "cpu", 4
    )
    assert whole.nbytes == unmade.nbytes == sum(own.values())
    assert whole.body == unmade.body < whole.nbytes // 4
    assert whole.bytes_of(2) == whole.nbytes // 2


DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
"""Of its config.json."""


def test_latents_and_experts_are_planned_as_what_they_are(tmp_path: Path) -> None:
    """Published: 671 billion weights, 37 billion of them (embeddings too) active, and 70,272 bytes
    of latents a token."""
    weights = model_shape.weights_of(folder_of(DEEPSEEK_V3, tmp_path / "v3"), "cpu", 2)
    assert weights.nbytes / 2e9 == pytest.approx(671, abs=0.5)
    assert (weights.body + 2 * 129280 * 7168) / 1e9 == pytest.approx(37, abs=1)
    method, shape = resolve(preset.load("tiny-random")).method, model_shape.shape_of(DEEPSEEK_V3)
    rows = costs.RowCosts(shape, on_gpu=False, method=method)
    assert rows.keys_values(1, 2) == (70_272, 0)
    lacking = {key: value for key, value in DEEPSEEK_V3.items() if key != "kv_lora_rank"}
    with pytest.raises(ModelError, match="kv_lora_rank"):
        model_shape.shape_of(lacking)


def test_kept_bytes_are_those_of_the_cache(make_model: Any) -> None:
    from esa_cli.qa.presets.resolved_preset import resolve

    chosen = preset.load("tiny-random")
    model = make_model("llama")
    with attach(model, resolve(chosen).method) as attachment:
        cache = attachment.new_cache()
        model(torch.randint(61, (1, 300)), past_key_values=cache)
        cache.project()
        estimate = make_plan(300)
        assert estimate.keys_values + estimate.reduced_keys == cache.nbytes


def test_the_papers_ratios() -> None:
    """By hand: d' = 128 of d_H = 32 heads of 128 and d_G = 8 of them, in each of 32 layers."""
    folder = folder_of(LLAMA_3, Path("llama"))
    planner = plan.Planner(resolve("paper"), folder, dtype=torch.bfloat16, device="cpu")
    assert planner.ratios == (257 / (4 * 4096 + 3 * 32), 128 / (2 * 1024))
    assert [round(100 * one, 2) for one in planner.ratios] == [1.56, 6.25]


def test_ranks_count_in_their_sum_whichever_layer_has_them(tmp_path: Path) -> None:
    from esa_cli.attention.compression import Linear, save_learned

    found = []
    for ranks in ((1, 13), (13, 1), (7, 7)):
        file = tmp_path / "maps.safetensors"
        save_learned(file, [Linear(torch.zeros(16, r), torch.zeros(16, r)) for r in ranks])
        found.append(make_plan(5000, f"compressor={{name: learned, file: {file}}}"))
    assert found[0].operations == found[1].operations == found[2].operations
    assert found[0].operations > make_plan(5000, "compressor.rank=6").operations
    assert [one.reduced_keys for one in found] == [5000 * (1 + 13) * 4] * 3


def test_an_index_takes_its_keys_alone_and_the_layers_that_run() -> None:
    from esa_cli.qa.finding.finder import FinderSizes

    def index(tokens: int, layers: int, dtype: torch.dtype = torch.float32) -> plan.Plan:
        return make_plan(tokens, dtype=dtype, index=FinderSizes(layers, 128))

    one, both = index(100_000, 1), index(100_000, 2)
    assert (one.keys_values, one.reduced_keys) == (0, 100_000 * (128 + 8))
    assert index(10, 1, torch.bfloat16).reduced_keys == 10 * (128 + 8)
    assert one.operations < both.operations < 2 * one.operations
    tokens = (100_000 - 10) * costs.TOKEN_BYTES
    assert one.working == index(10, 1).working + tokens, "it is computed in pieces"
    assert one.planner.rate_key != make_plan().planner.rate_key


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"num_hidden_layers": 16}, r"score.heads .* 16 layers and 9 heads .* got \[17, 3\]"),
        ({"num_attention_heads": 7}, r"score.heads .* 30 layers and 7 heads .* got \[7, 7\]"),
        ({"max_position_embeddings": 4096}, "context .* 4096 tokens that the model"),
    ],
)
def test_what_does_not_hold_for_the_model_is_named(sizes: dict[str, Any], words: str) -> None:
    config = {"num_hidden_layers": 30, "num_attention_heads": 9, **sizes}
    with pytest.raises(PresetError, match=words) as caught:
        check_model(preset.load(), config, "the model")
    assert caught.value.hint


def test_what_does_not_fit_is_refused_with_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "450MiB")
    most = make_plan().most_tokens
    fine, tight, half = make_plan(most), make_plan(most + 1), make_plan(dtype=torch.bfloat16)
    fine.check()
    assert (fine.fits, fine.remedies, tight.fits) == (True, (), False)
    with pytest.raises(ResourceError) as caught:
        tight.check()
    assert "450 MiB" in caught.value.message
    assert "--dtype bfloat16" in caught.value.hint
    assert f"{most:,} tokens fit" in caught.value.hint
    assert half.weights * 2 == make_plan().weights
    assert half.keys_values * 2 == make_plan().keys_values
