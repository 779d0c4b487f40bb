"""The questions of ordinary users: labels that their texts hold, and how replies are judged."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from python_file import module_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
QUESTIONS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (BENCHMARKS / "ordinary_questions" / "questions.jsonl")
    .read_text("utf-8")
    .splitlines()
]
BY_ID = {one["id"]: one for one in QUESTIONS}


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return module_of(BENCHMARKS / "ordinary_questions.py", "ordinary_questions")


def texts(benchmark: ModuleType, question: dict[str, Any], folder: Path) -> dict[str, str]:
    """The files' texts after the question's steps, without what an HTML page hides."""
    folder.mkdir(exist_ok=True)
    benchmark.lay_out(question, folder)
    for step in question.get("steps", []):
        if "esa" not in step:
            benchmark.change(step, folder)
    files = (path for path in sorted(folder.rglob("*")) if path.suffix not in (".pdf", ".docx"))
    read = {str(p.relative_to(folder)): p.read_text("utf-8") for p in files if p.is_file()}
    hidden = (
        r"(?s)<script.*?</script>|<template.*?</template>|<div hidden>.*?</div>|<p style=.*?</p>"
    )
    return {name: re.sub(hidden, "", text) for name, text in read.items()}


@pytest.mark.parametrize("name", BY_ID)
def test_labels_stand_in_the_texts(benchmark: ModuleType, name: str, tmp_path: Path) -> None:
    question = BY_ID[name]
    read = texts(benchmark, question, tmp_path / "documents")
    kept = {name: text for name, text in read.items() if "drafts" not in name}
    whole = "\n".join(kept.values())
    for label in [question.get("passage"), *question.get("places", [])]:
        assert label is None or benchmark.plain(whole).count(benchmark.plain(label)) == 1
    for words in question.get("never", []):
        assert not benchmark.has(whole, words)
    if "places" not in question and question["how"] != "find":
        assert any(benchmark.has(whole, words) for words in question["answers"])
    if question["how"] == "find" and "listed" in question:
        files = [Path(name).name for name, text in kept.items() if question["question"] in text]
        assert sorted(files) == sorted(question["listed"])
    else:
        assert set(question.get("listed", [])) <= {Path(one).name for one in kept}


ASKED = {"id": "a", "class": "c", "how": "ask", "passage": "fee is −5", "answers": ["-5", "−5"]}
PLACES = {"id": "a", "class": "c", "how": "count", "places": ["one", "two", "six", "ten"]}
FILES = {"id": "a", "class": "c", "how": "find", "listed": ["a.md"]}


def shown(*passages: str, **more: Any) -> dict[str, Any]:
    return {"evidence": [{"text": text} for text in passages], **more}


def places(*lines: str) -> dict[str, Any]:
    return {"places": [{"text": line, "sentence": line} for line in lines], "count": len(lines)}


@pytest.mark.parametrize(
    ("question", "reply", "right"),
    [
        (ASKED, shown("The fee\nis −5.", answer="−5", found=True), "passage answer"),
        (ASKED, shown("The fee is −5.", answer="5", found=False), "passage refused"),
        (ASKED, shown("The fee is −55.", answer="-55"), ""),
        ({**ASKED, "never": ["7"]}, shown("The fee is −5.", "Was 7.", answer="-5"), ""),
        (ASKED, {"error": "took longer than 120 s"}, "refused"),
        (PLACES, places("one", "two", "six", "ten"), "passage answer"),
        (PLACES, places("one", "two", "six"), "passage"),
        (PLACES, places("one", "two", "six", "ten", "ten"), "passage"),
        (FILES, {"files": [{"source": "b/a.md"}], "code": 0}, "passage answer"),
        (FILES, {"files": [{"source": "a.md"}, {"source": "b.md"}], "code": 0}, ""),
        ({**FILES, "listed": []}, {"code": 1}, "passage answer"),
        ({**FILES, "listed": []}, {"passages": [{"text": "x"}], "code": 0}, ""),
    ],
)
def test_how_replies_are_judged(
    benchmark: ModuleType, question: dict[str, Any], reply: dict[str, Any], right: str
) -> None:
    row = benchmark.judge(question, reply)
    assert [key for key in ("passage", "answer", "refused") if row[key]] == right.split()


BOOK_FILES = sorted((BENCHMARKS / "book_questions").glob("*.jsonl"))


@pytest.fixture(scope="module")
def book_benchmark() -> ModuleType:
    return module_of(BENCHMARKS / "book_questions.py", "book_questions")


def questions() -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    files = (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()] for path in BOOK_FILES
    )
    return [(head, rows) for head, *rows in files]


@pytest.mark.parametrize("number", range(len(BOOK_FILES)))
def test_answers_stand_in_their_passages(number: int) -> None:
    head, rows = questions()[number]
    assert rows
    for row in rows:
        start, stop = row["passage"]
        assert 0 <= start < stop <= head["characters"]
        assert (30 if head.get("language") == "zh" else 80) <= stop - start <= 700, row["id"]
        assert (row["answer"] is None) == (row["kind"] == "absent")
        if row["answer"]:
            first, last = row["answer"]
            assert start <= first < last <= stop, row["id"]


def test_answers_are_counted_after_normalising(book_benchmark: ModuleType) -> None:
    golden = book_benchmark.split_bare_words("The \u201cGolden\u201d Krone, Hotel.")
    assert golden == ["golden", "krone", "hotel"]
    words = book_benchmark.split_bare_words("a glass of rum")
    assert book_benchmark.compute_word_bag_f1(words, ["rum"]) == pytest.approx(0.5)
    assert book_benchmark.compute_word_bag_f1(["nothing"], ["rum"]) == 0.0


COLLECT_FILES = sorted((BENCHMARKS / "collect_questions").glob("*.jsonl"))


@pytest.fixture(scope="module")
def collect_benchmark() -> ModuleType:
    return module_of(BENCHMARKS / "collect.py", "collect_benchmark")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_sets() -> None:
    books = [rows(path) for path in COLLECT_FILES if path.stem != "chronicle"]
    assert {head["split"] for head, *_ in books} == {"dev", "test"}
    for head, *questions in books:
        for one in questions:
            assert one["id"].startswith(head["name"])
            every = sorted([*one["places"], *one["either"]])
            assert every[0][0] >= 0
            assert every[-1][1] <= head["characters"]
            places = one["places"]
            assert all(first[1] <= second[0] for first, second in pairwise(places))
            assert len(places) >= 5


@pytest.mark.parametrize(
    ("found", "right", "wrong", "places"),
    [
        ([], 0, 0, 0),
        ([(12, 14)], 1, 0, 1),
        ([(12, 14), (15, 16)], 1, 1, 1),  # one place twice
        ([(12, 14), (15, 35)], 2, 0, 2),
        ([(12, 35), (30, 31)], 1, 1, 2),
        ([(50, 52)], 0, 0, 0),  # either way
        ([(70, 72)], 0, 1, 0),
    ],
)
def test_how_rows_are_counted(
    collect_benchmark: ModuleType, found: list[tuple[int, int]], right: int, wrong: int, places: int
) -> None:
    question = {"places": [[10, 20], [30, 40]], "either": [[50, 60]]}
    score = collect_benchmark.scored(found, question)
    assert (score["right"], score["wrong"], score["found"]) == (right, wrong, places)
    assert score["recall"] == places / 2
