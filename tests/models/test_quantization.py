"""Quantised weights: real ones of torchao and bitsandbytes where these are installed, and what is
refused where they are not."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_files import new_adapter
from model_files import home

from esa_cli import models
from esa_cli.attention.method import Method
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.attachment.attach import attach
from esa_cli.models.attachment.fingerprint import compute_model_fingerprint
from esa_cli.models.attachment.layer_traits import get_kv_dtype, get_unquantised_weight
from esa_cli.models.loading.quantization import (
    QUANTIZATIONS,
    estimate_bytes_per_quantised_weight,
    read_quantization_method,
    weights_stay_quantised,
)
from esa_cli.models.text_passes.text_forward import can_fuse_model
from esa_cli.qa.presets.cache_key import digest_model

__all__ = ["home"]

HERE = [name for name, way in QUANTIZATIONS.items() if "cpu" in way.devices]
IDS = torch.randint(0, 256, (1, 40), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with sizes that the packages can quantise."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from esa_cli.models.files.random_model import write_byte_tokenizer

    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
        initializer_range=0.1, bos_token_id=256, eos_token_id=258, pad_token_id=256,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    write_byte_tokenizer(path)
    return path


@pytest.fixture(params=HERE)
def way(request: pytest.FixtureRequest) -> str:
    """Each way to quantise weights on a CPU whose package is installed."""
    name: str = request.param
    pytest.importorskip(QUANTIZATIONS[name].package)
    return name


def load(folder: Path, dtype: str = "float32") -> models.LoadedModel:
    return models.load(str(folder), device="cpu", dtype=dtype)


def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(IDS).logits.float()
    return found


def test_quantised_weights_answer_nearly_alike(way: str, folder: Path) -> None:
    """The model, a method that is attached with everything in the window, and an adapter."""
    plain, packed = load(folder), load(folder, way)
    assert get_unquantised_weight(packed.model.model.layers[0].self_attn.q_proj) is None
    assert get_unquantised_weight(packed.model.model.embed_tokens) is not None
    wanted, found = logits(plain.model), logits(packed.model)
    assert 0 < (found - wanted).norm() / wanted.norm() < (0.5 if way == "nf4" else 0.2)
    assert (can_fuse_model(packed.model), can_fuse_model(plain.model)) == (False, True)
    assert get_kv_dtype(packed.model) == packed.dtype
    with attach(packed.model, Method()) as attached:
        own = attached.model(IDS, past_key_values=attached.new_cache()).logits.float()
    assert (own - found).norm() / found.norm() < 0.05
    adapter = new_adapter(packed.model, rank=2, alpha=4)
    with adapter.apply():
        assert torch.equal(logits(packed.model), found), "an untrained one changes nothing"
        for _, b in adapter.matrices.values():
            b.data.fill_(0.01)
        assert not torch.allclose(logits(packed.model), found)
    assert torch.equal(logits(packed.model), found)


def test_quantised_models_have_keys_of_their_own(way: str, folder: Path) -> None:
    plain, packed, again = load(folder), load(folder, way), load(folder, way)
    assert compute_model_fingerprint(packed.model) != compute_model_fingerprint(plain.model)
    facts = digest_model(packed.model, packed.tokenizer)
    assert facts["weights"] != digest_model(plain.model, plain.tokenizer)["weights"]
    assert facts == digest_model(again.model, again.tokenizer)
    wanted = logits(packed.model)
    for _ in range(2):
        assert digest_model(packed.model, packed.tokenizer) == facts, "of a model that was used"
        assert torch.equal(logits(packed.model), wanted), "looking at weights leaves them alone"


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.util.find_spec
    absent = ("torchao", "bitsandbytes", "compressed_tensors")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda one, *rest: None if one in absent else known(one)
    )


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_a_missing_package_or_device_is_named(name: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=f"{name} need"):
        load(folder, name)


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    "values",
    [
        {"quant_method": "compressed-tensors"}, {"load_in_4bit": True}, {"quant_method": "gptq"},
        {"quant_method": "nvfp4"}, {"bits": 4},
    ],
)  # fmt: skip
def test_files_that_cannot_be_loaded_are_refused_at_once(
    values: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(folder, tmp_path / "packed") / "config.json"
    config = json.loads(path.read_text("utf-8")) | {"quantization_config": values}
    path.write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelError, match="quantised by"):
        load(path.parent)


@pytest.mark.parametrize(
    ("settings", "method", "size"),
    [
        ({"quant_method": "hqq", "nbits": 2}, "hqq", 0.3),
        ({"load_in_4bit": True}, "bitsandbytes", 0.55),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, "torchao", 0.55),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"num_bits": 4}, "inputs": {"num_bits": 8}}},
            },
            "compressed-tensors",
            0.55,
        ),
    ],
)
def test_bytes_of_a_weight_that_stays_quantised(
    settings: dict[str, Any], method: str, size: float
) -> None:
    for config in (
        {"quantization_config": settings},
        {"text_config": {"quantization_config": settings}},
    ):
        assert read_quantization_method(config) == method
        assert estimate_bytes_per_quantised_weight(config) == pytest.approx(size)
        assert weights_stay_quantised(config, "cuda:1")
        assert weights_stay_quantised(config, "cpu") == (method in ("bitsandbytes", "torchao"))
    assert not weights_stay_quantised({}, "cuda")
