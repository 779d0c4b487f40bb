"""Where quotations begin and end: with whole words, signs, units and brackets, in one speech."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence

from esa_cli.system.text import SPACELESS_CHARACTER

MONEY = r"[$¢£¤¥֏؋৲৳૱௹฿៛\u20a0-\u20cf﷼＄￡￥￦]"
_FREE = r"(?<![^\s(\[{<\"'“”‘’«»„;,=|—`*_])"
"""A sign follows nothing, white space or an opening mark: `3-5` and `and/or` have no sign."""
SIGN = re.compile(
    rf"{_FREE}(?:"
    # -5, −5, .5, ~5, -.5, -$5, ¥500, #5, +49; no dash of `1914 –1918`
    rf"(?:[-−+±~≈<>≤≥#]|(?<!\d\s)–|{MONEY})*\.?(?=\d)"
    # (555) 1, (030) 12
    r"|\((?=\+?(?:\d{1,3}|0\d+)\)\s?\d)"
    # --keep, -v, #include, @name, /etc, //server, \alpha, ./run, ../up, .gitignore, ~/notes
    r"|(?:--?|#|@|//?|\\\\?|~/|\.{1,2}/|\.)(?=[^\W\d])"
    r")"
)
"""Matches the sign before a word, which belongs to the word and may be empty."""
UNIT = re.compile(rf"[%‰′″]|°[CF]?\b|°|{MONEY}(?!\d)")
"""Matches a unit that follows a number without a space."""
QUOTES = {"`": "`", '"': '"', "”": "“", "’": "‘", "»": "«"}
"""Maps closing quotation marks to opening ones."""
PAIRS = {"(": ")", "[": "]", "{": "}"}
_SPEECH_MARK = re.compile(r"(?<![\s(\[\d])(”)|[“”]")  # 5” is a size; ”Ja” is Swedish
_SPACELESS = re.compile(SPACELESS_CHARACTER)
_MONEY = re.compile(MONEY)
_POSSESSIVE = re.compile(r"['’]s\b")
_JOINERS = "\u200c\u200d\u00ad"
_BEFORE_CONSONANTS = "เแโใไເແໂໃໄ"
"""Vowels of Thai and Lao that are written before their consonant."""
_AFTER_CONSONANTS = "ะาำๅๆະາຳໆ"
_SMALL_KANA = "ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶー々ゝゞヽヾ"


class WordBoundaries:
    """Finds where spans of a text may start and end: at words, with signs and units: `-5`, `5%`."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Whether the text has a script without spaces between words.
        self.spaceless = bool(_SPACELESS.search(text))
        signs = [sign.span() for sign in SIGN.finditer(text) if sign[0]]
        self._signs = {end: start for start, end in signs}
        self._sign_starts = {start for start, _ in signs}
        self._inside_signs = {at for start, end in signs for at in range(start + 1, end)}

    def can_start_span(self, offset: int) -> bool:
        """Whether a span may start at character `offset`: where a word or a word's sign starts."""
        here, before = self.text[offset : offset + 1], self.text[max(0, offset - 1) : offset]
        if offset in self._sign_starts or offset in self._signs:
            return True
        if not here or offset in self._inside_signs or _joins_previous_char(here):
            return False
        if _SPACELESS.match(here):
            return not _are_in_one_word(before, here)
        if _MONEY.match(here):
            return not _is_word_char(before)
        if not _is_word_char(here) or self._is_joining_mark(offset - 1, "'’°.,:-"):
            return False
        return not _is_word_char(before) or bool(_SPACELESS.match(before))

    def can_end_span(self, offset: int) -> bool:
        """Whether a span may end before character `offset`: where a word ends, or between two
        characters of a script without spaces that can be divided."""
        before, after = self.text[max(0, offset - 1) : offset], self.text[offset : offset + 1]
        if not before or offset in self._inside_signs or offset in self._signs:
            return False
        if not after:
            return True
        if _joins_previous_char(after) or self._is_joining_mark(offset - 1):
            return False
        if _SPACELESS.match(after):
            return not (_SPACELESS.match(before) and _are_in_one_word(before, after))
        possessive = _POSSESSIVE.match(self.text, offset)
        if _SPACELESS.match(before) or not _is_word_char(before) or possessive:
            return True
        return not (_is_word_char(after) or self._is_joining_mark(offset))

    def find_last_end(self, offset: int, cell_ends: Sequence[int] = ()) -> int:
        """Returns the last end of a span from `offset`: its speech's, or the next cell's."""
        mark, cells = _SPEECH_MARK.search(self.text, offset), bisect_right(cell_ends, offset)
        speech_end = mark.end() if mark and mark[1] else len(self.text)
        return min([speech_end, *cell_ends[cells : cells + 1]])

    def extend_span(self, start: int, end: int) -> tuple[int, int]:
        """Extends a span by an adjacent sign or unit, by missing closing brackets, and by the first
        mark of several quotations. A mark at the end that closes nothing is left out."""
        start, last = self._signs.get(start, start), self.text[end - 1]
        opening, count = QUOTES.get(last), self.text.count(last, start, end)
        if opening == last == self.text[start - 1 : start] and count % 2 and count > 1:
            start -= 1  # `a`, `b`
        elif opening is not None and opening not in self.text[start : end - 1] and end - start > 1:
            end -= 1
        if self.text[end - 1].isdecimal() and (unit := UNIT.match(self.text, end)):
            end = unit.end()
        missing: list[str] = []
        for mark in self.text[start:end]:
            if mark in PAIRS:
                missing.append(PAIRS[mark])
            elif missing and mark == missing[-1]:
                missing.pop()
        while missing and self.text[end : end + 1] == missing.pop():
            end += 1
        return start, end

    def _is_joining_mark(self, offset: int, marks: str = "'’°.,:") -> bool:
        """Whether character `offset` is a mark inside a word or number, as in `1,306`."""
        if offset < 1 or self.text[offset] not in marks:
            return False
        before, after = self.text[offset - 1], self.text[offset + 1 : offset + 2]
        if self.text[offset] in ".,:":
            return before.isdecimal() and after.isdecimal()
        return _is_word_char(before) and _is_word_char(after)


def _is_word_char(character: str) -> bool:
    """Whether a character is a letter, a digit, `_`, a combining mark, or a joiner."""
    return character.isalnum() or character == "_" or _joins_previous_char(character)


def _joins_previous_char(character: str) -> bool:
    """Whether a character combines with the previous one, as combining marks and joiners do."""
    if not character or character.isascii():
        return False
    return unicodedata.category(character)[0] == "M" or character in _JOINERS + _AFTER_CONSONANTS


def _are_in_one_word(before: str, after: str) -> bool:
    """Whether two adjacent characters of a script without spaces always belong to one word."""
    if not before:
        return False
    katakana = all("\u30a1" <= one <= "\u30ff" and one != "・" for one in (before, after))
    return katakana or before in _BEFORE_CONSONANTS or after in _SMALL_KANA
