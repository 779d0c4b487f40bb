"""Passages that grow: whole sentences, within their paragraphs, up to so many words."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from esa_cli.qa.finding.passage_growth import grown
from esa_cli.qa.finding.passages_apart import FoundPassage
from esa_cli.qa.finding.sentence_windows import BLANK_LINES, sentence_spans, sentence_windows
from esa_cli.system.content_words import word_count

SENTENCES = [f"Sailor {n} walks about the pier." for n in range(8)]
PARAGRAPH = " ".join(SENTENCES)
TEXT = f"A word before.\n\n{PARAGRAPH}\n \nA word behind."


def passage(first: int, last: int, text: str = TEXT, score: float = 0.0) -> FoundPassage:
    """The sentences [first, last)."""
    start = text.index(SENTENCES[first])
    return FoundPassage(0, start, text.index(SENTENCES[last - 1]) + len(SENTENCES[0]), score)


def shown(one: FoundPassage, text: str = TEXT) -> str:
    return text[one.start : one.end]


@pytest.mark.parametrize(
    ("words", "first", "last"),
    [(0, 3, 4), (6, 3, 4), (11, 3, 4), (12, 2, 4), (18, 2, 5), (24, 1, 5), (47, 0, 7), (99, 0, 8)],
)
def test_by_sentences_on_both_sides(words: int, first: int, last: int) -> None:
    found = grown([TEXT], [passage(3, 4, score=2.5)], words)
    assert found == [passage(first, last, score=2.5)]


@pytest.mark.parametrize(("first", "last", "want"), [(0, 1, (0, 4)), (7, 8, (4, 8))])
def test_one_side_where_the_other_ends(first: int, last: int, want: tuple[int, int]) -> None:
    assert grown([TEXT], [passage(first, last)], 24) == [passage(*want)]


def test_over_the_paragraphs_that_it_is_of() -> None:
    text = f"One. Two.\n\n{PARAGRAPH}\n\nNine. Ten."
    start = text.index("Two.")
    found = grown(
        [text], [FoundPassage(0, start, start + 20 + text[start:].index("Sailor"), 0)], 99
    )
    assert shown(found[0], text) == text[: text.index("\n\nNine")]


def test_what_lies_within_a_better_one_is_part_of_it() -> None:
    other = replace(passage(2, 3), document=1)
    found = grown([TEXT, TEXT], [passage(4, 5, score=2.0), passage(2, 3, score=1.0), other], 99)
    assert found == [passage(0, 8, score=2.0), replace(passage(0, 8), document=1)]
    near = grown([TEXT], [passage(4, 5), passage(2, 3)], 12)
    assert near == [passage(3, 5), passage(1, 3)]


def test_passages_of_every_text() -> None:
    chance = random.Random(4)
    pieces = [
        "He went. ",
        "Mr. Pip slept!\n",
        "鯨は白い。",
        "\n\n",
        "\n \t\n\n",
        "x" * 700,
        "... ",
        "and so ",
    ]
    for _ in range(60):
        text = "".join(chance.choices(pieces, k=30))
        spans = sentence_spans(text)
        counts = [word_count(text[a:b]) for a, b in spans]
        windows = sentence_windows(spans, counts, 12)
        for window in windows:
            one = FoundPassage(0, window.start, window.end, 1.0)
            [more] = grown([text], [one], 25)
            assert more.start <= one.start < one.end <= more.end
            inside = [(a, b) for a, b in spans if a >= more.start and b <= more.end]
            assert (inside[0][0], inside[-1][1]) == (more.start, more.end)
            words = sum(word_count(text[a:b]) for a, b in inside)
            assert words <= 25 or (more.start, more.end) == (one.start, one.end)
            for side in (text[more.start : one.start], text[one.end : more.end]):
                assert not BLANK_LINES.search(side)
