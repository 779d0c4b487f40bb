"""Layers on two devices: rows stay with their layers, tensors meet on one, and answers are equal.

The second device is simulated (`simulated_device`), and the hooks are accelerate's. Nothing here
ran on several GPUs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ModelFactory
from simulated_device import SimulatedDevice, lies_there
from tiny_finder import tiny_finder

from esa_cli import models
from esa_cli.errors import ResourceError, UsageError
from esa_cli.methods import recipes
from esa_cli.methods.plugin_loading import load_installed
from esa_cli.models.loading import layer_spreading
from esa_cli.models.loading.layer_spreading import device_map, layer_places, spread
from esa_cli.qa.answering.session import Session
from esa_cli.qa.api import Esa
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.resolved_preset import apply
from esa_cli.storage.library import Library

pytestmark = pytest.mark.families

load_installed()
TEXT = "The gate opens at nine and the market closes at dusk. " * 30
QUESTION = "When does the gate open?"
THERE = "cpu:0"
"""The simulated device's name."""
PLACES = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers.0": "cpu",
          "model.layers.1": THERE, "model.norm": THERE, "lm_head": THERE}  # fmt: skip


def apart(loaded: Any, device: SimulatedDevice) -> Any:
    """The model with its second layer, and what comes behind it, on the other device."""
    model = spread(copy.deepcopy(loaded.model), PLACES)
    device.put(model.model.layers[1], model.model.norm, model.lm_head)
    return replace(loaded, model=model)


def on_both(loaded: Any, ask: Callable[[Any], str]) -> tuple[str, str]:
    """An answer of the model on one device and on two."""
    one = ask(replace(loaded, model=copy.deepcopy(loaded.model)))
    device = SimulatedDevice()
    with device:
        return one, ask(apart(loaded, device))


@pytest.mark.parametrize("method", sorted(recipes.RECIPES))
def test_every_method_answers_as_on_one_device(loaded: Any, method: str) -> None:
    chosen = apply(method, preset.load("tiny-random"), 2000)

    def ask(host: Any) -> str:
        with Session(host.model, host.tokenizer, chosen) as session:
            session.read(TEXT)
            text = session.ask(QUESTION, max_new_tokens=8).text
            keys = [session.cache.memory(i).store.span(0, 3)[0] for i in (0, 1)]
            there = host.model.lm_head.weight
            assert [lies_there(one) for one in keys] == [False, lies_there(there)]
            return text

    one, two = on_both(loaded, ask)
    assert one == two


@pytest.mark.parametrize("finder", [False, True])
def test_answers_from_text(
    loaded: Any, finder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a GPU's layers there are no fused weights; the simulated device is a processor to torch.
    for place in ("reading.passage_reader", "finding.token_encoder"):
        monkeypatch.setattr(f"esa_cli.qa.{place}.can_be_fused", lambda model: False)
    settings = ["answer.from=text"]
    if finder:
        tiny_finder(tmp_path / "finder")
        settings.append(f"answer.finder={tmp_path / 'finder'}")
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")

    def ask(host: Any) -> str:
        with Esa(host, preset.load("tiny-random", settings)) as esa:
            book = esa.ingest(str(tmp_path / "text.txt"))
            return esa.ask(QUESTION, [book], max_new_tokens=6).text

    one, two = on_both(loaded, ask)
    assert one == two


def test_rows_in_the_library(loaded: Any, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")

    def ask(host: Any) -> str:
        with Esa(host, preset.load("tiny-random"), library=library, rows="native") as esa:
            book = esa.ingest(str(tmp_path / "text.txt"))
            assert book.entry is not None
            return esa.ask(QUESTION, [book], max_new_tokens=6).text

    found = []
    for name, there in (("one", False), ("two", True)):
        library = Library(tmp_path / name)
        with SimulatedDevice() as device:
            found.append(ask(apart(loaded, device) if there else loaded))
    assert found[0] == found[1]


# Which layers


@pytest.mark.parametrize(
    ("rooms", "places"),
    [
        ({}, "cccc"),
        ({"a": 45}, "aaaa"),
        ({"a": 44}, "aaac"),
        ({"a": 25, "b": 20}, "aabb"),
        ({"a": 24, "b": 100}, "abbb"),
        ({"a": 25, "b": 15}, "aabc"),
        ({"a": 3, "b": -7, "d": 20}, "ddcc"),
    ],
)
def test_gpus_are_filled_in_order(rooms: dict[str, int], places: str) -> None:
    named = {"c": "cpu"}
    assert layer_places([10] * 4, 5, rooms) == [named.get(one, one) for one in places]


def test_every_part_of_a_model_has_a_place(make_model: ModelFactory) -> None:
    model: Any = make_model("llama", num_hidden_layers=3)
    layer = sum(one.nbytes for one in model.model.layers[0].parameters())
    other = sum(one.nbytes for one in model.parameters()) - 3 * layer
    found = device_map(model, {"cuda:0": other - 1, "cuda:1": other + 2 * layer})
    assert found == {
        "model.embed_tokens": "cuda:1", "model.norm": "cuda:1", "model.rotary_emb": "cuda:1",
        "lm_head": "cuda:1", "model.layers.0": "cuda:1", "model.layers.1": "cuda:1",
        "model.layers.2": "cpu",
    }  # fmt: skip
    assert set(device_map(model, {"cuda:0": -5}).values()) == {"cpu"}
    few = device_map(model, {"cuda:0": layer})
    assert (few["lm_head"], few["model.layers.0"]) == ("cuda:0", "cpu")


# Loading


def test_a_model_larger_than_the_gpus(
    loaded: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = sum(one.nbytes for one in loaded.model.parameters())
    loading: Any = import_module("esa_cli.models.loading.load")
    monkeypatch.setattr(loading, "choose_device", lambda device: "balanced")
    monkeypatch.setattr(loading, "available_memory", lambda device="cpu": 1 << 30)
    monkeypatch.setattr(layer_spreading, "gpu_rooms", lambda: {THERE: whole - 1})
    monkeypatch.setattr(layer_spreading, "device_map", lambda model, rooms: PLACES)
    with SimulatedDevice():
        made = models.load("random:llama", device="balanced", dtype="float32")
    assert set(made.model.hf_device_map.values()) == {"cpu", THERE}
    assert not any(one.is_meta for one in made.model.parameters())
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(made.model(ids).logits, loaded.model(ids).logits)
    assert "offloaded" not in capsys.readouterr().err
    monkeypatch.setattr(loading, "available_memory", lambda device="cpu": whole - 1)
    with pytest.raises(ResourceError, match="and cpu has"):
        models.load("random:llama", device="balanced", dtype="float32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_balanced_without_a_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="balanced needs a GPU") as caught:
        models.load("random:llama", device="balanced")
    assert caught.value.hint == "try auto or cpu"
