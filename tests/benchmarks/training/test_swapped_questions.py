"""Swapped questions ask what the passage does not tell: of another name, number or word."""

from __future__ import annotations

import pytest
from swapped_questions import KINDS, swapped_question

from esa_cli.evaluation.tasks.task_sample import StableRandom

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
