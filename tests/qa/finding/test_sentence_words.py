"""The table of a text's sentences and words, against the functions it is made with, and stored."""

from __future__ import annotations

from itertools import pairwise

import pytest
from safetensors.numpy import load, save

from esa_cli.qa.finding import words
from esa_cli.qa.finding.windows import sentence_spans
from esa_cli.qa.finding.words import SentenceWords, sentence_words
from esa_cli.system.content_words import content_words, word_count

TEXTS = [
    "",
    " \n\n ",
    "... --- ...",
    "The whales swam. A whale's Whale was swimming!\n\nIt was not the whale, Mr. Ahab.",
    "ship鲸鱼boats 在海里。 İstanbul's \ud800 ends.\n\n" + "x" * 1500,
]


def of_each_sentence(words: SentenceWords) -> list[list[str]]:
    ends = words.ends.tolist()
    return [[words.vocabulary[one] for one in words.ids[a:b]] for a, b in pairwise(ends)]


@pytest.mark.parametrize("text", TEXTS)
def test_the_words_of_each_sentence(text: str) -> None:
    spans, found = sentence_spans(text), sentence_words(text)
    assert list(map(tuple, found.spans.tolist())) == spans
    assert found.counts.tolist() == [word_count(text[a:b]) for a, b in spans]
    assert of_each_sentence(found) == [content_words(text[a:b]) for a, b in spans]
    assert len(set(found.vocabulary)) == len(found.vocabulary)


@pytest.mark.parametrize("text", TEXTS)
def test_stored_and_read(text: str) -> None:
    made = sentence_words(text)
    found = SentenceWords.of_bytes(made.as_bytes())
    assert found is not None
    assert found.vocabulary == made.vocabulary
    for name in ("spans", "counts", "ids", "ends"):
        mine, yours = getattr(made, name), getattr(found, name)
        assert (mine.dtype, mine.shape, mine.tolist()) == (yours.dtype, yours.shape, yours.tolist())


def test_another_version_or_form_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    data = sentence_words(TEXTS[3]).as_bytes()
    assert SentenceWords.of_bytes(b"") is SentenceWords.of_bytes(b"x" * 99) is None
    less = {name: one for name, one in load(data).items() if name != "ends"}
    assert SentenceWords.of_bytes(save(less)) is None
    monkeypatch.setattr(words, "_version", lambda: "another")
    assert SentenceWords.of_bytes(data) is None
