"""Words that no document has are found by stems with similar spelling, against a plain loop."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from esa_cli.qa.finding.spelling import ALIKE, MOST, PART, SHORTEST, SHORTEST_PART, SpellingIndex
from esa_cli.qa.finding.words import LexicalIndex, find_sentence_spans


def pairs(stem: str) -> set[str]:
    edged = f"\n{stem}\n"
    return {edged[at : at + 2] for at in range(len(edged) - 1)}


def by_loop(stems: Sequence[str], word: str) -> list[tuple[int, float]]:
    weights = []
    for number, stem in enumerate(stems):
        one, other = pairs(stem), pairs(word)
        dice = 2 * len(one & other) / (len(one) + len(other))
        part, whole = sorted((stem, word), key=len)
        similar = dice**2 if dice >= ALIKE and stem[0] == word[0] else 0.0
        end = PART * len(part) / len(whole) if len(part) >= SHORTEST_PART else 0.0
        weights.append((number, max(similar, end if whole.endswith(part) else 0.0)))
    best = sorted(weights, key=lambda one: -one[1])[:MOST]
    short = len(word) < SHORTEST or any(letter.isdigit() for letter in word)
    return [] if short else [one for one in best if one[1] > 0]


@pytest.mark.parametrize("letters", ["ab", "abcdefg", "aé中\U00020000x3"])
def test_similar_stems_are_those_of_a_loop(letters: str) -> None:
    dice = random.Random(0)

    def draw(most: int) -> str:
        return "".join(dice.choices(letters, k=dice.randint(1, most)))

    for _ in range(40):
        stems = list(dict.fromkeys(draw(9) for _ in range(dice.randint(0, 60))))
        index = SpellingIndex(stems)
        for word in (draw(12) for _ in range(20)):
            assert index.find_similar_stems(word) == by_loop(stems, word)


GERMAN = """Der Behälter für die Flüssigkeit ist undicht, und das ist nicht gut.

Die Zeitung wurde von der Regierung verboten, aber niemand wußte das."""
ENGLISH = """The government of the island paid for the lamp.

Elizabeth walked to the harbour in the rain.

The keeper's name was Starling, and it was 1871."""


@pytest.mark.parametrize(
    ("text", "question", "sentence"),
    [
        (GERMAN, "Wo ist der Bremsflüssigkeitsbehälter?", 0),
        (GERMAN, "was verbot die regirung", 1),
        (GERMAN, "BEHAELTER", 0),
        (ENGLISH, "goverment", 0),
        (ENGLISH, "Where did Elisabeth go?", 1),
    ],
)
def test_words_with_typing_errors_and_compounds_find_their_sentence(
    text: str, question: str, sentence: int
) -> None:
    texts = [text[start:end] for start, end in find_sentence_spans(text)]
    index = LexicalIndex(texts)
    assert int(index.compute_bm25_scores(question).argmax()) == sentence
    assert index.compute_bm25_scores(question).max() > 0


@pytest.mark.parametrize("question", ["zxcvqq", "Who is Starbuck?", "1872", "Where is Lampedusa?"])
def test_nonsense_other_numbers_and_absent_names_find_nothing(question: str) -> None:
    index = LexicalIndex([ENGLISH])
    assert not index.compute_bm25_scores(question).any()
    assert not any(map(index.has_word, question.split()[-1:]))


def test_a_similar_word_counts_less_than_the_word_and_is_not_had() -> None:
    index = LexicalIndex([ENGLISH])
    exact, similar = map(index.compute_bm25_scores, ("government", "goverment"))
    assert 0 < similar.max() < exact.max()
    assert index.has_word("governments")
    assert not index.has_word("goverment")


def test_single_chinese_characters_count() -> None:
    index = LexicalIndex(["操大笑。", "瑜曰：“吾有一計。”", "山在東。"])
    assert int(index.compute_bm25_scores("周瑜的計策是什麼？").argmax()) == 1
    assert not index.compute_bm25_scores("魚").any()
