"""The demo document: reproducible, and every fact in it is known, unique and in its place."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from python_file import module_of

from esa_cli.evaluation.tasks import chronicle_task as chronicle

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


command = module_of(EXAMPLES / "make_chronicle.py", "make_chronicle")
QUESTIONS: list[dict[str, Any]] = [
    json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text("utf-8").splitlines()
]


@pytest.fixture(scope="module")
def text() -> str:
    return (EXAMPLES / "chronicle.md").read_bytes().decode("utf-8")


def without_facts(text: str) -> str:
    for question in QUESTIONS:
        text = text.replace(question["fact"], "")
    return text


def has_phrase(phrase: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE) is not None


def repeated_sentences(text: str) -> list[str]:
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    counts = Counter(re.split(r"(?<=[.!?])['\s]+", prose))
    return [sentence for sentence, count in counts.items() if sentence and count > 1]


def test_committed_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    out, questions = tmp_path / "chronicle.md", tmp_path / "questions.jsonl"
    command.main(["--out", str(out), "--questions", str(questions)])
    assert out.read_bytes() == (EXAMPLES / "chronicle.md").read_bytes()
    assert questions.read_bytes() == (EXAMPLES / "questions.jsonl").read_bytes()


def test_facts_are_in_the_text_and_answer_their_questions(text: str) -> None:
    assert len(QUESTIONS) == 48
    for question in QUESTIONS:
        assert set(question) == {"id", "question", "answers", "fact", "depth"}
        assert text.count(question["fact"]) == 1
        assert round(text.index(question["fact"]) / len(text), 3) == question["depth"]
        assert has_phrase(question["answers"][0], question["fact"])
        assert not any(has_phrase(answer, question["question"]) for answer in question["answers"])
    depths = [0.0, *sorted(question["depth"] for question in QUESTIONS), 1.0]
    assert max(b - a for a, b in pairwise(depths)) < 0.04
    for key in ("id", "question", "fact"):
        assert len({question[key] for question in QUESTIONS}) == 48
    assert len({question["answers"][0].lower() for question in QUESTIONS}) == 48


@pytest.mark.parametrize("words", [12_000, 60_000])
def test_another_length_and_seed_keep_the_facts_at_their_depths(words: int) -> None:
    text = chronicle.build_chronicle(words, 3)
    with pytest.raises(ValueError, match="at least"):
        chronicle.build_chronicle(100, 3)
    assert words <= len(text.split()) < 1.1 * words
    assert len(repeated_sentences(text)) <= 3
    background = without_facts(text)
    for question in QUESTIONS:
        assert text.count(question["fact"]) == 1
        assert text.index(question["fact"]) / len(text) == pytest.approx(
            question["depth"], abs=0.02
        )
        assert not any(has_phrase(answer, background) for answer in question["answers"])
