"""Where rows are kept: which layers are in host memory, what a plan says of it, and its errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ModelFactory

from esa_cli.errors import ResourceError, UsageError
from esa_cli.models.attachment.attach import attach
from esa_cli.models.attachment.inspection import attention_modules
from esa_cli.qa.answering.session import Session
from esa_cli.qa.api import Esa
from esa_cli.qa.planning import costs, model_shape, plan
from esa_cli.qa.planning.cache_placement import CachePlacement
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.resolved_preset import resolve
from esa_cli.storage.library import Library
from esa_cli.storage.memory_store import RESERVE, StorePlaces
from esa_cli.system import machine

TEXT = "The gate opens at nine and the market closes at dusk. " * 30
QUESTION = "When does the gate open?"
CPU, META = torch.device("cpu"), torch.device("meta")
TOKENS = 100_000


def costs_of(loaded: Any) -> costs.Costs:
    shape = model_shape.shape_of(loaded.model.config.to_dict())
    method = resolve(preset.load("tiny-random")).method
    return costs.Costs(shape, method, costs.rank_of(method, shape), on_gpu=True)


def on_host(loaded: Any, cache: str, room: dict[torch.device, int] | None = None) -> frozenset[int]:
    """The layers in host memory: the first of the model's two on `cpu`, the second on `meta`, each
    with `room` for rows beyond what reading needs."""
    made = costs_of(loaded)
    other = made.working(TOKENS, 4) + made.reduced_keys(TOKENS, 4)
    places = StorePlaces(lambda device: device == META or room is None)
    placement = CachePlacement(
        loaded.model, made.method, cache, places, lambda device: other + (room or {})[device]
    )
    return placement.on_host([CPU, META], TOKENS)


def test_layers_in_host_memory_are_those_that_are_asked_for(loaded: Any) -> None:
    assert on_host(loaded, "device") == on_host(loaded, "disk") == set()
    assert on_host(loaded, "host") == {0, 1}
    assert on_host(loaded, "host", {}) == {1}, "the CPU's layer is there anyway"


def test_a_device_keeps_as_many_layers_as_fit(loaded: Any) -> None:
    made = costs_of(loaded)
    one = made.keys_values(TOKENS, 4) // 2
    assert on_host(loaded, "auto", {META: one}) == set()
    assert on_host(loaded, "auto", {META: one // 2}) == {1}
    assert on_host(loaded, "auto", {META: -1}) == {1}


@pytest.mark.parametrize("layers", [1, 2, 7])
def test_the_fewest_layers_are_in_host_memory(loaded: Any, layers: int) -> None:
    made = costs_of(loaded)
    numbers = made.shape.numbers // made.shape.rows * layers
    made = replace(made, shape=replace(made.shape, rows=layers, numbers=numbers))
    every = costs.row_places(made, TOKENS, 2, 0).on_device
    for room in (every, every - 1, every // 2, every // 10, 0):
        count = costs.fewest_host_layers(made, TOKENS, 2, room)
        found = costs.row_places(made, TOKENS, 2, count)
        assert count == layers or found.on_device <= room
        if count:
            assert costs.row_places(made, TOKENS, 2, count - 1).on_device > room
        assert (found.on_host == 0) == (count == 0)
    assert costs.fewest_host_layers(made, 10, 2, 0) == 0, "the device keeps these anyway"


def test_no_such_place(loaded: Any) -> None:
    with pytest.raises(UsageError, match="cloud"):
        Session(loaded.model, loaded.tokenizer, preset.load("tiny-random"), "cloud")


def test_layers_are_counted_as_the_model_counts_them(make_model: ModelFactory) -> None:
    model: Any = make_model("lfm2")
    kept = [i for i, one in enumerate(attention_modules(model)) if one is not None]
    assert kept != [*range(len(kept))], "some keep a state"
    places = StorePlaces(lambda device: True)
    method = resolve(preset.load("tiny-random")).method
    with attach(model, method) as attached:
        cache = attached.new_cache(CachePlacement(model, method, "host", places).stores(10))
        model(torch.arange(1, 40)[None], past_key_values=cache)
        assert [one.layer for one in cache.memories] == kept
        assert not any(one.store.resident for one in cache.memories)


def host_session(loaded: Any) -> Session:
    made = Session(loaded.model, loaded.tokenizer, preset.load("tiny-random"), "host")
    places = StorePlaces(lambda device: True)
    made.placement = CachePlacement(loaded.model, made.method, "host", places)
    return made


def test_a_session_with_its_cache_on_the_host(loaded: Any) -> None:
    with Session(loaded.model, loaded.tokenizer, preset.load("tiny-random")) as plain:
        plain.read(TEXT)
        want = plain.ask(QUESTION)
    with host_session(loaded) as session:
        session.read(TEXT)
        assert not any(layer.memory.store.resident for layer in session.cache.own)  # type: ignore[union-attr]
        assert session.ask(QUESTION).text == want.text
        document = session.prefilled_document()
        session.clear()
        for _ in range(2):
            session.open([document])
            assert session.ask(QUESTION).text == want.text
        session.open([document, document])
        assert session.ask(QUESTION).text


def test_rows_on_disk_are_those_of_a_library(loaded: Any, tmp_path: Any) -> None:
    chosen, on_disk = preset.load("tiny-random"), replace(loaded, cache="disk")
    with Esa(on_disk, chosen) as esa, pytest.raises(UsageError, match="stored in the library"):
        esa.ingest(str(written(tmp_path)))
    with Esa(on_disk, chosen, library=Library(tmp_path / "library")) as esa:
        book = esa.ingest(str(written(tmp_path)))
        assert book.entry is not None
        assert esa.ask(QUESTION, [book], max_new_tokens=4).text is not None


def written(folder: Any) -> Any:
    path = folder / "text.txt"
    path.write_text(TEXT, "utf-8")
    return path


@pytest.mark.parametrize("opened", [False, True])
def test_what_is_counted_is_what_a_gpu_allocates(
    loaded: Any, opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked where it was read, or as a book, which is opened with a tail of its own."""
    monkeypatch.setattr("esa_cli.storage.memory_store.in_one_segment", lambda device: True)
    with Session(loaded.model, loaded.tokenizer, preset.load("tiny-random")) as session:
        session.begin(session.prompt.document(TEXT), reserve=0 if opened else RESERVE)
        session.resume()
        if opened:
            session.open([session.prefilled_document()])
        session.ask(QUESTION, max_new_tokens=2)
        made, tokens = costs_of(loaded), session.document_tokens
        allocated = session.cache.nbytes
        if opened:  # no reduced keys of so few tokens are needed
            allocated += RESERVE * made.rank * 4
    assert made.keys_values(tokens, 4) + made.reduced_keys(tokens, 4) == allocated


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 64, "num_hidden_layers": 10, "vocab_size": 61,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.delenv("ESA_MEMORY_LIMIT", raising=False)
    monkeypatch.setattr(machine, "available_memory", lambda device="cpu": 16 << 30)
    monkeypatch.setattr(machine, "free_memory", lambda device="cpu": 16 << 30)


