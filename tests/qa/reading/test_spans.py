"""The most probable span against a loop over all spans, and the boundaries of words."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest
import torch

from esa_cli.qa.reading import span
from esa_cli.qa.reading.span import QUOTES, WordBoundaries, find_most_probable_span

PASSAGES = [
    "Ahab",
    "Ahab, the captain",
    "the captain of the ship, captain Ahab, of 1950",
    "Ahab's ship, the ships of Ahab",
    "雪鯨, the ship 鯨魚",
    "it costs £5 (five), don't buy",
]


def cut(passage: str, seed: int) -> list[tuple[int, int]]:
    """The characters of tokens: pieces of words, most with the space before them."""
    choice, out = random.Random(seed), list[tuple[int, int]]()
    for word in re.finditer(r" ?\S+", passage):
        at = word.start()
        while at < word.end():
            end = min(word.end(), at + choice.randint(1, 4) + (passage[at] == " "))
            out.append((at, end))
            at = end
    return out


@pytest.mark.parametrize("passage", PASSAGES)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("longest", [2, 32])
def test_the_span_is_the_best_of_a_loop(
    passage: str, seed: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span, "MAX_TOKENS", longest)
    torch.manual_seed(seed)
    offsets, words = cut(passage, seed), WordBoundaries(passage)
    starts, ends = 2 * torch.randn(2, len(offsets))
    most = longest * (3 if words.spaceless else 1)
    best = None
    for first in range(len(offsets)):
        start = offsets[first][0] + (passage[offsets[first][0]] == " ")
        for last in range(first, min(first + most, len(offsets))):
            end = offsets[last][1]
            whole = words.can_start_span(start) and words.can_end_span(end)
            if start < end and passage[end - 1] != " " and whole:
                score = float(starts.log_softmax(0)[first] + ends.log_softmax(0)[last])
                if best is None or score > best[0]:
                    best = score, words.extend_span(start, end)
    found = find_most_probable_span(passage, starts, ends, offsets)
    if best is None:
        assert found is None
    else:
        assert found.log_probability == pytest.approx(best[0], abs=1e-5)
        assert (found.start, found.end) == best[1]


@pytest.mark.parametrize(
    ("passage", "likely", "wanted"),
    [
        ("“It is Mr. ——” said Mother.", "Mr. ——” said", "Mr. ——"),
        ("on the “Pequod” of Nantucket", "the “Pequod” of Nantucket", "the “Pequod” of Nantucket"),
        ("a pipe of 5” width", "pipe of 5” width", "pipe of 5” width"),
        ("hon sade ”ja” till mig", "sade ”ja” till", "sade ”ja” till"),
        ("Day: 12 May; On call: Marlowe", "12 May; On call: Marlowe", "12 May"),
    ],
)
def test_no_span_leaves_a_speech_or_a_cell(passage: str, likely: str, wanted: str) -> None:
    at, starts, ends = passage.index(likely), *torch.zeros(2, len(passage))
    starts[at], ends[at + len(likely) - 1] = 30.0, 20.0
    ends[passage.index(wanted) + len(wanted) - 1] += 10.0
    ends[passage.index(wanted) + len(wanted.rstrip(" —”")) - 1] += 5.0
    offsets = [(one, one + 1) for one in range(len(passage))]
    cells = [passage.index("; "), len(passage)] if "; " in passage else []
    found = find_most_probable_span(passage, starts, ends, offsets, cells)
    assert passage[found.start : found.end] == wanted


@pytest.mark.parametrize("passage", ["", "...", "?!", "- ' -"])
def test_a_passage_without_words_has_none(passage: str) -> None:
    offsets = [(at, at + 1) for at in range(len(passage))]
    assert find_most_probable_span(passage, *torch.randn(2, len(offsets)), offsets) is None


WHOLE = [
    "-5", "−5", ".5", "-.5", "-$5", "¥500", "₹20", "€3.50", "+49", "±3", "~5", "≈7", "<5", "#5",
    "1,306", "3.14", "12:30", "5%", "7‰", "5€", "20°C", "don't", "l’Italie", "foo_bar", "word",
    "हिन्दी", "مُحَمَّد", "Müller", "cafe\u0301", "soft\u00adware", "--keep", "-v", "#include",
    "@name", "~/notes", ".gitignore", "./run", "\\alpha", "カタカナ", "ที่",
]  # fmt: skip
"""Each is quoted whole or not at all."""
FRAGMENTS = {"/etc/passwd": {5}, "C:\\x": {3}, "3-5": set(), "well-known": set()}
"""Others, with the places within them where a span may start."""
BETWEEN = [" ", ", ", " (", ") ", " “", "” ", "\n", "; "]


def made_text(seed: int) -> tuple[str, list[tuple[int, int, set[int]]]]:
    """A text, and the places of its pieces with those where a span may start within them."""
    choice, text, places = random.Random(seed), "Of ", list[tuple[int, int, set[int]]]()
    for _ in range(12):
        piece = choice.choice([*WHOLE, *FRAGMENTS])
        start = len(text)
        within = {start + at for at in FRAGMENTS.get(piece, ())}
        places.append((start, start + len(piece), within))
        text += piece + choice.choice(BETWEEN)
    return text + "end", places


@pytest.mark.parametrize("seed", range(60))
def test_no_span_divides_a_piece(seed: int) -> None:
    text, places = made_text(seed)
    words = WordBoundaries(text)
    starts = [at for at in range(len(text)) if words.can_start_span(at)]
    ends = [at for at in range(len(text) + 1) if words.can_end_span(at)]
    for at in starts:
        for end in ends:
            if end <= at:
                continue
            first, last = words.extend_span(at, end)
            assert first <= at
            assert last >= end - (text[end - 1] in QUOTES)
            for start, stop, within in places:
                assert not start < first < stop or first in within, (text[start:stop], text[first:])
                if stop - start > 1 and text[start:stop] in WHOLE:
                    assert not start < last < stop, (text[start:stop], text[first:last])
    for start, stop, _ in places:
        assert any(
            words.extend_span(at, stop) == (start, stop) for at in starts if start <= at < stop
        )


@pytest.mark.parametrize(
    ("text", "start", "end", "whole"),
    [
        ("Jane Roe (CEO) of", "Jane", "CEO", "Jane Roe (CEO)"),
        ("call (555) 1234 now", "555", "1234", "(555) 1234"),
        ("call +49 30 1234", "49", "1234", "+49 30 1234"),
        ("born (1867) in", "1867", "1867", "1867"),
        ("from 3-5 to", "3", "5", "3-5"),
        ("1914 –1918", "1918", "1918", "1918"),
        ("grew by 5% or", "5", "5", "5%"),
        ("as `--mute-for` is", "--mute", "for`", "--mute-for"),
        ("said “yes, or no” to", "yes", "”", "yes, or no"),
        ("said “yes, or no” to", "“yes", "”", "“yes, or no”"),
    ],
)
def test_what_belongs_to_a_span(text: str, start: str, end: str, whole: str) -> None:
    first, last = WordBoundaries(text).extend_span(text.index(start), text.index(end) + len(end))
    assert text[first:last] == whole


@pytest.mark.parametrize(
    "text",
    [
        "一座废弃的啤酒厂。",
        "東京タワーの高さは333メートル",
        "สวัสดีครับ ที่นี่",
        "ကျွန်တော် ကား",
        "ちょっと待って",
    ],
)
def test_scripts_without_spaces_are_not_divided_inside_a_letter(text: str) -> None:
    words = WordBoundaries(text)
    assert words.spaceless
    for at in range(1, len(text)):
        before, after = text[at - 1], text[at]
        if unicodedata.category(after)[0] == "M":
            assert not words.can_end_span(at)
            assert not words.can_start_span(at)
        if "ァ" <= before <= "ヺ" and "ァ" <= after <= "ー":
            assert not words.can_end_span(at)
            assert not words.can_start_span(at)
    assert words.can_end_span(len(text))
    assert words.can_start_span(0)
