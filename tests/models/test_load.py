"""Loading a model folder: what is loaded, and what is refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_files import change, folder, home

from esa_cli import models
from esa_cli.errors import ModelError, ResourceError, UsageError
from esa_cli.system import machine

__all__ = ["folder", "home"]


def test_folder_loads(folder: Path) -> None:
    loaded = models.load(str(folder), device="cpu", dtype="bfloat16")
    assert loaded.dtype == torch.bfloat16
    assert loaded.tokenizer.decode(loaded.tokenizer("ab").input_ids) == "ab"
    with pytest.raises(ModelError, match="not in esa's cache"):
        models.delete_cached_model(str(folder))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: (f / "config.json").unlink(),
        lambda f: (f / "config.json").write_text("{"),
        lambda f: (f / "config.json").write_text("{}"),
        lambda f: change(f / "config.json", model_type="nonesuch"),
        lambda f: change(f / "config.json", model_type="t5"),
        lambda f: (f / "model.safetensors").unlink(),
        lambda f: cut(f / "model.safetensors"),
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64),
        lambda f: (f / "model.safetensors").rename(f / "model-00001-of-00001.safetensors"),
        lambda f: (f / "tokenizer.json").unlink(),
        lambda f: (f / "tokenizer.json").write_text("{}"),
    ],
)
def test_broken_folders(folder: Path, damage: Any) -> None:
    index = {"weight_map": {"a": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    damage(folder)
    with pytest.raises(ModelError, match="model"):
        models.load(str(folder), device="cpu", dtype="float32")


def test_own_code_is_never_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = {"AutoConfig": "m.C", "AutoModelForCausalLM": "m.M"}
    change(folder / "config.json", model_type="esa_evil", auto_map=code)
    (folder / "m.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError, match="custom code"):
        models.load(str(folder), device="cpu")
    assert not capsys.readouterr().out, "nobody is asked whether it may run"


def test_bad_device_and_dtype(folder: Path) -> None:
    wrong = [{"device": name} for name in ("abacus", "cuda:99", "meta", "balanced")]
    for options in ({"dtype": "int3"}, *wrong):
        with pytest.raises(UsageError):
            models.load(str(folder), **options)


def test_limits_on_memory_count_when_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "3KiB")
    with pytest.raises(ResourceError, match=r"needs .* 3\.0 KiB available"):
        models.load(str(folder), device="cpu", dtype="float32")
    monkeypatch.delenv("ESA_MEMORY_LIMIT")
    monkeypatch.setattr(machine, "_read_free_container_memory", lambda: 11)
    with pytest.raises(ResourceError, match="11 bytes available"):
        models.load(str(folder), device="cpu", dtype="float32")
