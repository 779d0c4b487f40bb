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
from esa_cli.qa.planning.model_shape import mlp_sizes
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.resolved_preset import check_context, check_heads, resolve
from esa_cli.system import machine

TINY: dict[str, Any] = {
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 61,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_HOME", str(tmp_path))
    monkeypatch.delenv("ESA_MEMORY_LIMIT", raising=False)


def make_plan(tokens: int = 1000, *overrides: str, dtype: torch.dtype = torch.float32) -> plan.Plan:
    chosen = preset.load("tiny-random", overrides)
    return plan.Planner(resolve(chosen), TINY, dtype=dtype, device="cpu").plan(tokens)


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
SMALL = ("norm", "bias", "conv.conv", "router", "mlp.gate.", "feed_forward.gate")
"""In names of weights that plans leave out."""


@pytest.mark.parametrize(
    "kind",
    ["llama", "lfm2", "lfm2_moe", "glm4_moe", "glm4_moe_lite", "deepseek_v3", "ernie4_5_moe",
     "afmoe", "starcoder2", "arcee", "gpt_neox", "persimmon"],
)  # fmt: skip
def test_weights_are_those_of_the_model(make_model: Any, kind: str) -> None:
    """First layers of several have an MLP in place of experts, and MLPs of some have no gate."""
    model = make_model(kind)
    named = model.named_parameters()
    large = sum(p.numel() for n, p in named if not any(part in n for part in SMALL))
    assert model_shape.shape_of(model.config.to_dict()).weights == large


@pytest.mark.parametrize(
    ("named", "inner"),
    [
        ({"block_ff_dim": 12288, "block_auto_adjust_ff_dim": True}, 8192),
        ({"block_ff_dim": 12288, "intermediate_size": 8192}, 8192),
        ({"block_ff_dim": 6656, "block_multiple_of": 256}, 4608),
        ({"intermediate_size": 10752, "block_auto_adjust_ff_dim": False}, 10752),
        ({"intermediate_size": 96, "block_ffn_dim_multiplier": None}, 64),
    ],
)
def test_lfm2_takes_two_thirds_of_the_size_that_its_file_names(
    named: dict[str, Any], inner: int
) -> None:
    assert mlp_sizes({"model_type": "lfm2", **named}) == (inner, 0)


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


def test_latents_are_planned_as_what_they_are() -> None:
    """Published: 671 billion weights, 37 billion of them (embeddings too) active, and 70,272 bytes
    of latents a token."""
    shape = model_shape.shape_of(DEEPSEEK_V3)
    assert shape.weights / 1e9 == pytest.approx(671, abs=0.5)
    assert (shape.body + 2 * 129280 * 7168) / 1e9 == pytest.approx(37, abs=1)
    method = resolve(preset.load("tiny-random")).method
    assert costs.Costs(shape, method, 0, on_gpu=False).keys_values(1, 2) == 70_272
    lacking = {key: value for key, value in DEEPSEEK_V3.items() if key != "kv_lora_rank"}
    with pytest.raises(ModelError, match=r"must have all sizes, got .*kv_lora_rank"):
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


@pytest.mark.parametrize(
    ("overrides", "rank"),
    [
        ((), 8),
        (("compressor.rank=500",), 16),
        (("compressor.name=none",), 0),
        (("score.name=vote",), 0),
        (("score={name: vote, shortlist: 10}",), 8),
    ],
)
def test_reduced_keys_only_where_the_score_reads_them(overrides: Any, rank: int) -> None:
    assert make_plan(100, *overrides).reduced_keys == 100 * 2 * rank * 4


def test_the_papers_ratios() -> None:
    """By hand: d' = 128 of d_H = 32 heads of 128 and d_G = 8 of them, in each of 32 layers."""
    chosen = preset.load("paper")
    planner = plan.Planner(resolve(chosen), LLAMA_3, dtype=torch.bfloat16, device="cpu")
    assert planner.ratios == (257 / (4 * 4096 + 3 * 32), 128 / (2 * 1024))
    assert [round(100 * one, 2) for one in planner.ratios] == [1.56, 6.25]


@pytest.mark.parametrize(
    ("overrides", "ratios"),
    [
        ((), (17 / (6 * 35), 8 / 32)),
        (("compressor.name=none",), (33 / (6 * 35), 0)),
        (("score.name=vote",), None),
        (("selector.name=infllm",), None),
    ],
)
def test_ratios_are_of_the_papers_selection(overrides: Any, ratios: Any) -> None:
    assert make_plan(100, *overrides).planner.ratios == ratios


def test_learned_rank_comes_from_the_file(tmp_path: Path) -> None:
    from esa_cli.attention.compression import Linear, save_learned

    file = tmp_path / "maps.safetensors"
    ranks = (1, 13)
    save_learned(file, [Linear(torch.zeros(16, rank), torch.zeros(16, rank)) for rank in ranks])
    changed = f"compressor={{name: learned, file: {file}}}"
    assert make_plan(100, changed).reduced_keys == 100 * (1 + 13) * 4


def test_ranks_count_in_their_sum_whichever_layer_has_them(tmp_path: Path) -> None:
    from esa_cli.attention.compression import Linear, save_learned

    found = []
    for ranks in ((1, 13), (13, 1), (7, 7)):
        file = tmp_path / "maps.safetensors"
        save_learned(file, [Linear(torch.zeros(16, r), torch.zeros(16, r)) for r in ranks])
        found.append(make_plan(5000, f"compressor={{name: learned, file: {file}}}"))
    assert found[0].operations == found[1].operations == found[2].operations
    assert found[0].operations > make_plan(5000, "compressor.rank=6").operations
    assert found[0].reduced_keys == found[1].reduced_keys == found[2].reduced_keys


def test_a_file_with_too_few_layers_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    from esa_cli.attention.compression import Linear, save_learned

    file = tmp_path / "maps.safetensors"
    save_learned(file, [Linear(torch.zeros(16, 5), torch.zeros(16, 5))])
    with pytest.raises(PresetError, match=r"has no layers\.1"):
        make_plan(100, f"compressor={{name: learned, file: {file}}}")


def test_half_precision_halves_what_is_kept() -> None:
    full, half = make_plan(), make_plan(dtype=torch.bfloat16)
    assert half.weights * 2 == full.weights
    assert half.keys_values * 2 == full.keys_values


def test_an_index_takes_its_keys_alone_and_the_layers_that_run() -> None:
    from esa_cli.qa.finding.load_encoder import FinderSizes

    def index(tokens: int, layers: int, dtype: torch.dtype = torch.float32) -> plan.Plan:
        given, sizes = resolve(preset.load("tiny-random")), FinderSizes(layers, 128)
        return plan.Planner(given, TINY, dtype=dtype, device="cpu", index=sizes).plan(tokens)

    one, both = index(100_000, 1), index(100_000, 2)
    assert (one.keys_values, one.reduced_keys) == (0, 100_000 * (128 + 8))
    assert index(10, 1, torch.bfloat16).reduced_keys == 10 * (128 + 8)
    assert one.operations < both.operations < 2 * one.operations
    tokens = (100_000 - 10) * costs.TOKEN_BYTES
    assert one.working == index(10, 1).working + tokens, "it is computed in pieces"
    assert one.planner.rate_key != make_plan().planner.rate_key


def test_most_tokens_is_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "450MiB")
    most = make_plan().most_tokens
    assert make_plan(most).fits
    assert not make_plan(most + 1).fits


