"""Memory and time worked out beforehand, sizes as text, and the remembered rates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from conftest import ModelFactory

from esa_cli.errors import PresetError, ResourceError
from esa_cli.models.attachment.attach import attach
from esa_cli.models.attachment.layer_traits import list_attention_modules
from esa_cli.qa.answering.session import Session
from esa_cli.qa.finding.finder import FinderSizes
from esa_cli.qa.planning import model_shape, plan
from esa_cli.qa.planning.plan import puts_kv_cache_on_host
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import check_preset_fits_model, resolve_preset
from esa_cli.storage.memory_store import RESERVE
from esa_cli.system import machine

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 61,
}


def folder_of(config: dict[str, Any], folder: Path) -> Path:
    """A model's folder before its weights are fetched."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESA_HOME", str(tmp_path))
    monkeypatch.delenv("ESA_MEMORY_LIMIT", raising=False)
    monkeypatch.chdir(tmp_path)
    return folder_of(TINY, tmp_path / "tiny")


def make_plan(
    tokens: int = 1000, *overrides: str, dtype: torch.dtype = torch.float32, **options: Any
) -> plan.IngestPlan:
    chosen = resolve_preset(load_preset("tiny-random", overrides))
    planner = plan.IngestPlanner(chosen, Path("tiny"), dtype=dtype, device="cpu", **options)
    return planner.plan_ingest(tokens)


@pytest.mark.parametrize("kind", ["llama", "gemma3n_text", "qwen3_moe"])
def test_weights_are_counted_alike_before_and_after_they_are_fetched(
    make_model: Any, kind: str, tmp_path: Path
) -> None:
    model = make_model(kind)
    own = {one.data_ptr(): one.nbytes for one in model.parameters()}
    model.save_pretrained(tmp_path / "whole")
    index = folder_of({}, tmp_path / "config") / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}')
    whole = model_shape.measure_weight_sizes(tmp_path / "whole", "cpu", 4)
    unmade = model_shape.measure_weight_sizes(
        folder_of(model.config.to_dict(), tmp_path / "config"), "cpu", 4
    )
    assert whole.nbytes == unmade.nbytes == sum(own.values())
    assert whole.body == unmade.body < whole.nbytes // 4
    assert whole.count_weight_bytes(2) == whole.nbytes // 2


def test_an_index_takes_its_keys_alone_and_the_layers_that_run() -> None:
    def index(tokens: int, layers: int, dtype: torch.dtype = torch.float32) -> plan.IngestPlan:
        return make_plan(tokens, dtype=dtype, index=FinderSizes(layers, 128))

    one, both = index(100_000, 1), index(100_000, 2)
    assert (one.keys_values, one.reduced_keys) == (0, 100_000 * (128 + 8))
    assert index(10, 1, torch.bfloat16).reduced_keys == 10 * (128 + 8)
    assert one.operations < both.operations < 2 * one.operations
    tokens = (100_000 - 10) * plan.TOKEN_BYTES
    assert one.working == index(10, 1).working + tokens, "it is computed in pieces"
    assert one.planner.speed_key != make_plan().planner.speed_key


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"num_hidden_layers": 16}, r"score.heads .* 16 layers and 9 heads .* got \[17, 3\]"),
        ({"num_attention_heads": 7}, r"score.heads .* 30 layers and 7 heads .* got \[7, 7\]"),
        ({"max_position_embeddings": 4096}, "context .* 4096 tokens that the model"),
    ],
)
def test_what_does_not_hold_for_the_model_is_named(sizes: dict[str, Any], words: str) -> None:
    config = {"num_hidden_layers": 30, "num_attention_heads": 9, **sizes}
    with pytest.raises(PresetError, match=words) as caught:
        check_preset_fits_model(load_preset(), config, "the model")
    assert caught.value.hint


def test_what_does_not_fit_is_refused_with_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "450MiB")
    most = make_plan().max_fitting_tokens
    fine, tight, half = make_plan(most), make_plan(most + 1), make_plan(dtype=torch.bfloat16)
    fine.check_fits_memory()
    assert (fine.fits_memory, fine.memory_remedies, tight.fits_memory) == (True, (), False)
    with pytest.raises(ResourceError) as caught:
        tight.check_fits_memory()
    assert "450 MiB" in caught.value.message
    assert "--dtype bfloat16" in caught.value.hint
    assert f"{most:,} tokens fit" in caught.value.hint
    assert half.weights * 2 == make_plan().weights
    assert half.keys_values * 2 == make_plan().keys_values


def test_a_measured_speed_is_remembered() -> None:
    make_plan(index=FinderSizes(1, 128)).planner.save_ingest_time(3000, 2.0)
    again = make_plan(6000, index=FinderSizes(1, 128))
    assert (again.speed_source, again.estimated_seconds) == ("measured", pytest.approx(4.0))


TEXT = "The gate opens at nine and the market closes at dusk. " * 30
QUESTION = "When does the gate open?"
TOKENS = 100_000


def costs_of(loaded: Any) -> plan.KvCacheCosts:
    shape = model_shape.read_model_shape(loaded.model.config.to_dict())
    method = resolve_preset(load_preset("tiny-random")).method
    return plan.KvCacheCosts(shape, on_gpu=True, method=method)


