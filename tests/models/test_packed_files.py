"""Checkpoints whose files are quantised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_fixtures import cache, esa, note, surroundings
from conftest import build_model
from model_files import home
from packed_files import quantise

from esa_cli import models
from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import compute_weight_bytes
from esa_cli.models.files.random_model import write_byte_tokenizer
from esa_cli.models.loading.plain_decoder import load_without_transformers
from esa_cli.qa.presets.cache_key import digest_model

__all__ = ["cache", "esa", "home", "note", "surroundings"]
IDS = torch.randint(0, 61, (1, 40), generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 384, "intermediate_size": 128, "head_dim": 64}


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    def saved(kind: str, family: str = "llama", **sizes: Any) -> Path:
        folder = tmp_path / "model"
        build_model(family, **(sizes or SIZES)).save_pretrained(folder)
        write_byte_tokenizer(folder)
        quantise(folder, kind)
        return folder

    return saved


def logits(folder: Path, dtype: str = "float32") -> torch.Tensor:
    model = models.load(str(folder), device="cpu", dtype=dtype).model
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits.float()
    return found


@pytest.mark.parametrize(
    ("kind", "family", "sizes"),
    [
        ("fp8 blocks", "llama", SIZES),
        ("mxfp8", "llama", SIZES),
        ("mxfp4", "gpt_oss", {"hidden_size": 64, "intermediate_size": 32}),
        ("fp8 tensor", "ministral3", {"hidden_size": 64}),
        ("fp8 tensor", "qwen3_moe", {"hidden_size": 64, "moe_intermediate_size": 32}),
    ],
)
def test_quantised_files_answer_as_the_weights_that_they_store(
    kind: str, family: str, sizes: dict[str, Any], save: Callable[..., Path]
) -> None:
    folder = save(kind, family, **sizes)
    wanted = logits(folder / "plain")
    assert torch.allclose(logits(folder), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    assert compute_weight_bytes(folder, 4) == pytest.approx(
        compute_weight_bytes(folder / "plain", 4), rel=1e-3
    )


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_the_key_is_that_of_the_weights(save: Callable[..., Path]) -> None:
    folder = save("fp8 blocks")
    load = {"device": "cpu", "dtype": "bfloat16"}
    first, again, plain = (
        models.load(str(one), **load) for one in (folder, folder, folder / "plain")
    )
    facts = [digest_model(one.model, one.tokenizer) for one in (first, again, plain)]
    assert facts[0] == facts[1] == facts[2]
    assert {weight.dtype for weight in first.model.parameters()} == {torch.bfloat16}
    assert load_without_transformers(str(folder), torch.bfloat16) is None, "no plain weights"
    change_weights(
        folder, lambda all: all["model.layers.0.self_attn.k_proj.weight_scale_inv"].mul_(1.25)
    )
    other = models.load(str(folder), **load)
    assert digest_model(other.model, other.tokenizer)["weights"] != facts[0]["weights"]


UP = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("kind", "sizes", "change", "settings"),
    [
        ("fp8 tensor", {}, lambda all: all.pop("model.norm.weight"), True),
        ("fp8 blocks", {}, lambda all: all.pop(f"{UP}.weight_scale_inv"), True),
        # transformers would load these as weights
        ("fp8 blocks", {}, lambda all: None, False),
        # and 192 rows with two scales as two blocks of 96, not of 128 and 64
        ("fp8 blocks", {**SIZES, "hidden_size": 192, "head_dim": 32}, lambda all: None, True),
    ],
)
def test_files_that_would_load_wrong_weights_are_refused(
    kind: str,
    sizes: dict[str, int],
    change: Callable[[dict[str, Any]], object],
    settings: bool,
    save: Callable[..., Path],
) -> None:
    folder = save(kind, **sizes)
    change_weights(folder, change)
    if not settings:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        del config["quantization_config"]
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelError, match="model\\."):
        logits(folder)
