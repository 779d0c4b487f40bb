"""Loading a model folder: what is loaded, and what is refused with its reason."""

from __future__ import annotations

import importlib
import json
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from model_files import change, folder, home

from esa_cli import models
from esa_cli.errors import ModelError, ResourceError, UsageError
from esa_cli.models.files.checkpoint_files import load_cached_metadata
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.models.loading.load import LoadedModel
from esa_cli.models.loading.plain_decoder import LazyTransformersModel, load_without_transformers
from esa_cli.models.text_passes.text_forward import call_before_each_layer
from esa_cli.qa.presets.cache_key import digest_model
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


@pytest.fixture
def logging() -> Any:
    found: Any = importlib.import_module("transformers.utils.logging")
    found.set_verbosity_warning()
    found.enable_progress_bar()
    return found


def is_silent(logging: Any) -> bool:
    levels = (logging.get_verbosity() == logging.ERROR, not logging.is_progress_bar_enabled())
    assert len(set(levels)) == 1
    return levels[0]


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_blocks_of_several_threads(logging: Any, first_to_end: int) -> None:
    filters = list(warnings.filters)
    blocks = [quiet_transformers(), quiet_transformers()]

    def in_thread(step: Callable[[], object]) -> None:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()

    for block in blocks:
        in_thread(block.__enter__)
    in_thread(partial(blocks.pop(first_to_end).__exit__, None, None, None))
    assert is_silent(logging)
    with warnings.catch_warnings(record=True) as shown:
        warnings.warn("no", stacklevel=1)
    assert not shown
    in_thread(partial(blocks.pop().__exit__, None, None, None))
    assert not is_silent(logging)
    assert list(warnings.filters) == filters


MODEL = "random:llama"
HOW: dict[str, Any] = {"device": "cpu", "dtype": "float32"}


@pytest.fixture
def whole() -> LoadedModel:
    return models.load(MODEL, **HOW)


def deferred(dtype: str = "float32", **how: Any) -> LazyTransformersModel:
    found = load_without_transformers(MODEL, getattr(torch, dtype), **how)
    assert found is not None
    return found


def test_only_what_transformers_has_loaded_once_is_deferred(home: Path) -> None:
    assert load_without_transformers(MODEL, torch.float32) is None
    first = models.load(MODEL, **HOW)
    assert isinstance(first, LoadedModel)
    assert first.text_model is first.model
    stages: list[str] = []
    seen = lambda stage, *more: stages.append(stage)  # noqa: E731
    later = load_without_transformers(MODEL, torch.float32, progress=seen)
    assert isinstance(later, LazyTransformersModel)
    assert stages == ["import", "load"]
    for name in ("ref", "folder", "dtype", "device"):
        assert getattr(later, name) == getattr(first, name)
    assert deferred(tokenizer=first.tokenizer).tokenizer is first.tokenizer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_facts_of_stored_documents_are_the_same(dtype: str) -> None:
    first = models.load(MODEL, device="cpu", dtype=dtype)
    later = deferred(dtype=dtype)
    facts = digest_model(later.text_model, later.tokenizer)
    assert facts == digest_model(first.model, first.tokenizer)
    assert facts == digest_model(later.model, later.tokenizer)


def test_the_model_is_the_same_and_shares_its_weights(whole: LoadedModel) -> None:
    later = deferred(dtype="bfloat16")
    want = models.load(MODEL, device="cpu", dtype="bfloat16").model
    torch.manual_seed(3)
    drawn = torch.rand(3)
    torch.manual_seed(3)
    with torch.inference_mode():
        model = later.model
        assert torch.equal(torch.rand(3), drawn)
    assert later.model is model
    own = dict(later.text_model.named_parameters())
    for name, weight in model.named_parameters():
        assert weight.data_ptr() == own[name].data_ptr()
        assert not weight.is_inference()
    ids = torch.arange(20)[None]
    assert torch.equal(model(ids).logits, want(ids).logits)
    assert model.generation_config.to_dict() == want.generation_config.to_dict()
    assert not model.training


def test_what_ends_a_pass_ends_that_of_the_model_loaded_later(whole: LoadedModel) -> None:
    later = deferred()

    def stop() -> None:
        raise InterruptedError

    with call_before_each_layer(later.text_model, stop), pytest.raises(InterruptedError):
        later.model(torch.arange(5)[None])
    later.model(torch.arange(5)[None])


def cached_config(folder: Path) -> dict[str, Any] | None:
    return load_cached_metadata("config", folder)


def test_settings_are_known_by_the_models_files(whole: LoadedModel, home: Path) -> None:
    assert cached_config(whole.folder) == json.loads(json.dumps(whole.model.config.to_dict()))
    [path] = [one for one in (home / "settings").iterdir() if b"rope_theta" in one.read_bytes()]
    good = path.read_bytes()
    for bad in (good.replace(b"10000.0", b"10100.0"), good[:-9], b"", b"\xff"):
        path.write_bytes(bad)
        assert cached_config(whole.folder) is None
        assert load_without_transformers(MODEL, torch.float32) is None
        models.load(MODEL, **HOW)
        assert path.read_bytes() == good, "damaged ones are written again"
    config = whole.folder / "config.json"
    config.write_text(config.read_text() + " ")
    assert cached_config(whole.folder) is None
    assert load_without_transformers(str(whole.folder), torch.float32) is None
