"""Pairs and their texts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from swapped_questions import KINDS, swapped_question

from esa_cli.evaluation.tasks.task_sample import StableRandom

SHIPPED = Path(__file__).parents[3] / "benchmarks" / "training"


@pytest.mark.parametrize("file", sorted((SHIPPED / "pairs").glob("*.jsonl")), ids=lambda f: f.stem)
def test_the_pairs_of_the_repository(file: Path) -> None:
    head, *rows = (json.loads(line) for line in file.read_text("utf-8").splitlines())
    assert set(head) - {"language"} == {"name", "source", "sha256", "characters"}
    assert head["name"] == file.stem
    assert len({row["id"] for row in rows}) == len({row["question"] for row in rows}) == len(rows)
    absent = sum(row["answer"] is None for row in rows)
    assert 0.1 <= absent / len(rows) <= 0.35
    for row in rows:
        start, end = row["passage"]
        first, last = row["answer"] or (start, end)
        assert 0 <= start <= first < last <= end <= head["characters"], row["id"]
        assert (row["answer"] is None) == (row["kind"] == "absent")
        assert row["kind"] in ("plain", "reworded", "absent")


NAMES = ["Anna Moll", "Bex", "Tom Hale"]


def swap(question: str, passage: str, seed: int = 1) -> str | None:
    return swapped_question(question, passage, NAMES, StableRandom(seed))


def test_a_name_becomes_another_that_the_passage_does_not_mention() -> None:
    passage = "In the town of Bex old Tom Hale sold a mare."
    found = {swap("What did old Tom Hale sell?", passage, seed) for seed in range(20)}
    assert found == {"What did old Anna Moll sell?"}


@pytest.mark.parametrize("word", ["brown", "Brown"])
def test_a_word_becomes_another_of_its_kind(word: str) -> None:
    found = swap(f"What is the key of the {word} gate?", "The key of the brown gate is 7.")
    other = found.removeprefix("What is the key of the ").removesuffix(" gate?")
    assert other.lower() in KINDS[0]
    assert other.lower() != "brown"
    assert other[0].isupper() == word[0].isupper()
