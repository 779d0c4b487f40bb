"""A late interaction model of sentence-transformers: its scores are the package's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from esa_cli import models
from esa_cli.documents.document import Document
from esa_cli.errors import ModelError, PresetError, UsageError
from esa_cli.qa.api import Esa
from esa_cli.qa.finding import finder_choice, late_interaction_finder
from esa_cli.qa.finding.finder import ReducedKeys, compute_window_products
from esa_cli.qa.finding.late_interaction_finder import (
    LateInteractionFinder,
    read_late_interaction_sizes,
)
from esa_cli.qa.presets.finder_names import locate_finder
from esa_cli.qa.presets.preset import load_preset
from esa_cli.storage.library import Library

PACKAGE = "sentence_transformers"
QUESTIONS = ["When does the gate open?", "Who?"]
TEXT = "The gate opens at nine. Nobody knows why it does. " * 9
DOCUMENT = Document("t", TEXT, "t", "utf-8", len(TEXT))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from tiny_late_interaction import save_tiny_late_interaction_model

    return save_tiny_late_interaction_model(tmp_path / "late")


@pytest.fixture
def finder(folder: Path) -> LateInteractionFinder:
    pytest.importorskip(PACKAGE, minversion="6")
    return LateInteractionFinder.load(folder)


def test_scores_are_the_max_sim_of_the_package(finder: LateInteractionFinder) -> None:
    """Of the first part of a document, in which a full stop is not scored."""
    assert (finder.part, finder.context) == (64, 8)
    text = finder.tokenise(DOCUMENT)
    assert text.offsets[:3].tolist() == [[0, 1], [1, 2], [2, 3]]
    keys = finder.encode_tokens(text, 0, 64)
    [whole] = finder.encoder.encode_document([TEXT[:64]])
    spoken = torch.tensor([letter != "." for letter in TEXT[:64]])
    torch.testing.assert_close(keys[spoken], whole[2:-1].float(), atol=1e-5, rtol=1e-4)
    queries, weights = finder.encode_questions(QUESTIONS)
    want = finder.encoder.similarity(finder.encoder.encode_query(QUESTIONS), [whole[2:-1]])
    for query, weight, score in zip(queries, weights, want[:, 0], strict=True):
        bounds = torch.tensor([0]), torch.tensor([64])
        got = compute_window_products(query, keys, *bounds)[0] @ weight
        assert float(got * (weight > 0).sum()) == pytest.approx(float(score), rel=1e-4)
        stored = compute_window_products(query, ReducedKeys.encode(keys, finder.layout), *bounds)
        assert float(stored[0] @ weight) == pytest.approx(float(got), abs=0.02)


def test_a_document_is_the_same_in_every_division(finder: LateInteractionFinder) -> None:
    text = finder.tokenise(DOCUMENT)
    whole = finder.encode_tokens(text, 0, 450)
    parts = [finder.encode_tokens(text, at, min(at + 128, 450)) for at in range(0, 450, 128)]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-5, rtol=1e-4)
    [row] = finder.encoder.encode_document([TEXT[120:192]])
    assert len(row) == 72 + 3 - TEXT[120:192].count(".")
    kept = [n for n in range(128, 192) if TEXT[n] != "."]
    context = sum(letter != "." for letter in TEXT[120:128])
    torch.testing.assert_close(whole[kept], row[2 + context : -1].float(), atol=1e-5, rtol=1e-4)


def test_an_odd_width_and_an_index_beside_the_other_finders(tmp_path: Path) -> None:
    pytest.importorskip(PACKAGE, minversion="6")
    from tiny_finder import tiny_finder
    from tiny_late_interaction import save_tiny_late_interaction_model

    late = save_tiny_late_interaction_model(tmp_path / "late", dim=5)
    tiny_finder(tmp_path / "ours")
    library, document = Library(tmp_path / "library"), DOCUMENT
    loaded = models.load("random:llama", device="cpu", dtype="float32")
    books: list[Any] = []
    for name in (late, tmp_path / "ours", late):
        chosen = load_preset("tiny-random", ["answer.from=text", f"answer.finder={name}"])
        sizes = finder_choice.read_finder_sizes(chosen)
        with Esa(loaded, chosen, library=library) as esa:
            books.append(esa.ingest(document))
            assert sizes is not None
            assert books[-1].index.layout == sizes.layout
            assert esa.find_passages(QUESTIONS[0], books[-1:])
    first, ours, again = books
    assert (first.index.shape[1], ours.index.shape[1]) == (6, 6)
    assert (first.read_s > 0, again.read_s) == (True, 0.0), "the other finder destroyed nothing"
    assert len(library.entries()) == 2


def test_what_cannot_be_used_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate_finder("lightonai/LateOn").kind == "late interaction"
    assert read_late_interaction_sizes(folder).layout.row_bytes == 6 + 8
    with pytest.raises(PresetError, match="must be a folder"):
        locate_finder("nothing")
    own = json.loads((folder / "modules.json").read_text())
    wrong = {"modeling.Strange": r"of its own, modeling\.Strange", f"{PACKAGE}.Pooling": "a text"}
    for kind, message in wrong.items():
        own[1]["type"] = kind
        (folder / "modules.json").write_text(json.dumps(own))
        with pytest.raises(ModelError, match=message):
            read_late_interaction_sizes(folder)
    monkeypatch.setattr(late_interaction_finder, "PACKAGE", "no_such_package")
    with pytest.raises(UsageError, match="no_such_package"):
        LateInteractionFinder.load(folder)
