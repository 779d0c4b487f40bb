"""Another model words the answers: what is found stays the preset's own. Tiny random models."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_fixtures import cache, surroundings
from reader_models import foreign_model, wide_model
from tiny_finder import tiny_finder

from esa_cli import Esa as Interface
from esa_cli.errors import PresetError
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.preset_files import load_known_models
from esa_cli.qa.presets.resolved_preset import resolve_preset
from esa_cli.storage.library import Library

__all__ = ["cache", "surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")
QUESTION = "Who lit the harbour lamp?"


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A preset that finds by a finder, as the default does."""
    *_, finder = tiny_finder(tmp_path / "finder")
    answer = "answer: {from: text, passages: 3, finder: " + finder.partition("=")[2] + "}\n"
    Path("own.yaml").write_text(f"extends: tiny-random\n{answer}")
    return "./own.yaml"


@pytest.fixture
def book() -> str:
    lines = [f"In the year {year} the ferry sailed to the island.\n\n" for year in range(40)]
    lines[17] = "Ann Brown lit the harbour lamp at nine.\n\n"
    Path("book.txt").write_text("".join(lines))
    return "book.txt"


def test_the_same_passages_with_the_same_scores(own: str, book: str, tmp_path: Path) -> None:
    found, evidence, library = [], [], Library(tmp_path / "library")
    for model in (None, wide_model(tmp_path / "wide"), foreign_model(tmp_path / "gpt")):
        how = {"device": "cpu", "dtype": "float32", "library": library}
        with Interface.load(own, model=model, **how) as asker:  # type: ignore[arg-type]
            assert asker.preset.model == "random:llama"
            if model is not None:
                document = asker.documents.open_for_questions(book).document
                assert asker.find(document), "its index is stored"
            books = [asker.ingest(book)]
            found.append([(p.start, p.end, p.score) for p in asker.find_passages(QUESTION, books)])
            reply = asker.ask(QUESTION, books, max_new_tokens=4)
            evidence.append([(one.start, one.text) for one in reply.evidence])
            assert (asker.reader is None) == (model is None)
            assert (reply.quotation is None) or model is None
    assert len(found[0]) > 3
    assert found[0] == found[1] == found[2]
    assert evidence[0] == evidence[1] == evidence[2]


def test_a_method_runs_in_the_model(own: str, tmp_path: Path) -> None:
    folder = wide_model(tmp_path / "wide")
    for more, method in (([], "esa"), (["answer.from=rows"], None)):
        chosen = resolve_preset(load_preset(own, [f"model={folder}", *more]), method).preset
        assert (chosen.model, chosen.answer.reader) == (folder, None)
        assert chosen.answer.needs_kv_cache


def test_a_model_with_a_finder_of_its_own_finds_by_it(own: str) -> None:
    for more in ("answer.finder=null", "answer.finder=other", "answer.adapter=other"):
        chosen = load_preset(own, ["model=some/model", more])
        assert (chosen.model, chosen.answer.reader) == ("some/model", None)


def test_ways_and_models_by_name() -> None:
    assert load_preset(overrides=["model=qwen3-4b"]).answer.reader == "Qwen/Qwen3-4B"
    for name, facts in load_known_models().items():
        chosen = load_preset(name)
        assert facts.model in (chosen.model, chosen.answer.reader)
        assert chosen.name == facts.way
    heads = load_preset("consensus", ["model=llama3.2-3b"]).score["heads"]
    assert heads == load_known_models()["llama3.2-3b"].heads


def test_a_server_has_no_rows() -> None:
    with pytest.raises(PresetError):
        load_preset(overrides=["answer.reader=http://localhost:1", "answer.from=rows"])