def test_refusal_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "450MiB")
    most = make_plan().most_tokens
    tight = make_plan(most + 1000)
    assert not tight.fits
    with pytest.raises(ResourceError) as caught:
        tight.check()
    assert "450 MiB" in caught.value.message
    assert "--dtype bfloat16" in caught.value.hint
    assert f"{most:,} tokens fit" in caught.value.hint


def test_what_fits_is_not_refused() -> None:
    fine = make_plan()
    fine.check()
    assert fine.fits
    assert fine.remedies == ()
    assert fine.seconds > 0


def test_selecting_while_reading_costs_more() -> None:
    assert make_plan(5000).operations > make_plan(5000, "reading=local").operations


def test_operations_grow_with_the_document() -> None:
    once, twice = make_plan(5000, "reading=local"), make_plan(10000, "reading=local")
    assert twice.operations == pytest.approx(2 * once.operations)


def test_a_measured_rate_is_used_next_time() -> None:
    first = make_plan()
    assert first.rate_from == "probe"
    first.planner.remember(first, 7)
    again = make_plan()
    assert again.rate_from == "measured"
    assert again.seconds == pytest.approx(7)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"x": "fast", "y": -1}'])
def test_a_broken_rates_file_is_passed_over(text: str) -> None:
    plan.rates_file().write_text(text)
    assert plan.recall("x") is None
    assert plan.recall("y") is None
    plan.remember("x", 2.0)
    assert plan.recall("x") == 2.0


def test_rates_that_cannot_be_written_are_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "file" / "below"))
    plan.remember("x", 1.0)
    assert plan.recall("x") is None


def test_rates_keep_what_was_there() -> None:
    plan.remember("a", 1.0)
    plan.remember("b", 2.0)
    assert json.loads(plan.rates_file().read_text()) == {"a": 1.0, "b": 2.0}
    assert [p.name for p in plan.rates_file().parent.iterdir()] == ["rates.json"]


def test_peak_memory_is_this_process() -> None:
    assert 50 << 20 < machine.peak_memory() < 1 << 40


def test_config_without_a_size_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="hidden_size"):
        model_shape.shape_of({"num_attention_heads": 2})


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
    check = check_context if words.startswith("context") else check_heads
    with pytest.raises(PresetError, match=words) as caught:
        check(preset.load(), config, "the model")
    assert caught.value.hint
