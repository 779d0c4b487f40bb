"""Where the words of a text start and end, and what belongs to them: a quotation is whole.

A number has its sign, its currency, its decimals and its `%`; an option, a path and a tag have what
they begin with. Between letters, marks and joiners no word ends. Scripts without spaces (Chinese,
Japanese, Thai) show no borders of words: there a model that reads the text has to say where one is.
"""

from __future__ import annotations

import re
import unicodedata

from esa_cli.system.content_words import SPACELESS_CHARACTER

MONEY = r"[$¢£¤¥֏؋৲৳૱௹฿៛\u20a0-\u20cf﷼＄￡￥￦]"
_FREE = r"(?<![^\s(\[{<\"'“”‘’«»„;,=|—`*_])"
"""Nothing, white space or an opening mark comes before a sign: `3-5` and `and/or` have none."""
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
"""What stands before a word and belongs to it; it may be empty."""
UNIT = re.compile(rf"[%‰′″]|°[CF]?\b|°|{MONEY}(?!\d)")
"""What may follow a number without a space."""
PAIRS = {"(": ")", "[": "]", "{": "}"}
_SPACELESS = re.compile(SPACELESS_CHARACTER)
_MONEY = re.compile(MONEY)
_POSSESSIVE = re.compile(r"['’]s\b")
_JOINERS = "\u200c\u200d\u00ad"
_BEFORE_CONSONANTS = "เแโใไເແໂໃໄ"
"""Vowels of Thai and Lao that are written before the consonant they belong to."""
_AFTER_CONSONANTS = "ะาำๅๆະາຳໆ"
_SMALL_KANA = "ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶー々ゝゞヽヾ"


class WholeWords:
    """The words of one text.

    `spaceless`: whether a script without spaces between words is in it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.spaceless = bool(_SPACELESS.search(text))
        signs = [found.span() for found in SIGN.finditer(text) if found[0]]
        self._signs = {start for start, _ in signs}
        self._after_signs = {end: start for start, end in signs}
        self._within = {at for start, end in signs for at in range(start + 1, end)}
        """Places where a sign of several characters would be divided."""

    def starts(self, at: int) -> bool:
        """Whether a span may start at a character: at a word, or at the sign before it."""
        here, before = self.text[at : at + 1], self.text[max(0, at - 1) : at]
        if at in self._signs or at in self._after_signs:
            return True
        if not here or at in self._within or _is_attached(here):
            return False
        if _SPACELESS.match(here):
            return not _are_one_word(before, here)
        if _MONEY.match(here):
            return not _is_letter(before)
        if not _is_letter(here) or self._joins(at - 1, "'’°.,:-"):
            return False
        return not _is_letter(before) or bool(_SPACELESS.match(before))

    def ends(self, at: int, wanted: bool = True) -> bool:
        """Whether a span may end before character `at`: where a word ends.

        Args:
            wanted: whether it is wanted there rather than later, which decides within a script
                without spaces.
        """
        before, after = self.text[max(0, at - 1) : at], self.text[at : at + 1]
        if not before or at in self._within or at in self._after_signs:
            return False
        if not after:
            return True
        if _is_attached(after) or self._joins(at - 1):
            return False
        if _SPACELESS.match(after):
            inside = bool(_SPACELESS.match(before))
            return not inside or (wanted and not _are_one_word(before, after))
        if _SPACELESS.match(before) or not _is_letter(before) or _POSSESSIVE.match(self.text, at):
            return True
        return not (_is_letter(after) or self._joins(at))

    def whole(self, start: int, end: int) -> tuple[int, int]:
        """The characters [start, end) with the sign before the first word, the unit after the
        number at the end, and the brackets that close those which they open."""
        start = self._after_signs.get(start, start)
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

    def _joins(self, at: int, marks: str = "'’°.,:") -> bool:
        """Whether character `at` is one of the marks and joins its neighbours to one word: letters
        or, of `.,:`, digits."""
        if at < 1 or self.text[at] not in marks:
            return False
        before, after = self.text[at - 1], self.text[at + 1 : at + 2]
        if self.text[at] in ".,:":
            return before.isdecimal() and after.isdecimal()
        return _is_letter(before) and _is_letter(after)


def _is_letter(character: str) -> bool:
    """Whether a character is part of a word: a letter, a digit, a mark on one, or a joiner."""
    return character.isalnum() or character == "_" or _is_attached(character)


def _is_attached(character: str) -> bool:
    """Whether a character belongs to the one before it: a mark on a letter, or a joiner."""
    if not character or character.isascii():
        return False
    return unicodedata.category(character)[0] == "M" or character in _JOINERS + _AFTER_CONSONANTS


def _are_one_word(before: str, after: str) -> bool:
    """Whether two characters of scripts without spaces are never divided."""
    if not before:
        return False
    katakana = all("\u30a1" <= one <= "\u30ff" and one != "・" for one in (before, after))
    return katakana or before in _BEFORE_CONSONANTS or after in _SMALL_KANA
