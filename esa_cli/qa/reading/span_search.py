"""The most probable span of a passage as the answer, by beam search (arXiv 2108.05857).

A hypothesis is the text of the passage from some word on, and ends with a line end where a word
ends. Texts are compared as UTF-8: a token may end within a character.
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

from esa_cli.system.content_words import SPACELESS_CHARACTER

BEAMS = 3
MAX_TOKENS = 32
"""Tokens of a span."""
PATIENCE = 3
"""So many times `MAX_TOKENS` in scripts without spaces, whose characters take several tokens."""
CANDIDATES = 256
"""Most probable tokens of a step that are compared with the passage."""
BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
SPACE, BYTE_SPACE = "▁", "Ġ"
"""How the vocabularies of sentencepiece and of byte-level BPE write a space."""


def token_bytes(tokenizer: Any) -> Callable[[int], bytes]:
    """Returns a function from a token id to the bytes of the token, b"" for ids without a token."""
    example = tokenizer("a b", add_special_tokens=False)["input_ids"]
    names = "".join(tokenizer.convert_ids_to_tokens(example))
    letters = byte_letters()

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


def byte_letters() -> dict[str, int]:
    """Returns the byte of each letter of byte-level BPE: Latin-1, or from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {
        chr(0x100 + at): byte for at, byte in enumerate(hidden)
    }


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
"""The sign before a word, which belongs to the word; it may be empty."""
UNIT = re.compile(rf"[%‰′″]|°[CF]?\b|°|{MONEY}(?!\d)")
"""A unit that follows a number without a space."""
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
    """The places in a text where spans may start and end: at words with their signs and units, as
    `-5`, `¥500`, `--keep`, `/etc`, `5%`, `1,306`.

    `spaceless`: whether the text has a script without spaces between words.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.spaceless = bool(_SPACELESS.search(text))
        signs = [sign.span() for sign in SIGN.finditer(text) if sign[0]]
        self._signs = {end: start for start, end in signs}
        self._sign_starts = {start for start, _ in signs}
        self._inside_signs = {at for start, end in signs for at in range(start + 1, end)}

    def can_start(self, at: int) -> bool:
        """Whether a span may start at a character: at a word, or at the sign before it."""
        here, before = self.text[at : at + 1], self.text[max(0, at - 1) : at]
        if at in self._sign_starts or at in self._signs:
            return True
        if not here or at in self._inside_signs or _is_attached(here):
            return False
        if _SPACELESS.match(here):
            return not _is_one_word(before, here)
        if _MONEY.match(here):
            return not _is_letter(before)
        if not _is_letter(here) or self._joins(at - 1, "'’°.,:-"):
            return False
        return not _is_letter(before) or bool(_SPACELESS.match(before))

    def can_end(self, at: int, is_preferred: bool = True) -> bool:
        """Whether a span may end before character `at`, where a word ends. Inside a script without
        spaces it may if `is_preferred`: the model would rather end there than go on."""
        before, after = self.text[max(0, at - 1) : at], self.text[at : at + 1]
        if not before or at in self._inside_signs or at in self._signs:
            return False
        if not after:
            return True
        if _is_attached(after) or self._joins(at - 1):
            return False
        if _SPACELESS.match(after):
            inside = bool(_SPACELESS.match(before))
            return not inside or (is_preferred and not _is_one_word(before, after))
        if _SPACELESS.match(before) or not _is_letter(before) or _POSSESSIVE.match(self.text, at):
            return True
        return not (_is_letter(after) or self._joins(at))

    def complete(self, start: int, end: int) -> tuple[int, int]:
        """Returns a span with its sign, its unit, and the closing brackets that it lacks."""
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

    def _joins(self, at: int, marks: str = "'’°.,:") -> bool:
        """Whether character `at` is a mark that joins its neighbours: digits or letters."""
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


def _is_one_word(before: str, after: str) -> bool:
    """Whether two neighbours in a script without spaces are never divided."""
    if not before:
        return False
    katakana = all("\u30a1" <= one <= "\u30ff" and one != "・" for one in (before, after))
    return katakana or before in _BEFORE_CONSONANTS or after in _SMALL_KANA


class Span(NamedTuple):
    """Characters [start, end) of a passage, and their log-probability as the answer."""

    start: int
    end: int
    log_probability: float


class _Hypothesis(NamedTuple):
    """Bytes of the passage from `starts` on; `spaced`: after the space before the answer."""

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
    """Searches for the span that the model answers with the highest probability.

    Args:
        passage: in one line, as in the prompt. bytes_of: see `token_bytes`.
        continuation: of the prompt; see `text_forward.Continuation`.
        first_logits: (vocabulary,) of the first token of the answer.
        line_end: the token that ends an answer.
        above: the search ends where all hypotheses are below; they only get less likely.
    """
    words, raw = WholeWords(passage), passage.encode()
    sizes = [len(character.encode()) for character in passage]
    places = {at: number for number, at in enumerate(accumulate(sizes, initial=0))}
    """Byte -> character, at the beginnings of characters and at the end."""
    starts = tuple(at for at, number in places.items() if words.can_start(number))
    live, logits, best = [_Hypothesis(0.0, b"", starts)], first_logits[None], None
    for _ in range(MAX_TOKENS * (PATIENCE if words.spaceless else 1)):
        grown: list[_Hypothesis] = []
        for number, (old, line) in enumerate(zip(live, logits.log_softmax(-1), strict=True)):
            longer = _extend(raw, old, line, bytes_of, number)
            goes_on = longer[0].log_probability - old.log_probability if longer else -math.inf
            ends, text = float(line[line_end]), old.text.rstrip()
            total = old.log_probability + ends
            for start in old.starts if text and total > above else ():
                last = places.get(start + len(text))
                if last is not None and words.can_end(last, is_preferred=ends >= goes_on):
                    best = Span(*words.complete(places[start], last), total)
                    above = total
                    break
            grown += longer
        grown.sort(key=lambda one: -one.log_probability)
        live = [one for one in grown[:BEAMS] if one.log_probability > above]
        if not live:
            break
        logits = continuation.append([one.parent for one in live], [one.token for one in live])
    return best


def _extend(
    passage: bytes, old: _Hypothesis, log_probabilities: Tensor, bytes_of: Callable[[int], bytes],
    number: int,
) -> list[_Hypothesis]:  # fmt: skip
    """Returns hypothesis `number` with the `BEAMS` likeliest tokens that continue the passage."""
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
