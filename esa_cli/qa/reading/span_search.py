"""Searches for the most probable span of a passage as the answer (beam search, arXiv 2108.05857).

A hypothesis is a piece of the passage that starts at a word; it is complete if the model predicts a
line end where a word ends. Texts are compared as UTF-8, as a token may end within a character.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from torch import Tensor

from esa_cli.system.text import SPACELESS_CHARACTER

BEAMS = 3
MAX_TOKENS = 32
"""The maximum number of tokens of a span."""
PATIENCE = 3
"""The factor of `MAX_TOKENS` in scripts without spaces, whose characters take several tokens."""
CANDIDATES = 256
"""The number of most probable tokens in each step that are compared with the passage."""
BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
SPACE, BYTE_SPACE = "▁", "Ġ"
"""The letters for a space in the vocabularies of sentencepiece and byte-level BPE."""


def token_bytes(tokenizer: Any) -> Callable[[int], bytes]:
    """Returns a function from a token id to the token's bytes, which are empty for unknown ids."""
    example = tokenizer("a b", add_special_tokens=False)["input_ids"]
    names = "".join(tokenizer.convert_ids_to_tokens(example))
    letters = byte_of_letter()

    @cache
    def bytes_of(token: int) -> bytes:
        name = tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return b""
        if BYTE_SPACE in names:
            known = all(letter in letters for letter in name)
            return bytes(letters[letter] for letter in name) if known else name.encode()
        if SPACE in names:
            byte = BYTE_FALLBACK.fullmatch(name)
            return bytes([int(byte[1], 16)]) if byte else name.replace(SPACE, " ").encode()
        return str(tokenizer.decode([token])).encode()

    return bytes_of


def byte_of_letter() -> dict[str, int]:
    """Returns the byte that each letter of byte-level BPE stands for."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {
        chr(0x100 + at): byte for at, byte in enumerate(hidden)
    }


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
PAIRS = {"(": ")", "[": "]", "{": "}"}
_SPACELESS = re.compile(SPACELESS_CHARACTER)
_MONEY = re.compile(MONEY)
_POSSESSIVE = re.compile(r"['’]s\b")
_JOINERS = "\u200c\u200d\u00ad"
_BEFORE_CONSONANTS = "เแโใไເແໂໃໄ"
"""Vowels of Thai and Lao that are written before their consonant."""
_AFTER_CONSONANTS = "ะาำๅๆະາຳໆ"
_SMALL_KANA = "ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶー々ゝゞヽヾ"


class WordBoundaries:
    """Finds where spans of a text may start and end: at words with their signs and units, such as
    `-5`, `¥500`, `--keep`, `/etc`, `5%` and `1,306`.

    The attribute `spaceless` says whether the text has a script without spaces between words."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spaceless = bool(_SPACELESS.search(text))
        signs = [sign.span() for sign in SIGN.finditer(text) if sign[0]]
        self._signs = {end: start for start, end in signs}
        self._sign_starts = {start for start, _ in signs}
        self._inside_signs = {at for start, end in signs for at in range(start + 1, end)}

    def can_start_span(self, offset: int) -> bool:
        """Whether a span may start at character `offset`: at a word, or at the sign of a word."""
        here, before = self.text[offset : offset + 1], self.text[max(0, offset - 1) : offset]
        if offset in self._sign_starts or offset in self._signs:
            return True
        if not here or offset in self._inside_signs or _belongs_to_previous(here):
            return False
        if _SPACELESS.match(here):
            return not _is_never_divided(before, here)
        if _MONEY.match(here):
            return not _is_letter(before)
        if not _is_letter(here) or self._is_joining_mark(offset - 1, "'’°.,:-"):
            return False
        return not _is_letter(before) or bool(_SPACELESS.match(before))

    def can_end_span(self, offset: int, is_preferred: bool = True) -> bool:
        """Whether a span may end before character `offset`, because a word ends. A span  may also
        end inside text without spaces if `is_preferred`: the model prefers the end to more text."""
        before, after = self.text[max(0, offset - 1) : offset], self.text[offset : offset + 1]
        if not before or offset in self._inside_signs or offset in self._signs:
            return False
        if not after:
            return True
        if _belongs_to_previous(after) or self._is_joining_mark(offset - 1):
            return False
        if _SPACELESS.match(after):
            inside = bool(_SPACELESS.match(before))
            return not inside or (is_preferred and not _is_never_divided(before, after))
        possessive = _POSSESSIVE.match(self.text, offset)
        if _SPACELESS.match(before) or not _is_letter(before) or possessive:
            return True
        return not (_is_letter(after) or self._is_joining_mark(offset))

    def complete_span(self, start: int, end: int) -> tuple[int, int]:
        """Extends a span by its sign, its unit, and its missing closing brackets."""
        start = self._signs.get(start, start)
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
        """Whether character `offset` is a mark that joins two digits or letters to one word."""
        if offset < 1 or self.text[offset] not in marks:
            return False
        before, after = self.text[offset - 1], self.text[offset + 1 : offset + 2]
        if self.text[offset] in ".,:":
            return before.isdecimal() and after.isdecimal()
        return _is_letter(before) and _is_letter(after)


