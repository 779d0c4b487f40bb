"""The questions with many places: what their files promise, and how rows are counted."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from python_file import module_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FILES = sorted((BENCHMARKS / "collect_questions").glob("*.jsonl"))


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return module_of(BENCHMARKS / "collect.py", "collect_benchmark")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_sets() -> None:
    books = [rows(path) for path in FILES if path.stem != "chronicle"]
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
    benchmark: ModuleType, found: list[tuple[int, int]], right: int, wrong: int, places: int
) -> None:
    question = {"places": [[10, 20], [30, 40]], "either": [[50, 60]]}
    score = benchmark.scored(found, question)
    assert (score["right"], score["wrong"], score["found"]) == (right, wrong, places)
    assert score["recall"] == places / 2
