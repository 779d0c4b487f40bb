"""Where spans start and end, in texts that are made of pieces which a span must not divide."""

from __future__ import annotations

import random
import unicodedata

import pytest

from esa_cli.qa.reading.spans import WholeWords

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
    words = WholeWords(text)
    starts = [at for at in range(len(text)) if words.starts(at)]
    ends = [at for at in range(len(text) + 1) if words.ends(at)]
    for at in starts:
        for end in ends:
            if end <= at:
                continue
            first, last = words.whole(at, end)
            assert first <= at
            assert last >= end
            for start, stop, within in places:
                assert not start < first < stop or first in within, (text[start:stop], text[first:])
                if stop - start > 1 and text[start:stop] in WHOLE:
                    assert not start < last < stop, (text[start:stop], text[first:last])
    for start, stop, _ in places:
        assert any(words.whole(at, stop) == (start, stop) for at in starts if start <= at < stop)


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
    ],
)
def test_what_belongs_to_a_span(text: str, start: str, end: str, whole: str) -> None:
    first, last = WholeWords(text).whole(text.index(start), text.index(end) + len(end))
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
def test_scripts_without_spaces_end_within_a_run_only_where_it_is_wanted(text: str) -> None:
    words = WholeWords(text)
    assert words.spaceless
    for at in range(1, len(text)):
        before, after = text[at - 1], text[at]
        if before.isalnum() and after.isalnum():
            latin = before.isascii() or after.isascii()
            assert latin or not words.ends(at, wanted=False)
        if unicodedata.category(after)[0] == "M":
            assert not words.ends(at)
            assert not words.starts(at)
        if "ァ" <= before <= "ヺ" and "ァ" <= after <= "ー":
            assert not words.ends(at)
            assert not words.starts(at)
    assert words.ends(len(text))
    assert words.starts(0)
