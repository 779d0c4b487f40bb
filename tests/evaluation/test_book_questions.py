"""The questions on real books: what their files promise, and how answers are counted."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from python_file import module_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FILES = sorted((BENCHMARKS / "book_questions").glob("*.jsonl"))


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return module_of(BENCHMARKS / "book_questions.py", "book_questions")


def questions() -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    files = ([json.loads(line) for line in path.read_text("utf-8").splitlines()] for path in FILES)
    return [(head, rows) for head, *rows in files]


@pytest.mark.parametrize("number", range(len(FILES)))
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


def test_answers_are_counted_after_normalising(benchmark: ModuleType) -> None:
    golden = benchmark.split_bare_words("The \u201cGolden\u201d Krone, Hotel.")
    assert golden == ["golden", "krone", "hotel"]
    words = benchmark.split_bare_words("a glass of rum")
    assert benchmark.compute_word_bag_f1(words, ["rum"]) == pytest.approx(0.5)
    assert benchmark.compute_word_bag_f1(["nothing"], ["rum"]) == 0.0
