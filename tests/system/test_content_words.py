"""Words of a text as stems, and where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import bm25s
import pytest
import torch

from esa_cli.system.bm25_scores import K1, B, Bm25
from esa_cli.system.content_words import content_words, located_words, word_count


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The whales were swimming.", ["whale", "swim"]),
        ("İstanbul and Ishmael's ship", ["i̇stanbul", "ishmael", "ship"]),
        ("鲸鱼在海里", ["鲸鱼", "鱼在", "在海", "海里"]),
        ("ship鲸鱼boats", ["ship", "鲸鱼", "boat"]),
        ("鲸 of it", ["鲸"]),
        ("", []),
    ],
)
def test_content_words(text: str, words: list[str]) -> None:
    assert content_words(text) == words


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 1), ("?", 1), ("He is a man of 3 words.", 7), ("鲸鱼在海里。", 2), ("x" * 600, 30)],
)
def test_words_are_counted_without_spaces_too(text: str, count: int) -> None:
    assert word_count(text) == count


def test_words_are_where_they_begin() -> None:
    text = "İİİ the whales, 鲸鱼 of ships"
    assert [(at, text[at]) for at, _ in located_words(text)] == [
        (0, "İ"), (8, "w"), (16, "鲸"), (22, "s"),
    ]  # fmt: skip


def plain_bm25(texts: Sequence[Sequence[int]], words: Sequence[int]) -> list[float]:
    """The formula of `system/bm25_scores.py`, word by word."""
    mean = sum(map(len, texts)) / len(texts)
    out = []
    for text in texts:
        score = 0.0
        for word in words:
            having = sum(word in other for other in texts)
            idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            count = text.count(word)
            score += idf * count / (count + K1 * (1 - B + B * len(text) / mean))
        out.append(score)
    return out


def test_bm25_is_its_formula() -> None:
    texts = [torch.randint(0, 12, (size,)).tolist() for size in (9, 1, 0, 30, 9, 4)]
    for words in ([3], [0, 5, 7], [2, 2, 4], list(range(12))):
        found = Bm25.of(texts, 12).scores(words)
        assert found.dtype == torch.float32
        assert found.tolist() == pytest.approx(plain_bm25(texts, words), rel=1e-5)


@pytest.mark.parametrize("words", [3, 40, 5000])
def test_bm25_is_that_of_bm25s_bit_for_bit(words: int) -> None:
    torch.manual_seed(words)
    sizes = torch.randint(0, 90, (200,)).tolist()
    texts = [(words * torch.rand(size) ** 3).long().tolist() for size in sizes]
    library = bm25s.BM25(k1=K1, b=B)
    vocabulary = {str(i): i for i in range(words)}
    library.index(bm25s.tokenization.Tokenized(ids=texts, vocab=vocabulary), show_progress=False)
    ours = Bm25.of(texts, words)
    for asked in ([0], [words - 1, 1, 1], list(range(0, words, 1 + words // 30))):
        want = torch.from_numpy(library.get_scores_from_ids(asked)).float()
        assert torch.equal(ours.scores(asked), want)


def test_bm25_of_nothing() -> None:
    assert Bm25.of([], 0).scores([]).shape == (0,)
    assert Bm25.of([[], []], 0).scores([]).tolist() == [0, 0]
    assert Bm25.of([[0], []], 1).scores([]).tolist() == [0, 0]
