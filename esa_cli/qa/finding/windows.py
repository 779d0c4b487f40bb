"""A text as overlapping windows of whole sentences, and the passages that are found among them.

A window has about `words` words, at least one sentence, and begins about half a window after the
one before. Windows cross paragraphs: dialogue has paragraphs of a few words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from esa_cli.documents.sentences import bare, cuts

BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class TextWindow:
    """Characters [start, end) of a text, and its sentences [first, last) there."""

    start: int
    end: int
    first: int
    last: int


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Characters [start, end) of the sentences and lines of `text`, in order."""
    out: list[tuple[int, int]] = []
    for start, last in _paragraphs(text):
        for end in cuts(text, start, last):
            first, stop = bare(text, start, end)
            if first < stop:
                out.append((first, stop))
            start = end
    return out


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    for blank in BLANK_LINES.finditer(text):
        yield bare(text, at, blank.start())
        at = blank.end()
    yield bare(text, at, len(text))


def sentence_windows(
    spans: list[tuple[int, int]], counts: list[int], words: int
) -> list[TextWindow]:
    """Windows of about `words` words over the sentences `spans` with `counts` words each."""
    out: list[TextWindow] = []
    first = 0
    while first < len(spans):
        last, total = first, 0
        while last < len(spans) and total < words:
            if total and total + counts[last] > 1.25 * words:
                break
            total += counts[last]
            last += 1
        out.append(TextWindow(spans[first][0], spans[last - 1][1], first, last))
        if last >= len(spans):
            break
        half, following = 0, first
        while following < last and half < total / 2:
            half += counts[following]
            following += 1
        first = max(first + 1, following)
    return out


@dataclass(frozen=True)
class FoundPassage:
    """Characters [start, end) of document number `document`, and its score in standard
    deviations."""

    document: int
    start: int
    end: int
    score: float


def shared_characters(one: TextWindow, other: TextWindow) -> int:
    """Characters that two windows of a text have in common; not above 0: none."""
    return min(one.end, other.end) - max(one.start, other.start)
