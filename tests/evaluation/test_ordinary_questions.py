"""The questions of ordinary users: labels that their texts hold, and how replies are judged."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
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


def test_five_of_each_class() -> None:
    assert len(BY_ID) == len(QUESTIONS) == 40
    assert set(Counter(one["class"] for one in QUESTIONS).values()) == {5}


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


def test_texts_are_what_their_questions_need(benchmark: ModuleType, tmp_path: Path) -> None:
    words = {}
    for number, question in enumerate(QUESTIONS):
        read = texts(benchmark, question, tmp_path / str(number))
        words[question["id"]] = len(" ".join(read.values()).split())
    few = {"quotations-chinese", "lists-hours", "lists-cancelled", "lists-years"}
    assert all(count >= 600 for name, count in words.items() if name not in few)
    club = (benchmark.TEXTS / "chess-club.md").read_text("utf-8")
    assert club == unicodedata.normalize("NFD", club) != unicodedata.normalize("NFC", club)
    light = (benchmark.TEXTS / "lighthouse.md").read_text("utf-8")
    assert "’" in light
    assert "'" not in light


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
        (ASKED, shown("", "", "", "The fee is −5.", answer="It is -5."), "answer"),
        (ASKED, shown("The fee is −55.", answer="-55"), ""),
        ({**ASKED, "never": ["7"]}, shown("The fee is −5.", "Was 7.", answer="-5"), ""),
        (ASKED, {"error": "took longer than 120 s"}, "refused"),
        (PLACES, places("one", "two", "six", "ten"), "passage answer"),
        (PLACES, places("one", "two", "six"), "passage"),
        (PLACES, places("one", "two", "six", "ten", "ten"), "passage"),
        (PLACES, places("one", "two"), ""),
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


def test_a_table_sums_each_class(benchmark: ModuleType) -> None:
    rows = [
        {"class": "a", "passage": True, "answer": False, "refused": False},
        {"class": "a", "passage": True, "answer": True, "refused": False},
        {"class": "b", "passage": False, "answer": False, "refused": True},
    ]
    lines = [line.split() for line in benchmark.table(rows).splitlines()[1:]]
    assert lines == [
        ["a", "2", "1", "0", "2"], ["b", "0", "0", "1", "1"], ["all", "2", "1", "1", "3"],
    ]  # fmt: skip
