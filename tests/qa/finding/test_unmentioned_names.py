"""Names that the documents never mention, and text in which capitals do not mean names."""

from __future__ import annotations

import pytest

from esa_cli.qa.finding.lexical_index import LexicalIndex
from esa_cli.qa.finding.passage_finder import PassageFinder
from esa_cli.qa.finding.unmentioned_names import capitals_mean_names, unmentioned_names

TEXT = (
    "When it was dark, Captain Ahab stood on the deck of the Pequod and said nothing to Starbuck."
)


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Where did Captain Ahab stand?", []),
        ("What did Ahab's mate hear?", []),
        ("What did Ahab’s mate hear from Áhab?", []),
        ("Where did Captain Nemo stand?", ["Captain Nemo"]),
        ("What did Elizabeth Bennet say to Starbuck?", ["Elizabeth Bennet"]),
        ("Where did Old Captain Ahab stand?", []),
        ("Nemo, where is he?", []),
        ("what did nemo say?", []),
        ("WHAT DID NEMO SAY?", []),
        ("What is it? Nemo?", []),
        ("Who was the king of the Isle of Man?", ["Isle of Man"]),
        ("", []),
    ],
)
def test_names_that_never_occur(question: str, names: list[str]) -> None:
    assert unmentioned_names(question, LexicalIndex([TEXT]).knows) == names
    assert PassageFinder([TEXT], []).unmentioned(question) == names


def test_where_nouns_are_capitalised_nothing_is_a_name() -> None:
    german = "Als der Abend kam, stand der alte Mann auf dem Deck und sah die Segel und das Meer."
    assert capitals_mean_names([TEXT])
    assert not capitals_mean_names([german])
    assert PassageFinder([german], []).unmentioned("Wo stand der Kapitän?") == []


def test_no_text() -> None:
    assert capitals_mean_names([])
    assert capitals_mean_names(["", "12 34"])
