"""Models that keep latents, from a folder to an answer: tiny random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import build_model

from esa_cli import models
from esa_cli.evaluation.calibration.fitted_maps import FitSettings, open_job
from esa_cli.models.files.random_model import write_tokenizer
from esa_cli.qa.api import Esa
from esa_cli.qa.presets import preset
from esa_cli.storage.library import Library

KINDS = ["deepseek_v3", "deepseek_v2"]
TEXT = " ".join(f"Gate {n} opens at {n * n % 97} past nine." for n in range(40))
QUESTION = "When does gate 17 open?"
METHODS = {
    "the paper's": [],
    "consensus": ["selector.name=consensus", "score.name=vote"],
    "the last layer's": ["selector.name=sentences", "score.name=infiniretri"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = {}
    for kind in KINDS:
        out[kind] = tmp_path_factory.mktemp(kind)
        ids = {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256}
        build_model(kind, vocab_size=259, **ids).save_pretrained(out[kind])
        write_tokenizer(out[kind])
    return out


def load(folder: Path) -> Any:
    return models.load(str(folder), device="cpu", dtype="float32")


def asked(loaded: Any, paths: list[Path], overrides: list[str], **where: Any) -> tuple[Any, ...]:
    """The answer, the evidence's places, and its weights."""
    chosen = preset.load("tiny-random", overrides)
    with Esa(loaded, chosen, **where) as reader:
        books = [reader.ingest(str(path)) for path in paths]
        reply = reader.ask(QUESTION, books, max_new_tokens=4)
    assert reply.evidence
    weights = [round(one.weight, 4) for one in reply.evidence]
    return reply.text, [one.start for one in reply.evidence], weights


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_a_stored_book_answers_as_one_in_memory(
    folders: dict[str, Path], tmp_path: Path, kind: str, name: str
) -> None:
    path, loaded = tmp_path / "gate.txt", load(folders[kind])
    path.write_text(TEXT, "utf-8")
    places = (None, Library(tmp_path / "library"), Library(tmp_path / "library"))
    answers = [asked(loaded, [path], METHODS[name], library=one, rows="native") for one in places]
    assert answers[0] == answers[1] == answers[2]


def test_two_books_of_bytes_take_a_row_a_token(folders: dict[str, Path], tmp_path: Path) -> None:
    loaded, paths = load(folders["deepseek_v3"]), [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, text in zip(paths, (TEXT, TEXT[::-1]), strict=True):
        path.write_text(text, "utf-8")
    library = Library(tmp_path / "library")
    first = asked(loaded, paths, METHODS["consensus"], library=library, rows="int8")
    assert asked(loaded, paths, METHODS["consensus"], library=library, rows="int8") == first
    for entry in library.entries():
        layout = entry.layout
        assert (layout.heads, layout.dim, layout.shared, layout.row_bytes) == (
            1,
            24,
            True,
            24 + 3 * 4,
        )


def test_an_answer_from_text(folders: dict[str, Path], tmp_path: Path) -> None:
    path, loaded = tmp_path / "gate.txt", load(folders["deepseek_v3"])
    path.write_text(TEXT, "utf-8")
    chosen = preset.load("tiny-random", [*METHODS["consensus"], "answer.from=text"])
    with Esa(loaded, chosen) as reader:
        reply = reader.ask(QUESTION, [reader.ingest(str(path))])
    assert reply.evidence


def test_maps_are_fitted_to_rows(folders: dict[str, Path], tmp_path: Path) -> None:
    loaded, chosen = load(folders["deepseek_v3"]), preset.load("tiny-random")
    job = open_job(loaded, chosen, TEXT, 200, tmp_path / "work")
    job.collect()
    assert job.width == 24
    fitting = FitSettings()
    job.save(tmp_path / "maps", job.study(6, fitting, [8]), fitting)
    overrides = ["compressor.name=learned", f"compressor.file={tmp_path / 'maps'}"]
    path = tmp_path / "gate.txt"
    path.write_text(TEXT, "utf-8")
    asked(loaded, [path], overrides)
