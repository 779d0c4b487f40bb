"""Answers from text of a model that transformers loads when it is needed. Tiny random model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from finder_encoder import new_finder, save_finder
from tiny_reader import save_tiny_reader

from esa_cli import models
from esa_cli.documents.document import Document
from esa_cli.models.loading.plain_decoder import LazyTransformersModel, load_without_transformers
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.api import Esa
from esa_cli.qa.presets.preset import load_preset
from esa_cli.storage.library import Library

TEXT = "A grey boat lies at the pier. " * 40 + "Captain Ahab opens the gate at nine. "
QUESTION = "When does Ahab open the gate?"
HOW: dict[str, Any] = {"device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """The model as transformers loads it, and a folder with an adapter and a finder; their
    $ESA_HOME is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESA_HOME", str(tmp_path_factory.mktemp("home")))
        loaded, folder = models.load("random:llama", **HOW), tmp_path_factory.mktemp("trained")
        encoder = new_finder(
            loaded.model, loaded.tokenizer, layers=2, first=1, rank=2, dim=6, seed=1
        )
        save_finder(encoder, folder / "finder", "random:llama")
        save_tiny_reader(loaded.model, folder / "adapter")
        yield loaded, folder


@pytest.fixture
def deferred(both: tuple[Any, Path]) -> LazyTransformersModel:
    found = load_without_transformers("random:llama", torch.float32)
    assert found is not None
    return found


def esa(loaded: Any, folder: Path, *more: str, **options: Any) -> Esa:
    given = [
        "answer.from=text", f"answer.finder={folder / 'finder'}",
        f"answer.adapter={folder / 'adapter'}", *more,
    ]  # fmt: skip
    return Esa(loaded, load_preset("tiny-random", given), **options)


def note(text: str = TEXT) -> Document:
    return Document("note.txt", text, "/note.txt", "utf-8", len(text))


def without_times(reply: Reply) -> Reply:
    return replace(reply, first_token_s=0.0, total_s=0.0)


@pytest.mark.parametrize("more", [[], ["answer.adapter=null"]])
def test_the_same_answers_and_indexes_without_the_model(
    both: tuple[Any, Path],
    deferred: LazyTransformersModel,
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, folder = both
    unloaded = property(lambda self: pytest.fail("loaded"))
    monkeypatch.setattr(LazyTransformersModel, "model", unloaded)
    found = []
    for number, loaded in enumerate((whole, deferred)):
        library = Library(tmp_path / str(number))
        with esa(loaded, folder, *more, library=library) as asker:
            book = asker.ingest(note())
            reply = without_times(asker.ask(QUESTION, [book]))
            passages = asker.find_passages(QUESTION, [book])
            counted = asker.question_tokens(QUESTION)
            assert "<html" in asker.report(reply, QUESTION)
            found.append((reply, passages, counted, book.entry, asker.cached_document_tokens))
    assert found[0][:3] == found[1][:3]
    assert found[0][3].key == found[1][3].key
    assert found[0][0].read
    assert found[0][4] == found[1][4] == 0


def test_in_python_it_is_loaded_so(both: tuple[Any, Path], tmp_path: Path) -> None:
    text = ["answer.from=text", f"answer.finder={both[1] / 'finder'}"]
    with Esa.load("tiny-random", text, **HOW) as asker:
        assert isinstance(asker.loaded, LazyTransformersModel)
        asker.ask(QUESTION, [asker.open(note())])
    for others in ([], ["answer.from=text"]):
        with Esa.load("tiny-random", others, **HOW) as asker:
            assert not isinstance(asker.loaded, LazyTransformersModel)