def planned(cache: str, memory: int, tokens: int = TOKENS, device: str = "cuda") -> plan.Plan:
    made = plan.Planner(
        resolve(preset.load("tiny-random")), Path(), dtype=torch.bfloat16, device=device,
        memory=memory, cache=cache,
    )  # fmt: skip
    return made.plan(tokens)


def needed_with(share: float) -> int:
    """Memory for everything and this share of the keys and values."""
    whole = planned("device", 0)
    return whole.needed - int((1 - share) * whole.keys_values)


def test_a_plan_counts_what_is_in_host_memory() -> None:
    here, there = planned("device", 0), planned("host", 0)
    assert here.host_layers == here.host_keys_values == 0
    assert there.host_layers == 10
    assert here.keys_values > there.host_keys_values > 0.95 * here.keys_values, "no reserve"
    assert there.keys_values < here.keys_values // 10
    assert there.reduced_keys == here.reduced_keys, "these are always on the device"
    half = planned("auto", needed_with(0.5))
    assert half.fits
    assert 4 <= half.host_layers <= 6
    assert planned("auto", needed_with(1)).host_layers == 0


def test_rows_on_the_cpu_or_on_disk_take_no_host_memory() -> None:
    for cache in ("auto", "host", "device"):
        made = planned(cache, 1 << 30, device="cpu")
        assert (made.host_layers, made.host_keys_values) == (0, 0)
        assert made.keys_values == planned("device", 0, device="cpu").keys_values
    made, one_segment = planned("disk", 0), planned("device", 0, 8192)
    assert made.keys_values == one_segment.keys_values
    assert made.reduced_keys == one_segment.reduced_keys
    assert made.working == planned("device", 0).working


def test_errors_name_the_places_where_it_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = needed_with(0.5)
    with pytest.raises(ResourceError, match="cuda has") as caught:
        planned("device", memory).check()
    assert "use --cache host, which fits; or use --cache disk" in caught.value.hint
    planned("auto", memory).check()
    planned("host", memory).check()
    monkeypatch.setattr(machine, "available_memory", lambda device="cpu": 1 << 20)
    for cache in ("auto", "host"):
        with pytest.raises(ResourceError, match=r"the host has 1\.0 MiB") as caught:
            planned(cache, memory).check()
        assert "use --cache disk, which fits" in caught.value.hint
        assert "--cache host" not in caught.value.hint


@pytest.mark.parametrize("cache", ["auto", "device", "host"])
def test_most_tokens_is_the_edge(cache: str) -> None:
    memory = needed_with(0.5)
    most = planned(cache, memory).most_tokens
    assert planned(cache, memory, most).fits
    assert not planned(cache, memory, most + 1).fits
    assert (most < TOKENS) == (cache == "device")
