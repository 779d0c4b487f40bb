"""Models that transformers loads when they are needed. Tiny random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_files import home

from esa_cli import models
from esa_cli.models.files.checkpoint_files import load_cached_metadata
from esa_cli.models.loading.load import CONFIG_FILES, LoadedModel
from esa_cli.models.loading.plain_decoder import LazyTransformersModel, load_without_transformers
from esa_cli.models.text_passes.model_forward import call_before_each_layer
from esa_cli.qa.presets.cache_key import digest_model

__all__ = ["home"]

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
    return load_cached_metadata("config", folder, CONFIG_FILES)


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
