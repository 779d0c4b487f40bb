"""Names that the documents never mention, and text in which capitals do not mean names."""

from __future__ import annotations

from typing import Any

import pytest

from esa_cli.qa.finding.passage_finder import PassageFinder
from esa_cli.qa.finding.words import (
    LexicalIndex,
    capitals_mean_names,
    small_words,
    unmentioned_share,
)

TEXT = (
    "When it was dark, Captain Ahab stood on the deck of the Pequod and said nothing to Starbuck."
)
SMALL = {"isle", "man", "director", "old"}


@pytest.mark.parametrize(
    ("question", "share"),
    [
        ("Where did Captain Ahab stand?", 0),
        ("What did Ahab's mate hear?", 0),
        ("What did Ahab’s mate hear from Áhab?", 0),
        ("Where did Captain Nemo stand?", 1),
        ("What did Elizabeth Bennet say to Starbuck?", 1),
        ("Where did Old Captain Ahab stand?", 0),
        ("What did Ahab Bennet say?", 1 / 2),
        ("Nemo, where is he?", 0),
        ("what did nemo say?", 0),
        ("WHAT DID NEMO SAY?", 0),
        ("What is it? Nemo?", 0),
        ("Who was the king of the Isle of Man?", 0),
        ("Who was the Director of the USA, or its CEO?", 0),
        ("What did Mr Ahab say to Dr. Starbuck?", 0),
        ("", 0),
    ],
)
def test_names_that_never_occur(question: str, share: float) -> None:
    assert unmentioned_share(question, LexicalIndex([TEXT]).knows, small_word) == share
    assert PassageFinder([TEXT], []).unmentioned(question, small_word) == share


def small_word(word: str) -> bool:
    return word.lower() in SMALL


@pytest.mark.parametrize(
    "german",
    [
        "Als der Abend kam, stand der alte Mann auf dem Deck und sah die Segel und das Meer.",
        "Er war früh auf und ging mit der Schwester zu dem alten Haus. Es ist nicht weit, sagte "
        "sie, und sah ihn an. Dann sang sie ein wenig und lief voraus.",
    ],
)
def test_where_nouns_are_capitalised_nothing_is_a_name(german: str) -> None:
    assert capitals_mean_names([TEXT])
    assert not capitals_mean_names([german])
    assert PassageFinder([german], []).unmentioned("Wo stand der Kapitän?", small_word) == 0


def test_no_text() -> None:
    assert capitals_mean_names([])
    assert capitals_mean_names(["", "12 34"])


class Vocabulary:
    """A tokenizer of whole words, the frequent ones first; others are letters."""

    words = ("a", "holiday", "Will", "Holiday", "will", "bell")

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        ids: list[int] = []
        for word in text.split():
            known = word in self.words
            ids += [self.words.index(word)] if known else [100 + ord(letter) for letter in word]
        return {"input_ids": ids}


def test_words_that_are_written_small_as_a_rule() -> None:
    small = small_words(Vocabulary())
    words = {"Holiday": True, "Will": False, "Bell": True, "Ahab": False}
    assert {word: small(word) for word in words} == words
