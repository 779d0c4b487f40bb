"""Where another model's words stand in a passage, and what counts as no answer. No model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from esa_cli.qa.answering.reply import NOT_TOLD, Passage, Reply
from esa_cli.qa.collecting import LogOddsDecision, WrittenDecision, quoted_place

TEXT = "The gate\nopens at nine. Ninety boats (all grey) lie there."


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("the gate opens at nine", "The gate\nopens at nine"),
        ("“All grey.”", "all grey"),
        ("nine", "nine"),
        ("boats all", "boats (all"),
        ("It is at nine, says the passage.", "at nine"),
        ("It is grey.", "grey"),
        ("ten", TEXT),
        ("It is at the.", TEXT),
        ("...", TEXT),
    ],
)
def test_the_place_of_words(answer: str, words: str) -> None:
    start, end = quoted_place(answer, TEXT)
    assert TEXT[start:end] == words


def test_another_model_decides_by_its_words() -> None:
    said = iter([f"{NOT_TOLD}", "At  nine.", " ", "Twelve, I think."])
    decision = WrittenDecision(lambda passage: Reply(next(said)))
    passage = Passage("a.txt", "a.txt", None, 1, None, 0, len(TEXT), TEXT)
    spans = decision.spans([passage] * 4, [0.0] * 4)
    assert [len(one) for one in spans] == [0, 1, 0, 1]
    [first], [second] = spans[1], spans[3]
    assert (TEXT[first.start : first.end], first.answer) == ("at nine", "At nine.")
    assert (second.start, second.end, second.answer) == (0, len(TEXT), "Twelve, I think.")
    assert first.weight > second.weight, "the shorter place is the surer"


class AgeReader:
    """A reader that is sure where a text has an age, and quotes the first one."""

    reading = nullcontext

    def read(self, question: str, texts: Sequence[str]) -> Any:
        found = [re.search(r"\d+", text) for text in texts]

        def span(at: int) -> Any:
            one = found[at]
            assert one is not None
            return SimpleNamespace(start=one.start(), end=one.end(), log_probability=-1.0)

        return SimpleNamespace(log_odds=[3.0 if one else -3.0 for one in found], span=span)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_sentence_of_a_passage_that_tells_is_told(count: int) -> None:
    said = [f"Keeper {'abcdefg'[at]} is {30 + at} years old, not {at}." for at in range(count)]
    text = "\n\n".join(["A grey boat.", *said, "Nobody knows it."])
    passage = Passage("a.txt", "a.txt", None, 1, None, 0, len(text), text)
    reader: Any = AgeReader()
    spans, _ = LogOddsDecision(reader, "How old?", 2.5, several=True).spans(
        [passage] * 2, [0.0, -9.0]
    )
    assert [text[one.start : one.end] for one in spans] == [f"{30 + at}" for at in range(count)]
    (first,) = LogOddsDecision(reader, "How old?", 2.5).spans([passage], [0.0])
    assert first == spans[:1]
    refused = LogOddsDecision(reader, "How old?", 3.5).spans([passage], [0.0])
    assert refused == [[]]
