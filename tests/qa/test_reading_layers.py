"""Models whose last layers read the rows of others, from a folder to an answer: tiny ones."""

from __future__ import annotations

import dataclasses
import gc
import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from conftest import build_model
from stock_attention import tokens
from stored_answers import check_stored_answers

from esa_cli import models
from esa_cli.__main__ import main
from esa_cli.attention.model_traits import ReaderStates
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.attention.step import ChunkTrace
from esa_cli.attention.window import Window
from esa_cli.errors import ModelError, PresetError
from esa_cli.models.attachment.attach import attach
from esa_cli.models.files.families import key_shape, layer_shapes, source_layers
from esa_cli.models.files.random_model import write_tokenizer
from esa_cli.qa.answering.session import Session
from esa_cli.qa.api import Esa
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.resolved_preset import resolve
from esa_cli.storage.library import Library

pytestmark = pytest.mark.families

FAMILIES = ["gemma4_text", "gemma3n_text"]
TEXT = " ".join(f"Gate {n} opens at {n * n % 97} past nine." for n in range(50))
QUESTION = "When does gate 17 open?"
METHODS = {
    "the paper's": [],
    "consensus": ["selector.name=consensus", "score.name=vote"],
    "heads of the last layer": [
        "selector.name=consensus",
        "score.name=vote",
        "score.heads=[[1, 2], [4, 1]]",
    ],
    "the last layer's": ["selector.name=sentences", "score.name=infiniretri"],
}
SMALL = Window(initial=4, selected=8, local=8, chunk=8)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out, ids = {}, {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256}
    for kind in FAMILIES:
        out[kind] = tmp_path_factory.mktemp(kind)
        sizes = {"vocab_size": 259, "vocab_size_per_layer_input": 259}
        build_model(kind, **sizes, **ids).save_pretrained(out[kind])
        write_tokenizer(out[kind])
    return out


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "gate.txt"
    path.write_text(TEXT, "utf-8")
    return path


def load(folder: Path) -> Any:
    return models.load(str(folder), device="cpu", dtype="float32")


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("name", METHODS)
def test_a_stored_book_answers_as_one_in_memory(
    folders: dict[str, Path], path: Path, tmp_path: Path, kind: str, name: str
) -> None:
    """With rows of two sizes, also from a copy of the library's document."""
    loaded, chosen = load(folders[kind]), preset.load("tiny-random", METHODS[name])
    check_stored_answers(loaded, chosen, path, QUESTION, tmp_path / "library")


def test_several_documents_and_a_second_question(folders: dict[str, Path], tmp_path: Path) -> None:
    names = [tmp_path / f"{i}.txt" for i in range(2)]
    for i, name in enumerate(names):
        name.write_text(TEXT.replace("Gate", "Door") if i else TEXT, "utf-8")
    loaded, chosen = load(folders["gemma4_text"]), preset.load("tiny-random")
    with Esa(loaded, chosen, library=Library(tmp_path / "library")) as reader:
        books = [reader.ingest(str(name)) for name in names]
        first = reader.ask(QUESTION, books, max_new_tokens=4)
        reader.ask("Which doors are there?", books, max_new_tokens=4)
        again = reader.ask(QUESTION, books, max_new_tokens=4)
    assert first.text == again.text
    assert {one.document for one in first.evidence} <= {"0.txt", "1.txt"}


