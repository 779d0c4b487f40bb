"""Scores of windows against BM25 written out, with the windows around them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from esa_cli.qa.finding.windows import TextWindow, sentence_spans, sentence_windows
from esa_cli.qa.finding.words import AROUND, WINDOW_WORDS, LexicalIndex, sentence_words
from esa_cli.system.content_words import content_words, word_count

NAMES = ("Anna", "Boris", "Clara", "David", "Emma")
PLACES = ("harbour", "market", "mill", "tower", "orchard", "bridge", "chapel")


def story(sentences: int, seed: int = 0) -> str:
    out = []
    for n in range(sentences):
        name, place = NAMES[(n * 7 + seed) % 5], PLACES[(n * n + seed) % 7]
        out.append(f"{name} walked to the {place} on day {n % 13} with {n % 5} old friends.")
        if n % 6 == 5:
            out.append("\n\n")
    return " ".join(out)


def bm25(texts: Sequence[str], question: str) -> list[float]:
    """idf * tf / (tf + k1 (1 - b + b |d| / mean |d|)), each word as often as it is asked."""
    documents = [content_words(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    out = []
    for words in documents:
        total = 0.0
        for asked in content_words(question):
            having = sum(asked in other for other in documents)
            idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            count = words.count(asked)
            total += idf * count / (count + 1.5 * (0.25 + 0.75 * len(words) / mean))
        out.append(total)
    return out


def windows_of(text: str, words: int) -> list[TextWindow]:
    spans = sentence_spans(text)
    return sentence_windows(spans, [word_count(text[a:b]) for a, b in spans], words)


def expected(texts: Sequence[str], question: str) -> list[float]:
    def cut(words: int) -> list[tuple[int, TextWindow]]:
        return [(n, one) for n, text in enumerate(texts) for one in windows_of(text, words)]

    own = cut(WINDOW_WORDS)
    out = bm25([texts[n][one.start : one.end] for n, one in own], question)
    for size, weight in AROUND:
        wide = cut(size)
        scores = bm25([texts[n][one.start : one.end] for n, one in wide], question)
        for at, (number, window) in enumerate(own):
            middle = window.start + window.end
            near = min(
                (i for i, (n, _) in enumerate(wide) if n == number),
                key=lambda i: (abs(wide[i][1].start + wide[i][1].end - middle), -i),
            )
            out[at] += weight * scores[near]
    return out


@pytest.mark.parametrize(
    "question",
    ["Who walked to the harbour?", "Anna Anna mill", "Which friends had Boris on day 11?"],
)
@pytest.mark.parametrize("texts", [[story(90)], [story(40), "", story(60, 3), "Emma slept."]])
def test_scores_are_bm25_of_the_window_and_of_those_around_it(
    texts: list[str], question: str
) -> None:
    index = LexicalIndex(texts)
    want = torch.tensor(expected(texts, question))
    torch.testing.assert_close(index.scores(question), want, atol=1e-4, rtol=1e-4)
    assert len(index) == len(want) == len(index.documents) == len(index.windows)
    assert index.documents == sorted(index.documents)


@pytest.mark.parametrize("question", ["", "?!", "Who was it that had been there?", "Xyzzy?"])
def test_a_question_without_words_of_the_text_scores_nothing(question: str) -> None:
    index = LexicalIndex([story(20)])
    assert torch.equal(index.scores(question), torch.zeros(len(index)))


@pytest.mark.parametrize("texts", [[], [""], ["", " \n\n "]])
def test_texts_without_windows(texts: list[str]) -> None:
    index = LexicalIndex(texts)
    assert len(index) == 0
    assert index.scores("Who walked?").shape == (0,)


def test_texts_without_words() -> None:
    index = LexicalIndex(["... --- ...", "!?"])
    assert torch.equal(index.scores("Who walked?"), torch.zeros(2))


def test_windows_of_a_script_without_spaces_are_short() -> None:
    text = "門在九點開而市場在黃昏關閉因此人們早早回家。" * 200
    index = LexicalIndex([text + "船長叫做亞哈。"])
    assert max(one.end - one.start for one in index.windows) < 4 * WINDOW_WORDS
    best = index.windows[int(index.scores("亞哈是誰?").argmax())]
    assert best.end == len(text) + 7


def test_a_table_of_long_lines_without_words_is_cut() -> None:
    index = LexicalIndex([("A" * 590 + "\n") * 50])
    assert max(one.end - one.start for one in index.windows) < 2000


def test_a_question_is_compared_as_each_document_is_stemmed() -> None:
    texts = [
        "The houses of the town were sold, and the captain walked home to his ship.",
        "Die Häuser der Stadt wurden verkauft, und der Kapitän ging nicht auf sein Schiff.",
        "Les chevaux de l’amiral étaient fatigués, et il ne savait pas qui les avait vus.",
    ]
    index = LexicalIndex(texts)
    for question, document in (
        ("Which house was sold?", 0), ("das Haus des Kapitäns", 1), ("amiral et cheval", 2),
    ):  # fmt: skip
        assert index.documents[int(index.scores(question).argmax())] == document
        assert all(index.knows(word) for word in question.split()[-1:])
    for text, question in zip(texts, ("houses", "Haus", "cheval"), strict=True):
        alone = LexicalIndex([text]).scores(question)
        assert (alone > 0).all(), "as with others, so alone"
    assert not index.knows("Starbuck")


def test_known_words_change_nothing() -> None:
    texts = [story(60), "", story(30, 2), "門在九點開而市場在黃昏關閉。"]
    known = [sentence_words(text) if number != 2 else None for number, text in enumerate(texts)]
    index, other = LexicalIndex(texts), LexicalIndex(texts, known)
    assert (index.windows, index.documents) == (other.windows, other.documents)
    for question in ("Who walked to the harbour?", "市場", ""):
        assert torch.equal(index.scores(question), other.scores(question))
