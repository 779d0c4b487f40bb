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
from simulated_device import SimulatedDevice, lies_there
from tiny_finder import tiny_finder

from esa_cli import models
from esa_cli.errors import UsageError
from esa_cli.methods import registry
from esa_cli.methods.plugin_loading import load_installed
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
    accelerate: Any = import_module("accelerate")  # untyped
    model = copy.deepcopy(loaded.model)
    keys = model._skip_keys_device_placement
    model = accelerate.dispatch_model(model, dict(PLACES), main_device="cpu", skip_keys=keys)
    device.put(model.model.layers[1], model.model.norm, model.lm_head)
    return replace(loaded, model=model)


def on_both(loaded: Any, ask: Callable[[Any], str]) -> tuple[str, str]:
    """An answer of the model on one device and on two."""
    one = ask(replace(loaded, model=copy.deepcopy(loaded.model)))
    device = SimulatedDevice()
    with device:
        return one, ask(apart(loaded, device))


@pytest.mark.parametrize("method", sorted(registry.RECIPES))
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
    for place in ("reading.reader", "finding.token_encoder"):
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_balanced_without_a_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="balanced needs a GPU") as caught:
        models.load("random:llama", device="balanced")
    assert caught.value.hint == "try auto or cpu"
