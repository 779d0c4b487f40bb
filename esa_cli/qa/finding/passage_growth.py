"""Found windows that grow by whole sentences, within their paragraphs, before they are read again.

A window that was found by its words may end just before the sentence that answers.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from esa_cli.qa.finding.passages_apart import FoundPassage
from esa_cli.qa.finding.sentence_windows import BLANK_LINES, sentence_spans
from esa_cli.system.content_words import word_count


def grown(texts: Sequence[str], found: Sequence[FoundPassage], words: int) -> list[FoundPassage]:
    """The passages with at most `words` words each, in their order; longer ones stay as they are.
    One that lies within a better one as grown is left out.

    Args:
        texts: of the documents. found: best first.
    """
    blanks = {n: list(BLANK_LINES.finditer(texts[n])) for n in {one.document for one in found}}
    out: list[FoundPassage] = []
    for one in found:
        if not any(
            better.document == one.document and better.start <= one.start and one.end <= better.end
            for better in out
        ):
            start, end = _paragraphs(texts[one.document], blanks[one.document], one.start, one.end)
            spans = sentence_spans(texts[one.document][start:end])
            sentences = [(start + a, start + b) for a, b in spans]
            first, last = _sentences(texts[one.document], sentences, one, words)
            out.append(replace(one, start=sentences[first][0], end=sentences[last][1]))
    return out


def _paragraphs(
    text: str, blanks: Sequence[re.Match[str]], start: int, end: int
) -> tuple[int, int]:
    """Characters of the paragraphs that the characters [start, end) are of."""
    before = bisect_right(blanks, start, key=lambda blank: blank.end())
    after = bisect_right(blanks, end - 1, key=lambda blank: blank.start())
    return (
        blanks[before - 1].end() if before else 0,
        blanks[after].start() if after < len(blanks) else len(text),
    )


def _sentences(
    text: str, sentences: Sequence[tuple[int, int]], one: FoundPassage, words: int
) -> tuple[int, int]:
    """The first and the last sentence of a grown passage. The side that has grown less goes first;
    where its next sentence is too long, the other side."""
    inside = [n for n, (a, b) in enumerate(sentences) if a < one.end and b > one.start]
    first, last = inside[0], inside[-1]
    room = words - sum(word_count(text[slice(*sentences[n])]) for n in inside)
    grown_by = {-1: 0, 1: 0}
    while True:
        for side in sorted(grown_by, key=lambda side: grown_by[side]):
            at = first - 1 if side < 0 else last + 1
            if (
                0 <= at < len(sentences)
                and (count := word_count(text[slice(*sentences[at])])) <= room
            ):
                room -= count
                grown_by[side] += count
                first, last = min(first, at), max(last, at)
                break
        else:
            return first, last