def _is_letter(character: str) -> bool:
    """Whether a character is part of a word: a letter, a digit, a combining mark, or a joiner."""
    return character.isalnum() or character == "_" or _belongs_to_previous(character)


def _belongs_to_previous(character: str) -> bool:
    """Whether a character belongs to the previous character: a combining mark, or a joiner."""
    if not character or character.isascii():
        return False
    return unicodedata.category(character)[0] == "M" or character in _JOINERS + _AFTER_CONSONANTS


def _is_never_divided(before: str, after: str) -> bool:
    """Whether two adjacent characters in a script without spaces are always in one word."""
    if not before:
        return False
    katakana = all("\u30a1" <= one <= "\u30ff" and one != "・" for one in (before, after))
    return katakana or before in _BEFORE_CONSONANTS or after in _SMALL_KANA


class Span(NamedTuple):
    """A span: characters [start, end) of a passage, and their log-probability as the answer."""

    start: int
    end: int
    log_probability: float


class _Hypothesis(NamedTuple):
    """A beginning of an answer: bytes that occur at the byte offsets `starts` of the passage.
    `spaced` says whether the space before the answer has been generated."""

    log_probability: float
    text: bytes
    starts: tuple[int, ...]
    spaced: bool = False
    parent: int = 0
    token: int = 0


def most_probable_span(
    passage: str, first_logits: Tensor, continuation: Any,
    bytes_of: Callable[[int], bytes], line_end: int, above: float = -math.inf,
) -> Span | None:  # fmt: skip
    """Searches for the span of a passage with the highest probability as the model's answer.

    Args:
        passage: in one line, as in the prompt. bytes_of: see `token_bytes`.
        continuation: of the prompt; see `text_forward.Continuation`.
        first_logits: (vocabulary,) of the first token of the answer.
        line_end: the token that ends an answer.
        above: the search ends where all hypotheses are below; they only get less likely."""
    words, raw = WordBoundaries(passage), passage.encode()
    sizes = [len(character.encode()) for character in passage]
    places = {at: number for number, at in enumerate(accumulate(sizes, initial=0))}
    """Maps byte offsets to character offsets, at the beginnings of characters and at the end."""
    starts = tuple(at for at, number in places.items() if words.can_start_span(number))
    live, logits, best = [_Hypothesis(0.0, b"", starts)], first_logits[None], None
    for _ in range(MAX_TOKENS * (PATIENCE if words.spaceless else 1)):
        grown: list[_Hypothesis] = []
        for number, (old, line) in enumerate(zip(live, logits.log_softmax(-1), strict=True)):
            longer = _extend_hypothesis(raw, old, line, bytes_of, number)
            goes_on = longer[0].log_probability - old.log_probability if longer else -math.inf
            ends, text = float(line[line_end]), old.text.rstrip()
            total = old.log_probability + ends
            for start in old.starts if text and total > above else ():
                last = places.get(start + len(text))
                if last is not None and words.can_end_span(last, is_preferred=ends >= goes_on):
                    best = Span(*words.complete_span(places[start], last), total)
                    above = total
                    break
            grown += longer
        grown.sort(key=lambda one: -one.log_probability)
        live = [one for one in grown[:BEAMS] if one.log_probability > above]
        if not live:
            break
        logits = continuation.append([one.parent for one in live], [one.token for one in live])
    return best


def _extend_hypothesis(
    passage: bytes, old: _Hypothesis, log_probabilities: Tensor, bytes_of: Callable[[int], bytes],
    number: int,
) -> list[_Hypothesis]:  # fmt: skip
    """Extends hypothesis `number` by the `BEAMS` likeliest tokens that continue the passage."""
    out: list[_Hypothesis] = []
    values, tokens = log_probabilities.topk(min(CANDIDATES, log_probabilities.shape[0]))
    for value, token in zip(values.tolist(), tokens.tolist(), strict=True):
        piece, spaced = bytes_of(token), old.spaced
        if not piece:
            continue
        if not old.text and not spaced and piece.startswith(b" "):
            piece, spaced = piece[1:], True
        text = old.text + piece
        if text not in passage:  # nearly all are not, and this costs less than a look at each start
            continue
        starts = tuple([at for at in old.starts if passage.startswith(text, at)])
        if starts:
            total = old.log_probability + value
            out.append(_Hypothesis(total, text, starts, spaced, number, token))
        if len(out) == BEAMS:
            break
    return out