def test_layers_are_counted_as_the_model_counts_them(
    make_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = make_model("lfm2")
    kept = [i for i, one in enumerate(list_attention_modules(model)) if one is not None]
    assert kept != [*range(len(kept))], "some keep a state"
    monkeypatch.setattr(plan, "has_separate_memory", lambda device: True)
    method = resolve_preset(load_preset("tiny-random")).method
    with attach(model, method) as attached:
        cache = attached.new_cache(puts_kv_cache_on_host(model, method, "host", 10))
        model(torch.arange(1, 40)[None], past_key_values=cache)
        assert [one.layer for one in cache.layer_kv_caches] == kept
        assert not any(one.store.is_on_device for one in cache.layer_kv_caches)
        for room, hosted in ((0, True), (1 << 40, False)):
            monkeypatch.setattr(plan, "measure_free_kv_cache_bytes", lambda device, room=room: room)
            cache = attached.new_cache(puts_kv_cache_on_host(model, method, "auto", 100_000))
            model(torch.arange(1, 40)[None], past_key_values=cache)
            assert [one.store.is_on_device for one in cache.layer_kv_caches] == [not hosted] * len(
                kept
            )


def test_a_session_with_its_cache_on_the_host(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(loaded.model, loaded.tokenizer, load_preset("tiny-random")) as plain:
        plain.read(TEXT)
        want = plain.ask(QUESTION)
    monkeypatch.setattr(plan, "has_separate_memory", lambda device: True)
    with Session(loaded.model, loaded.tokenizer, load_preset("tiny-random"), "host") as session:
        session.read(TEXT)
        assert not any(layer.memory.store.is_on_device for layer in session.cache.kv_layers)  # type: ignore[union-attr]
        assert session.ask(QUESTION).text == want.text
        document = session.prefilled_document()
        session.empty_cache()
        for _ in range(2):
            session.open([document])
            assert session.ask(QUESTION).text == want.text
        session.open([document, document])
        assert session.ask(QUESTION).text


@pytest.mark.parametrize("opened", [False, True])
def test_what_is_counted_is_what_a_gpu_allocates(
    loaded: Any, opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked where it was read, or as a book, which is opened with a tail of its own."""
    monkeypatch.setattr("esa_cli.storage.memory_store.has_separate_memory", lambda device: True)
    with Session(loaded.model, loaded.tokenizer, load_preset("tiny-random")) as session:
        ids, reserved = session.prompt.encode_document(TEXT), 0 if opened else RESERVE
        session.plan_prefill(ids, reserved_tokens=reserved)
        session.resume()
        if opened:
            session.open([session.prefilled_document()])
        session.ask(QUESTION, max_new_tokens=2)
        made, tokens = costs_of(loaded), session.document_tokens
        allocated = session.cache.nbytes
        if opened:  # no reduced keys of so few tokens are needed
            allocated += RESERVE * made.reduced_key_width * 4
    on_device, _ = made.count_kv_bytes(tokens, 4, on_host=False)
    assert on_device + made.count_reduced_key_bytes(tokens, 4) == allocated


@pytest.fixture
def ample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with memory, and a model of ten layers."""
    folder_of({**TINY, "num_hidden_layers": 10}, Path("tiny"))
    monkeypatch.setattr(machine, "measure_available_memory", lambda device="cpu": 16 << 30)
    monkeypatch.setattr(machine, "measure_free_memory", lambda device="cpu": 16 << 30)


def planned(cache: str, memory: int, tokens: int = TOKENS, device: str = "cuda") -> plan.IngestPlan:
    resolved = resolve_preset(load_preset("tiny-random"))
    made = plan.IngestPlanner(
        resolved, Path("tiny"), dtype=torch.bfloat16, device=device,
        memory=memory, cache=cache,
    )  # fmt: skip
    return made.plan_ingest(tokens)


def needed_with(share: float) -> int:
    """Memory for everything and this share of the keys and values."""
    whole = planned("device", 0)
    return whole.needed_bytes - int((1 - share) * whole.keys_values)


@pytest.mark.usefixtures("ample")
def test_a_plan_counts_what_is_in_host_memory() -> None:
    here, there = planned("device", 0), planned("host", 0)
    assert here.host_keys_values == 0
    assert here.keys_values > there.host_keys_values > 0.95 * here.keys_values, "no reserve"
    assert there.keys_values < here.keys_values // 10
    assert there.reduced_keys == here.reduced_keys, "these are always on the device"
    assert planned("auto", needed_with(0.5)) == replace(
        there, available=needed_with(0.5), planner=ANY
    )
    assert planned("auto", needed_with(1)).host_keys_values == 0


@pytest.mark.usefixtures("ample")
def test_errors_name_the_places_where_it_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = needed_with(0.5)
    with pytest.raises(ResourceError, match="cuda has") as caught:
        planned("device", memory).check_fits_memory()
    assert "use --cache host, which fits; or use --cache disk" in caught.value.hint
    planned("auto", memory).check_fits_memory()
    planned("host", memory).check_fits_memory()
    monkeypatch.setattr(machine, "measure_available_memory", lambda device="cpu": 1 << 20)
    with pytest.raises(ResourceError, match=r"the host has 1\.0 MiB"):
        planned("auto", memory).check_fits_memory()


@pytest.mark.parametrize("cache", ["auto", "device", "host"])
@pytest.mark.usefixtures("ample")
def test_most_tokens_is_the_edge(cache: str) -> None:
    memory = needed_with(0.5)
    most = planned(cache, memory).max_fitting_tokens
    assert planned(cache, memory, most).fits_memory
    assert not planned(cache, memory, most + 1).fits_memory
    assert (most < TOKENS) == (cache == "device")