def test_the_library_shows_and_copies_rows_of_two_sizes(
    folders: dict[str, Path], path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    model = ["--model", str(folders["gemma4_text"]), "--preset", "tiny-random"]
    assert main(["ingest", str(path), *model]) == 0
    [entry] = Library(tmp_path / "library").entries()
    assert entry.layout.shapes == ((2, 8), (2, 12))
    file = tmp_path / "gate.esa"
    assert main(["library", "copy", "library", str(file), entry.id]) == 0
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "other"))
    assert main(["library", "copy", str(file), "library"]) == 0
    assert main(["library", "verify"]) == 0
    capsys.readouterr()
    assert main(["library", "show", entry.id]) == 0
    assert "2 layers of 2 x 8 or 2 x 12" in capsys.readouterr().out
    assert main(["plan", str(path), *model, "--set", "answer.from=rows", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    size = getattr(torch, plan["dtype"]).itemsize
    assert plan["memory_bytes"]["keys_values"] == plan["tokens"] * 2 * (16 + 24) * size


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_word_of_a_question_selects_in_every_layer(kind: str) -> None:
    """`generate` asks for the last token's logits alone, for which transformers leaves out the
    other tokens in the layers that read others' rows."""
    model, ids = build_model(kind), tokens(60)
    method = dataclasses.replace(resolve("tiny-random").method, window=SMALL)
    seen: list[ChunkTrace] = []
    with attach(model, method) as attached:
        cache = attached.new_cache()
        cache.begin(QueryState(Phase.PREFILL))
        model(ids[:, :50], past_key_values=cache)
        cache.begin(QueryState(Phase.QUESTION, trace=seen.append))
        one = model(ids[:, 50:], past_key_values=cache, logits_to_keep=1).logits
        assert attached.method_layers == [1, 3, 4]
        chunks = [(found.start, found.stop) for found in seen if found.layer == 1]
        for layer in (3, 4):
            assert [(at.start, at.stop) for at in seen if at.layer == layer] == chunks
        cache.truncate(50)
        cache.begin(QueryState(Phase.QUESTION))
        every = model(ids[:, 50:], past_key_values=cache).logits
    assert (one.shape[1], every.shape[1]) == (1, 10)
    torch.testing.assert_close(one[0, -1], every[0, -1], atol=1e-5, rtol=0)


def test_layers_that_read_have_selections_of_their_own() -> None:
    model, ids = build_model("gemma4_text"), tokens(60)
    method = dataclasses.replace(resolve("tiny-random").method, window=SMALL)
    far: dict[int, list[int]] = {}

    def keep(trace: ChunkTrace) -> None:
        assert isinstance(trace.far, torch.Tensor)
        far[trace.layer] = trace.far.tolist()

    with attach(model, method) as attached:
        cache = attached.new_cache()
        cache.begin(QueryState(Phase.QUESTION, trace=keep))
        model(ids, past_key_values=cache)
        stores = [cache.memory(layer).store for layer in (1, 3, 4)]
        assert len(cache.memories) == 2
    assert stores[0] is stores[1] is stores[2]
    assert far[1] != far[3] or far[3] != far[4]


def test_what_selectors_keep_of_such_layers_is_cropped_and_kept_with_the_document() -> None:
    model, ids = build_model("gemma4_text"), tokens(60)
    method = resolve("tiny-random", ["window.dense=8"], "infllm", 60).method
    with attach(model, dataclasses.replace(method, window=SMALL)) as attached:
        cache = attached.new_cache()
        cache.begin(QueryState(Phase.QUESTION))
        want = model(ids[:, :50], past_key_values=cache).logits
        kept = cache.memory(1).states[ReaderStates]
        assert isinstance(kept, ReaderStates)
        assert set(kept.layers) == {3, 4}
        assert cache.memory(3).states is kept.layers[3]
        model(ids[:, 50:], past_key_values=cache)
        cache.truncate(0)
        cache.begin(QueryState(Phase.QUESTION))
        torch.testing.assert_close(model(ids[:, :50], past_key_values=cache).logits, want)
        cache.reset()
        cache.begin(QueryState(Phase.QUESTION))
        torch.testing.assert_close(model(ids[:, :50], past_key_values=cache).logits, want)


def test_sizes_of_layers_from_every_form_of_the_settings() -> None:
    """Of a configuration in memory, as transformers writes it, and as Google did."""
    from types import SimpleNamespace

    changes = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    config = build_model("gemma4_text", **changes).config
    written = config.to_dict()
    first = {**written, "global_head_dim": 12, **changes}
    del first["per_layer_config"]
    for one in (config, SimpleNamespace(**written), SimpleNamespace(**first)):
        assert key_shape(one) == (1, 12)
        assert layer_shapes(one) == [(2, 8), (1, 12), (2, 8), (1, 12), (1, 12)]
        assert source_layers(one) == {2: 0, 3: 1, 4: 1}


@pytest.mark.parametrize("kind", FAMILIES)
def test_while_a_document_is_read_they_compute_one_token_of_each_piece(
    folders: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model can leave the others out; the rows and the answer are the same."""
    loaded, found, counts = load(folders[kind]), list[Any](), list[int]()
    reading: Any = loaded.model.base_model.layers[3].self_attn
    reading.register_forward_pre_hook(
        lambda module, inputs, given: counts.append(given["hidden_states"].shape[1]),
        with_kwargs=True,
    )
    for whole in (False, True):
        if whole:
            monkeypatch.setattr("esa_cli.qa.answering.session.last_alone", lambda config: {})
        counts.clear()
        with Session(loaded.model, loaded.tokenizer, preset.load("tiny-random")) as session:
            session.read(TEXT)
            pieces = [1024, session.document_tokens - 1024]
            assert counts == (pieces if whole or kind == "gemma3n_text" else [1, 1])
            rows = [one.span(0, len(one)) for one in session.prefilled_document().stores]
            found.append((rows, session.ask(QUESTION).text))
    assert found[0][1] == found[1][1]
    for mine, want in zip(found[0][0], found[1][0], strict=True):
        assert all(map(torch.equal, mine, want))


def test_a_compressor_is_fitted_to_no_fewer_tokens_where_they_are_left_out() -> None:
    """A piece's last token has far tokens earlier than its first chunk, and must not begin the
    fit."""
    model, ids = build_model("gemma4_text"), tokens(110)
    method = resolve("tiny-random", ["score.name=sum", "compressor.fit_tokens=64"]).method
    method = dataclasses.replace(method, window=dataclasses.replace(SMALL, chunk=32))
    found = []
    for kept in ({}, {"logits_to_keep": 1}):
        with attach(model, dataclasses.replace(method, reading="select")) as attached:
            cache = attached.new_cache()
            cache.begin(QueryState(Phase.PREFILL))
            for at in (0, 32, 64):
                model.base_model(ids[:, at : at + 32], past_key_values=cache, **kept)
            cache.begin(QueryState(Phase.QUESTION))
            found.append(model(ids[:, 96:], past_key_values=cache).logits)
    assert method.compressor.fit_tokens == 64
    torch.testing.assert_close(found[1], found[0])


def test_an_interrupted_pass_keeps_no_rows() -> None:
    model, ids = build_model("gemma4_text"), tokens(20)

    def interrupt(*given: Any) -> None:
        raise InterruptedError

    with attach(model, resolve("tiny-random").method) as attached:
        cache = attached.new_cache()
        kept, hook = ref(cache), model.base_model.layers[3].register_forward_hook(interrupt)
        with suppress(InterruptedError):
            model(ids, past_key_values=cache)
        hook.remove()
        del cache
        gc.collect()
        assert kept() is None


@pytest.mark.parametrize("name", ["ntk", "ntk-dynamic", "yarn"])
def test_stretched_positions_of_a_part_of_a_head_are_refused(name: str) -> None:
    model, ids = build_model("gemma4_text"), tokens(20)
    method = resolve("tiny-random", ["window.dense=4"], name, 20).method
    with attach(model, method) as attached:
        cache = attached.new_cache()
        with pytest.raises(PresetError, match="or part of a head does not rotate"):
            model(ids, past_key_values=cache)


def test_models_that_read_in_both_directions_are_refused() -> None:
    model = build_model("gemma4_text", use_bidirectional_attention="all")
    with pytest.raises(ModelError, match="reads in both directions"):
        attach(model, resolve("tiny-random").method)
