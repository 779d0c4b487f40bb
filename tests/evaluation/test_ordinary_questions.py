"""The questions of ordinary users: labels that their texts hold, and how replies are judged."""

from __future__ import annotations

import json
import re
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
