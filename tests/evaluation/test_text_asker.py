"""The method `text` of self-tests, benchmarks and comparisons, with a tiny random model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import TINY, Esa
from finder_encoder import new_finder, save_finder
from reader_models import wide_model

from esa_cli import models
from esa_cli.errors import LengthError
from esa_cli.evaluation.bench import benchmarks
from esa_cli.evaluation.bench.bench_run import BenchAnswerer
from esa_cli.evaluation.bench.benchmarks import BenchRecord
from esa_cli.evaluation.selftest import selftest_run as run
from esa_cli.evaluation.tasks.task_sample import PlantedFact
from esa_cli.evaluation.text_asker import TextAnswerer
from esa_cli.qa.answering.session import Session
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.preset import Preset, load_preset

pytestmark = pytest.mark.usefixtures("surroundings")

FROM_TEXT = ["answer.from=text", "answer.form=span", "answer.passages=4", "context=8192"]
SMALL = [*TINY, "--no-dense", "--quiet", "--samples", "2"]
TEXT = " ".join(f"In year {n} the mill ground {7 * n} sacks of rye." for n in range(1, 60))
QUESTION = "How many sacks were ground in year 17?"


@pytest.fixture(scope="module")
def folder(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a window of 8,192 tokens in `model`, and a finder of it in `finder`."""
    made = tmp_path_factory.mktemp("models")
    wide_model(made / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESA_HOME", str(cache))
        host = models.load(str(made / "model"), device="cpu", dtype="float32")
    finder = new_finder(host.model, host.tokenizer, layers=1, first=0, rank=2, dim=8, seed=1)
    save_finder(finder, made / "finder", "random:llama")
    return made


@pytest.fixture
def opened(folder: Path) -> Iterator[tuple[models.LoadedModel, Session]]:
    host = models.load(str(folder / "model"), device="cpu", dtype="float32")
    with Session(host.model, host.tokenizer, chosen(folder)) as made:
        yield host, made


@pytest.fixture
def no_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise AssertionError("rows are computed")

    monkeypatch.setattr(Session, "plan_prefill", refuse)


def chosen(folder: Path, *more: str) -> Preset:
    given = [f"model={folder / 'model'}", *FROM_TEXT, *more]
    return load_preset("tiny-random", given)


def words(folder: Path, finder: bool = True) -> list[str]:
    given = [f"model={folder / 'model'}", *FROM_TEXT]
    given += [f"answer.finder={folder / 'finder'}"] if finder else []
    return [word for one in given for word in ("--set", one)]


def evidence(start: int, end: int) -> Passage:
    return Passage("", "", None, 1, None, start, end, "", weight=0.5)


def test_recall_is_of_the_first_three_and_the_reason_of_all_that_was_read() -> None:
    fact = PlantedFact("x" * 10, 10, 20, 0.5)
    assert run.compute_fact_share_in_passages(fact, [evidence(0, 15), evidence(12, 18)]) == 0.8
    assert run.compute_fact_share_in_passages(fact, [evidence(20, 30)]) == 0
    facts = [PlantedFact("", 0, 10, 0.0), PlantedFact("", 90, 100, 1.0)]
    passages = [evidence(0, 10), evidence(20, 30), evidence(40, 50), evidence(85, 100)]
    made = run.make_passage_recall_fields(0.0, facts, passages)
    assert made == {"recall": {"mean": 0.5, "read": 1.0}, "why": "selected, not used"}
    assert run.make_passage_recall_fields(1.0, facts, passages[:1])["why"] == "answered"
    assert run.make_passage_recall_fields(0.5, facts, passages[1:3])["why"] == "not selected"
    assert run.make_passage_recall_fields(1.0, [], passages) == {"recall": None, "why": None}


def test_a_text_is_read_for_the_finder_and_no_rows_are(
    opened: tuple[models.LoadedModel, Session], folder: Path, no_prefill: None
) -> None:
    asker = TextAnswerer(*opened, chosen(folder, f"answer.finder={folder / 'finder'}"))
    told: list[tuple[int, int]] = []
    asker.read(TEXT, lambda done, total: told.append((done, total)))
    tokens = len(asker.book.spans)
    assert asker.book.index.shape == (tokens, 8)
    assert asker.nbytes == asker.book.index.nbytes
    assert told[-1] == (tokens, tokens)
    reply = asker.ask(QUESTION)
    assert reply.answered_from == "text"
    assert reply.read
    assert len(reply.evidence) == 4
    assert reply.text in TEXT
    asker.read(TEXT.replace("mill", "forge"))
    assert all("mill" not in one.text for one in asker.ask(QUESTION).evidence)
    words = TextAnswerer(*opened, chosen(folder))
    told.clear()
    words.read(TEXT, lambda done, total: told.append((done, total)))
    assert words.book.index is None
    assert (words.nbytes, told) == (0, [(tokens, tokens)]), "only progress ends"
    assert not words.ask(QUESTION).read


def test_a_benchmark_checks_questions_first_and_reads_a_document_once(
    opened: tuple[models.LoadedModel, Session], folder: Path
) -> None:
    seen: list[str] = []
    asker = BenchAnswerer(*opened, "text", chosen(folder), seen.append)
    made = [
        BenchRecord("longbench", "qasper", name, "before", text, f"\n{QUESTION}", ("1",), 8)
        for name, text in (("a", TEXT), ("b", TEXT), ("c", TEXT[:600]))
    ]
    with pytest.raises(LengthError, match="the question and a passage"):
        asker.check_prompt_length(replace(made[0], question="Who? " * 3000))
    rows = []
    for records in (made[:2], made[2:]):
        cases = asker.make_questions(benchmarks.BENCHMARKS["longbench"], records)
        assert cases.ingest()
        rows += [case.ask() for case in cases.questions]
    assert seen == ["text: qasper, record a", "text: qasper, record c"]
    assert rows[0]["output"] in TEXT
    assert rows[0]["tokens"] > rows[2]["tokens"] > 100


def test_selftest_measures_it(esa: Esa, folder: Path, tmp_path: Path, no_prefill: None) -> None:
    out = tmp_path / "rows.jsonl"
    given = ["--methods", "text", *SMALL, *words(folder), "--out", str(out)]
    done = esa("selftest", "needle,passkey", "--len", "1k,2k", *given)
    assert done.code == 0, done.err
    assert "reading: text: text" in done.out
    _, *rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert len(rows) == 8
    for row in rows:
        assert (row["method"], row["reading"], row["before"]) == ("text", "text", "")
        assert 0 <= row["recall"]["mean"] <= row["recall"]["read"] <= 1
        assert row["why"] in ("answered", "not selected", "selected, not used")
        assert row["memory"]["kept_bytes"] == (8 + 8) * row["tokens"]["document"]
        assert row["memory"]["peak_bytes"] > 0
        assert row["time"]["read_s"] > 0
    again = esa("selftest", "needle,passkey", "--len", "1k,2k", *given)
    assert again.code == 0, again.err
    assert len(out.read_text("utf-8").splitlines()) == 9, "nothing is asked again"


def test_compare_shows_it_beside_rows(esa: Esa, folder: Path, tmp_path: Path) -> None:
    book = tmp_path / "mill.txt"
    book.write_text(TEXT, "utf-8")
    given = ["compare", str(book), QUESTION, *TINY, "--quiet", *words(folder), "--json"]
    done = esa(*given, "--methods", "preset,text", "--top", "3")
    assert done.code == 0, done.err
    preset_row, text_row = json.loads(done.out)["methods"]
    assert (preset_row["method"], text_row["method"]) == ("preset", "text")
    assert len(text_row["passages"]) == 3
    assert all(one["text"] in TEXT for one in text_row["passages"])
    assert 0 < text_row["cache_bytes"] < preset_row["cache_bytes"]
    alone = esa(*given, "--methods", "text")
    assert alone.code == 0, alone.err
