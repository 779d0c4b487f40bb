"""Windows of sentences, and passages of which none overlaps another by half, against loops."""

from __future__ import annotations

import random
import time
import tracemalloc
from itertools import pairwise

import pytest

from esa_cli.documents.sentences import LONGEST
from esa_cli.qa.finding.windows import FoundPassage, PassagesApart, sentence_spans, sentence_windows

PROSE = "The gate opens at nine. “Who is there?” he asked.\n\n  It was Mr. Hall. Nobody\nspoke.\n"


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]


def test_sentences_of_all_paragraphs_without_white_space_around_them() -> None:
    assert sentences(PROSE) == [
        "The gate opens at nine.",
        "“Who is there?” he asked.",
        "It was Mr. Hall.",
        "Nobody",
        "spoke.",
    ]


@pytest.mark.parametrize("text", ["", " ", "\n\n \t\n"])
def test_nothing_to_read(text: str) -> None:
    assert sentence_spans(text) == []
    assert sentence_windows([], [], 60) == []


@pytest.mark.parametrize("text", ["a\n\n\nb", "a\n \t\nb", "a\r\n\r\nb", "\n\na\n\n\n\nb\n\n"])
def test_blank_lines_end_a_paragraph(text: str) -> None:
    assert sentences(text) == ["a", "b"]


def test_a_line_without_end_is_cut() -> None:
    spans = sentence_spans("x" * 2000)
    assert [end - start for start, end in spans] == [LONGEST, LONGEST, LONGEST, 200]


def test_a_paragraph_of_many_lines_takes_little_memory() -> None:
    text = "The gate opens at nine and the market closes at dusk, as he says.\n" * 3000
    tracemalloc.start()
    began = time.perf_counter()
    spans = sentence_spans(text)
    assert time.perf_counter() - began < 10
    assert tracemalloc.get_traced_memory()[1] < 20 * len(text)
    tracemalloc.stop()
    assert len(spans) == 3000


@pytest.mark.parametrize("words", [1, 10, 60, 10_000])
def test_windows_cover_all_sentences_and_overlap_by_half(words: int) -> None:
    random.seed(3)
    counts = [random.choice([1, 4, 9, 25, 70]) for _ in range(200)]
    starts = [100 * i for i in range(200)]
    spans = [(start, start + 90) for start in starts]
    windows = sentence_windows(spans, counts, words)
    assert {n for one in windows for n in range(one.first, one.last)} == set(range(200))
    for one in windows:
        assert one.first < one.last
        assert (one.start, one.end) == (spans[one.first][0], spans[one.last - 1][1])
        total = sum(counts[one.first : one.last])
        assert one.last - one.first == 1 or total <= 1.25 * words
    for one, two in pairwise(windows):
        assert one.first < two.first <= one.last
        skipped = sum(counts[one.first : two.first])
        whole = sum(counts[one.first : one.last])
        longest = max(counts[one.first : one.last])
        assert skipped <= whole / 2 + longest


def by_loop(passages: list[FoundPassage]) -> list[FoundPassage]:
    out: list[FoundPassage] = []
    for one in passages:
        for other in out:
            shared = min(one.end, other.end) - max(one.start, other.start)
            shorter = min(one.end - one.start, other.end - other.start)
            if one.document == other.document and 2 * shared >= shorter:
                break
        else:
            out.append(one)
    return out


def test_as_a_plain_loop() -> None:
    draw = random.Random(1)
    for _ in range(50):
        passages = []
        for _ in range(60):
            start = draw.randrange(300)
            passages.append(FoundPassage(draw.randrange(2), start, start + draw.randint(1, 60), 0))
        made = PassagesApart()
        added = [made.add(one) for one in passages]
        assert made.passages == by_loop(passages)
        assert [one for one, new in zip(passages, added, strict=True) if new] == made.passages
