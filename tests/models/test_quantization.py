"""Packed weights: real ones of torchao and bitsandbytes where these are installed, and what is said
where they are not."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_files import home

from esa_cli import models
from esa_cli.attention.method import Method
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.attachment.attach import attach
from esa_cli.models.fingerprint import fingerprint
from esa_cli.models.inspection import kv_dtype, layer_devices, plain_weight
from esa_cli.models.loading.quantization import QUANTIZATIONS, bytes_needed
from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.models.text_passes.small_decoder import can_be_fused
from esa_cli.qa.planning.model_shape import weights_of
from esa_cli.qa.presets.cache_key import model_facts

__all__ = ["home"]

HERE = [name for name, way in QUANTIZATIONS.items() if "cpu" in way.devices]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with sizes that the packages can pack."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from esa_cli.models.files.random_model import write_tokenizer

    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
        initializer_range=0.1, bos_token_id=256, eos_token_id=258, pad_token_id=256,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    write_tokenizer(path)
    return path


@pytest.fixture(params=HERE)
def way(request: pytest.FixtureRequest) -> str:
    """Each way to pack weights on a processor whose package is installed."""
    name: str = request.param
    pytest.importorskip(QUANTIZATIONS[name].package)
    return name


IDS = torch.randint(0, 256, (1, 40), generator=torch.Generator().manual_seed(0))


def load(folder: Path, dtype: str = "float32") -> models.LoadedModel:
    return models.load(str(folder), device="cpu", dtype=dtype)


def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(IDS).logits.float()
    return found


def test_packed_weights_answer_nearly_alike(way: str, folder: Path) -> None:
    plain, packed = load(folder), load(folder, way)
    projection = packed.model.model.layers[0].self_attn.q_proj
    assert plain_weight(projection) is None
    assert plain_weight(packed.model.model.embed_tokens) is not None
    wanted = logits(plain.model)
    difference = (logits(packed.model) - wanted).norm() / wanted.norm()
    assert 0 < difference < (0.5 if way == "nf4" else 0.2)
    assert not can_be_fused(packed.model)
    assert can_be_fused(plain.model)
    assert kv_dtype(packed.model) == packed.dtype
    assert layer_devices(packed.model) == [torch.device("cpu")] * 2


def test_packed_models_have_keys_of_their_own(way: str, folder: Path) -> None:
    plain, packed, again = load(folder), load(folder, way), load(folder, way)
    assert fingerprint(packed.model) != fingerprint(plain.model)
    facts = model_facts(packed.model, packed.tokenizer)
    assert facts["weights"] != model_facts(plain.model, plain.tokenizer)["weights"]
    assert facts == model_facts(again.model, again.tokenizer)
    wanted = logits(packed.model)
    for _ in range(2):
        assert model_facts(packed.model, packed.tokenizer) == facts, "of a model that was used"
        assert torch.equal(logits(packed.model), wanted), "looking at weights leaves them alone"


def test_a_method_runs_on_packed_weights(way: str, folder: Path) -> None:
    """Attached with everything in the window, it computes what the model does."""
    packed = load(folder, way)
    wanted = logits(packed.model)
    with attach(packed.model, Method()) as attached:
        cache = attached.new_cache()
        found = attached.model(IDS, past_key_values=cache).logits.float()
    assert (found - wanted).norm() / wanted.norm() < 0.05


def test_an_adapter_is_added_to_packed_weights(way: str, folder: Path) -> None:
    packed = load(folder, way)
    adapter = LoraAdapter.new(packed.model, rank=2, alpha=4)
    before = logits(packed.model)
    with adapter.active():
        assert torch.equal(logits(packed.model), before), "an untrained one changes nothing"
        for _, b in adapter.matrices.values():
            b.data.fill_(0.01)
        assert not torch.allclose(logits(packed.model), before)
    assert torch.equal(logits(packed.model), before)


@pytest.mark.parametrize("name", ["int8", "nf4", "llm-int8"])
def test_files_that_were_packed_before(name: str, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip(QUANTIZATIONS[name].package)
    from transformers import AutoModelForCausalLM

    from esa_cli.models.files.random_model import write_tokenizer

    automatic: Any = AutoModelForCausalLM
    config = QUANTIZATIONS[name].config(torch.float32)
    given = {"dtype": torch.float32, "device_map": "cpu", "quantization_config": config}
    automatic.from_pretrained(folder, **given).save_pretrained(tmp_path / "packed")
    write_tokenizer(tmp_path / "packed")
    found, wanted = load(tmp_path / "packed"), load(folder, name)
    assert plain_weight(found.model.model.layers[0].self_attn.q_proj) is None
    near = logits(wanted.model)  # computed in another type
    assert (logits(found.model) - near).norm() / near.norm() < 0.1
    assert fingerprint(found.model) != fingerprint(load(folder).model)
    plain = bytes_needed(folder, 4)
    assert bytes_needed(tmp_path / "packed", 4, kept=True) < 0.75 * plain
    with pytest.raises(UsageError, match="already"):
        load(tmp_path / "packed", "int8")


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    known = importlib.util.find_spec

    def hidden(name: str) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda one, *rest: None if one == name else known(one)
        )

    return hidden


@pytest.mark.parametrize("name", HERE)
def test_a_missing_package_is_named_with_its_extra(
    name: str, folder: Path, hide: Callable[[str], None]
) -> None:
    package = QUANTIZATIONS[name].package
    hide(package)
    with pytest.raises(UsageError, match=f"{name} need {package}") as refused:
        load(folder, name)
    assert f"esa-cli[{package}]" in refused.value.hint


def test_four_bits_of_torchao_need_a_gpu(folder: Path) -> None:
    with pytest.raises(UsageError, match="int4 need a device of the kind cuda, got cpu") as refused:
        load(folder, "int4")
    assert "nf4" in refused.value.hint


def quantised(folder: Path, target: Path, **values: Any) -> Path:
    """A copy whose config.json says that its weights are packed."""
    shutil.copytree(folder, target)
    path = target / "config.json"
    config = json.loads(path.read_text("utf-8")) | {"quantization_config": values}
    path.write_text(json.dumps(config), "utf-8")
    return target


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        ({"quant_method": "quanto", "weights": "int8"}, "optimum.quanto", "optimum-quanto"),
        ({"quant_method": "compressed-tensors"}, "compressed_tensors", "compressed-tensors"),
        ({"load_in_4bit": True}, "by bitsandbytes", r"pip install 'esa-cli\[bitsandbytes\]'"),
        ({"quant_method": "gptq"}, "a device of the kind cuda, not cpu", "plain weights"),
        ({"quant_method": "nvfp4"}, "nvfp4, which esa does not load", "GGUF"),
        ({"bits": 4}, "an unknown method", "plain weights"),
    ],
)
def test_files_that_cannot_be_loaded_are_refused_at_once(
    values: dict[str, Any],
    message: str,
    hint: str,
    folder: Path,
    tmp_path: Path,
    hide: Callable[[str], None],
) -> None:
    path = quantised(folder, tmp_path / "packed", **values)
    hide(str(values.get("quant_method", "bitsandbytes")))
    with pytest.raises(ModelError, match=message) as refused:
        load(path)
    assert re.search(hint, refused.value.hint)


def test_packed_files_are_not_packed_again(folder: Path, tmp_path: Path, way: str) -> None:
    path = quantised(folder, tmp_path / "packed", quant_method="bitnet")
    with pytest.raises(UsageError, match="quantised by bitnet already"):
        load(path, way)


def test_bytes_of_weights(folder: Path) -> None:
    plain, body = bytes_needed(folder, 4), weights_of(folder, "cpu", 4).body
    packed = bytes_needed(folder, 4, "int8")
    assert plain - packed == pytest.approx(body * (4 - 1.01), rel=0.01)
    assert weights_of(folder, "cpu", 4, "int8").nbytes == packed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_files_of_every_plain_type_load_in_every_other(
    dtype: torch.dtype, folder: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    path = Path(shutil.copytree(folder, tmp_path / "other"))
    weights = load_file(path / "model.safetensors")
    rounded = {name: one.to(dtype) for name, one in weights.items()}
    save_file(rounded, path / "model.safetensors", {"format": "pt"})
    for wanted in (torch.float32, torch.bfloat16, torch.float16):
        loaded = load(path, str(wanted).removeprefix("torch."))
        assert {one.dtype for one in loaded.model.parameters()} == {wanted}
        first = loaded.model.model.layers[0].mlp.up_proj.weight
        assert torch.equal(first, rounded["model.layers.0.mlp.up_proj.weight"].to(wanted))
