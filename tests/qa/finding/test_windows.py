"""Windows of sentences, against loops."""

from __future__ import annotations

import random

import pytest

from esa_cli.qa.finding.words import cut_sentence_windows, find_sentence_spans

PROSE = "The gate opens at nine. “Who is there?” he asked.\n\n  It was Mr. Hall. Nobody\nspoke.\n"


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in find_sentence_spans(text)]


def test_sentences_of_all_paragraphs_without_white_space_around_them() -> None:
    assert sentences(PROSE) == [
        "The gate opens at nine.",
        "“Who is there?” he asked.",
        "It was Mr. Hall.",
        "Nobody",
        "spoke.",
    ]


def windows_by_rule(counts: list[int], words: int) -> list[tuple[int, int]]:
    """Sentences [first, last) of each window, from sums alone."""
    out, first = list[tuple[int, int]](), 0
    while True:
        last = first + 1
        while last < len(counts):
            total = sum(counts[first:last])
            if total >= words or (total and total + counts[last] > 1.25 * words):
                break
            last += 1
        out.append((first, last))
        if last == len(counts):
            return out
        half = sum(counts[first:last]) / 2
        middle = next(n for n in range(first, last + 1) if sum(counts[first:n]) >= half)
        first = max(first + 1, middle)


@pytest.mark.parametrize("seed", range(12))
def test_windows_are_those_of_the_rule(seed: int) -> None:
    rng = random.Random(seed)
    counts = [rng.choice([0, 1, 2, 3, 5, 8, 20]) for _ in range(rng.randrange(1, 60))]
    spans = [(7 * n, 7 * n + 5) for n in range(len(counts))]
    for words in (1, 4, 8, 12, 16):
        windows = cut_sentence_windows(spans, counts, words)
        assert [(one.first, one.last) for one in windows] == windows_by_rule(counts, words)
        for one in windows:
            assert (one.start, one.end) == (7 * one.first, 7 * (one.last - 1) + 5)
    assert cut_sentence_windows([], [], 60) == []
