"""Checkpoints whose files are quantised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_fixtures import cache, esa, note, surroundings
from command import Esa, fail
from conftest import build_model
from model_files import home
from packed_files import PACKED, quantise

from esa_cli import models
from esa_cli.errors import ModelError
from esa_cli.models.files.random_model import write_tokenizer
from esa_cli.models.loading import packed_formats
from esa_cli.models.loading.deferred_model import load_deferred
from esa_cli.models.loading.quantization import bytes_needed
from esa_cli.models.loading.unpacking import grouped, scaled
from esa_cli.qa.planning.model_shape import shape_of, with_packing
from esa_cli.qa.presets.cache_key import model_facts

__all__ = ["cache", "esa", "home", "note", "surroundings"]
IDS = torch.randint(0, 61, (1, 40), generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 192, "intermediate_size": 160, "head_dim": 32}


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    def saved(kind: str, family: str = "llama", **sizes: Any) -> Path:
        folder = tmp_path / "model"
        build_model(family, **(sizes or SIZES)).save_pretrained(folder)
        write_tokenizer(folder)
        quantise(folder, kind)
        return folder

    return saved


def logits(folder: Path, dtype: str = "float32") -> torch.Tensor:
    model = models.load(str(folder), device="cpu", dtype=dtype).model
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits.float()
    return found


@pytest.mark.parametrize("kind", [one for one in PACKED if one != "mxfp4"])
def test_quantised_files_answer_as_the_weights_that_they_store(
    kind: str, save: Callable[..., Path]
) -> None:
    folder = save(kind)
    wanted = logits(folder / "plain")
    assert torch.allclose(logits(folder), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    assert bytes_needed(folder, 4) == pytest.approx(bytes_needed(folder / "plain", 4), rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "family", "sizes"),
    [
        ("mxfp4", "gpt_oss", {"hidden_size": 64, "intermediate_size": 32}),
        ("fp8 blocks", "deepseek_v3", {"hidden_size": 160, "kv_lora_rank": 144}),
        ("compressed int4", "qwen3_moe", {"hidden_size": 64, "moe_intermediate_size": 32}),
        ("fp8 tensor", "ministral3", {"hidden_size": 64}),
        ("awq", "qwen3_next", {"hidden_size": 64}),
    ],
)
def test_quantised_mixtures_and_latents(
    kind: str, family: str, sizes: dict[str, Any], save: Callable[..., Path]
) -> None:
    folder = save(kind, family, **sizes)
    wanted = logits(folder / "plain")
    assert torch.allclose(logits(folder), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    assert bytes_needed(folder, 4) == pytest.approx(bytes_needed(folder / "plain", 4), rel=1e-3)


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def change_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    change(config)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


def test_scales_are_used_where_the_settings_do_not_say_so(save: Callable[..., Path]) -> None:
    """As older files of modelopt are, whose settings are in a file of their own."""
    folder = save("modelopt fp8")
    change_config(folder, lambda config: config.pop("quantization_config"))
    wanted = logits(folder / "plain")
    assert torch.allclose(logits(folder), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gptq 8 bits", {"quant_method": "gptq", "format": "gptq_v2"}),
        ("modelopt fp8", {"producer": {}, "quantization": {"quant_algo": "FP8"}}),
        ("modelopt fp8", {"quant_algo": "FP8"}),
        ("compressed int4", PACKED["compressed int4"].settings | {"format": "mixed-precision"}),
    ],
)
def test_settings_as_other_versions_write_them(
    kind: str, settings: dict[str, Any], save: Callable[..., Path]
) -> None:
    folder = save(kind)
    change_config(folder, lambda config: config.update(quantization_config=settings))
    wanted = logits(folder / "plain")
    assert torch.allclose(logits(folder), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_an_unknown_kind_of_model_is_named_as_such(save: Callable[..., Path]) -> None:
    folder = save("gptq")
    change_config(folder, lambda config: config.update(model_type="llama9"))
    with pytest.raises(ModelError, match="of the kind 'llama9'"):
        logits(folder)


def test_the_key_is_that_of_the_weights(save: Callable[..., Path]) -> None:
    folder = save("gptq")
    load = {"device": "cpu", "dtype": "bfloat16"}
    first, again, plain = (
        models.load(str(one), **load) for one in (folder, folder, folder / "plain")
    )
    facts = [model_facts(one.model, one.tokenizer) for one in (first, again, plain)]
    assert facts[0] == facts[1] == facts[2]
    assert load_deferred(str(folder), **load) is None, "its files have no plain weights"
    change_weights(folder, lambda all: all["model.layers.0.self_attn.k_proj.scales"].mul_(1.25))
    other = models.load(str(folder), **load)
    assert model_facts(other.model, other.tokenizer)["weights"] != facts[0]["weights"]


NAME = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("gptq", lambda all: all.pop("model.norm.weight"), "lacks 1 of .* model.norm.weight"),
        ("fp8 blocks", lambda all: all.pop(f"{NAME}.weight_scale_inv"), f"{NAME}.weight is stored"),
        ("awq", lambda all: all.pop(f"{NAME}.qzeros"), f"{NAME}.qweight is stored as I32"),
        (
            "modelopt nvfp4",
            lambda all: all.update({f"{NAME}.pre_quant_scale": torch.ones(192)}),
            f"{NAME}.pre_quant_scale",
        ),
    ],
)
def test_what_cannot_be_unpacked_is_refused(
    kind: str, change: Callable[[dict[str, Any]], object], message: str, save: Callable[..., Path]
) -> None:
    folder = save(kind)
    change_weights(folder, change)
    with pytest.raises(ModelError, match=message):
        logits(folder)


def test_scales_of_experts_in_one_tensor() -> None:
    """Of blocks, of outputs, and of whole experts."""
    numbers = torch.randn(3, 8, 6)
    for shape, factor in (
        ((3, 4, 2), lambda s: s.repeat_interleave(2, 1).repeat_interleave(3, 2)),
        ((3, 8), lambda s: s[:, :, None]),
        ((3,), lambda s: s[:, None, None]),
    ):
        scale = torch.rand(shape)
        assert torch.equal(scaled(numbers.clone(), scale), numbers * factor(scale))


@pytest.mark.parametrize(
    "settings", [{"group_size": 32}, {"config_groups": {"a": {"weights": {"group_size": 32}}}}]
)
def test_the_last_group_may_be_smaller(settings: dict[str, Any]) -> None:
    numbers, zeros, scale = torch.randn(2, 70), torch.randn(2, 3), torch.rand(2, 3)
    found = grouped(numbers.clone(), zeros, scale, None, settings)
    each = torch.tensor([0] * 32 + [1] * 32 + [2] * 6)
    assert torch.equal(found, (numbers - zeros[:, each]) * scale[:, each])


def test_blocks_must_have_a_size(save: Callable[..., Path]) -> None:
    folder = save("fp8 blocks", hidden_size=192, intermediate_size=161, head_dim=32)
    change_config(folder, lambda config: config["quantization_config"].pop("weight_block_size"))
    with pytest.raises(ModelError, match="into blocks") as refused:
        logits(folder)
    assert "weight_block_size" in refused.value.hint


def test_quantised_weights_are_packed_anew(save: Callable[..., Path]) -> None:
    pytest.importorskip("torchao")
    folder = save("fp8 blocks")
    wanted, found = logits(folder / "plain"), logits(folder, "int8")
    assert 0 < (found - wanted).norm() / wanted.norm() < 0.2
    assert bytes_needed(folder, 4, "int8") < 0.6 * bytes_needed(folder, 4)


def test_a_plan_counts_what_will_be_in_memory(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(kind: str, device: str) -> tuple[int, str]:
        config = dense if kind != "mxfp4" else mixture
        config["quantization_config"] = PACKED[kind].settings
        shape = with_packing(shape_of(config), config, device, "", 2)
        return 2 * shape.weights, packed_formats.stored_as(config, device, "", "bfloat16")

    dense = build_model("llama", **SIZES).config.to_dict()
    mixture = build_model("gpt_oss").config.to_dict()
    plain, experts = 2 * shape_of(dense).weights, 2 * shape_of(mixture).weights
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: (8, 9))
    assert planned("gptq", "cpu") == (plain, "quantised by gptq, unpacked to bfloat16")
    assert planned("mxfp4", "cuda")[0] == experts, "its kernels are not installed"
    monkeypatch.setattr(packed_formats, "_installed", lambda module: True)
    assert planned("gptq", "cuda")[0] < 0.4 * plain
    assert planned("fp8 blocks", "cuda") == (
        pytest.approx(0.53 * plain, rel=0.1),
        "quantised by fp8, kept so",
    )
    assert 0.4 * experts < planned("mxfp4", "cuda")[0] < 0.8 * experts
    assert planned("mxfp4", "cpu")[0] == experts
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: (8, 0))
    assert planned("fp8 blocks", "cuda")[0] == plain, "kernels for fp8 need another GPU"


@pytest.mark.usefixtures("surroundings")
def test_commands_say_what_becomes_of_the_weights(
    save: Callable[..., Path], esa: Esa, note: str
) -> None:
    folder = save("mxfp4", "gpt_oss", hidden_size=64, intermediate_size=32, vocab_size=260)
    change_config(folder, lambda config: config.update(max_position_embeddings=8192))
    chosen = (note, "--model", str(folder), "--preset", "tiny-random", "--dtype", "float32")
    said = "quantised by mxfp4, unpacked to float32"
    assert json.loads(esa("plan", *chosen, "--json").out)["weights"] == said
    assert said in esa("plan", *chosen).out
    assert f"{said}; its weights take" in esa("ingest", *chosen).err
    change_config(folder, lambda config: config["quantization_config"].update(quant_method="aqlm"))
    (folder / "model.safetensors").unlink()
    fail(esa("plan", *chosen), 5, "aqlm", "pip install 'aqlm[gpu,cpu]'")
