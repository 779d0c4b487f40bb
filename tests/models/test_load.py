"""Loading a model folder: what is loaded, and what is refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_files import TEXTS, byte_letters, home

from esa_cli import models
from esa_cli.errors import ModelError, ResourceError, UsageError
from esa_cli.system import machine

__all__ = ["home"]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    sizes: dict[str, Any] = {"vocab_size": 256, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    backend = Tokenizer(BPE({c: i for i, c in enumerate(byte_letters())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    import shutil

    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def test_folder_loads(folder: Path) -> None:
    import torch

    loaded = models.load(str(folder), device="cpu", dtype="bfloat16")
    assert loaded.dtype == torch.bfloat16
    assert loaded.tokenizer.decode(loaded.tokenizer("ab").input_ids) == "ab"
    with pytest.raises(ModelError, match="your own folder"):
        models.remove(str(folder))


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **values}), "utf-8")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "config.json").write_text("{}"), "model_type"),
        (lambda f: change_config(f, model_type="nonesuch"), "of the kind 'nonesuch'"),
        (lambda f: change_config(f, model_type="t5"), "of the kind 't5'"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda f: cut(f / "model.safetensors"), "damaged or cut off"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "damaged or cut off"),
        (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer .* cannot be read"),
    ],
)
def test_broken_folders(folder: Path, damage: Any, message: str) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=message):
        models.load(str(folder), device="cpu", dtype="float32")


def test_own_code_is_never_run(folder: Path) -> None:
    change_config(
        folder, model_type="esa_evil", auto_map={"AutoConfig": "m.C", "AutoModelForCausalLM": "m.M"}
    )
    (folder / "m.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError, match="own Python code"):
        models.load(str(folder), device="cpu")


def test_missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="lacks 1 of 1"):
        models.load(str(folder), device="cpu")


def test_bad_device_and_dtype(folder: Path) -> None:
    for options in ({"dtype": "int3"}, {"device": "abacus"}, {"device": "cuda:99"}):
        with pytest.raises(UsageError):
            models.load(str(folder), **options)


def test_not_enough_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    class Memory:
        available = 10

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    with pytest.raises(ResourceError, match="10 bytes available"):
        models.load(str(folder), device="cpu", dtype="float32")


def test_limits_on_memory_count_when_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "3KiB")
    with pytest.raises(ResourceError, match=r"needs 41\.2 KiB .* 3\.0 KiB available"):
        models.load(str(folder), device="cpu", dtype="float32")
    monkeypatch.delenv("ESA_MEMORY_LIMIT")
    monkeypatch.setattr(machine, "_cgroup_free", lambda: 11)
    with pytest.raises(ResourceError, match="11 bytes available"):
        models.load(str(folder), device="cpu", dtype="float32")


@pytest.mark.model
def test_default_model(home: Path) -> None:
    models.pull(models.DEFAULT_MODEL)
    loaded = models.load(models.DEFAULT_MODEL, device="cpu", dtype="float32", offline=True)
    for text in TEXTS:
        assert loaded.tokenizer.decode(loaded.tokenizer(text).input_ids) == text
    assert loaded.tokenizer.tokenize("1997") == list("1997")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = loaded.tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    output = loaded.model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in loaded.tokenizer.decode(output[0])
