"""Tokenises long texts in windows, with the ids and offsets that one call for the whole would give.

One call would take a hundred bytes for each character. Windows overlap, and the next window takes
over at a token where both windows agree on all tokens nearby. The cut is exact for byte pair
encoding: tokens are the encoding of their text if each two neighbours encode their own text (in one
pre-token; pre-tokenizers look ahead to the end of a run of digits at most). Where two windows do
not agree, as in a megabyte of digits, the first window is made longer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from esa_cli.errors import DocumentError
from esa_cli.models.files.checkpoint_files import reading
from esa_cli.models.tokenization.tokenizer import load_plain_tokenizer, load_tokenizer

WINDOW = 1 << 18
"""Characters that are tokenised by one call."""
OVERLAP = 1 << 12
"""Characters that two windows share; a quarter at both ends need not agree."""
LONGEST = 1 << 20
"""Characters of a window where shorter ones do not agree."""

Rows = NDArray[numpy.int32]
"""(n, 3): id, first character and end of each token."""
Encode = Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]]]]
"""Returns ids and offsets of a text."""


class TokenArrays(NamedTuple):
    """A text's tokens: `ids`, and `offsets` (n, 2) of their characters."""

    ids: array[int]
    offsets: NDArray[numpy.int32]


def tokenise(tokenizer: Any, text: str) -> TokenArrays:
    """Returns the tokens of a document; special tokens that the document spells out are text.
    Raises DocumentError: as `iterate_token_rows`."""

    def encode(part: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        out = tokenizer(
            part, add_special_tokens=False, split_special_tokens=True,
            return_offsets_mapping=True, verbose=False,
        )  # fmt: skip
        return out["input_ids"], out["offset_mapping"]

    ids, offsets = array("i"), []
    for rows in iterate_token_rows(encode, text):
        ids.frombytes(rows[:, 0].tobytes())
        offsets.append(rows[:, 1:].copy())
    return TokenArrays(ids, numpy.concatenate(offsets))


def count_tokens(folder: Path, text: str) -> int:
    """Returns the number of tokens of a document by the tokenizer in a model's folder. Raises
    ModelError: the tokenizer cannot be read. DocumentError: as `iterate_token_rows`."""
    with reading(f"the tokenizer in {folder}"):
        tokenizer = load_plain_tokenizer(folder) or load_tokenizer(folder)
        return len(tokenise(tokenizer, text).ids)


def iterate_token_rows(encode: Encode, text: str) -> Iterator[Rows]:
    """Yields the tokens of a text, in order, window by window. Raises DocumentError: a part of
    `LONGEST` characters cannot be divided."""
    start, first, length = 0, 0, WINDOW
    rows = _encode_window(encode, text, start, length)
    while start + length < len(text):
        end = start + length
        at = int(numpy.searchsorted(rows[:, 1], end - OVERLAP))
        after = int(rows[at, 1]) if at < len(rows) else end
        following = _encode_window(encode, text, after, WINDOW)
        cut = _find_agreement(rows, following, after, end, text)
        if cut is None:
            length *= 2
            if length > LONGEST:
                raise DocumentError(
                    f"the document must have white space or letters that divide it, got "
                    f"{LONGEST:,} characters from character {start:,} on without",
                    "break it into lines; the tokenizer would take them as one piece",
                )
            rows = _encode_window(encode, text, start, length)
            continue
        yield rows[first : cut[0]]
        rows, start, first, length = following, after, cut[1], WINDOW
    yield rows[first:]


def _encode_window(encode: Encode, text: str, start: int, length: int) -> Rows:
    ids, offsets = encode(text[start : start + length])
    rows = numpy.empty((len(ids), 3), dtype=numpy.int32)
    rows[:, 0] = ids
    rows[:, 1:] = numpy.asarray(offsets, dtype=numpy.int32).reshape(-1, 2)
    rows[:, 1:] += start
    return rows


def _find_agreement(
    before: Rows, after: Rows, start: int, end: int, text: str
) -> tuple[int, int] | None:
    """Returns the token, by its place in both windows, from which the second one is taken, or None
    where the windows differ on the characters they share, from `start` to `end` without margins."""
    bounds = (start + OVERLAP // 4, end - OVERLAP // 4)
    (low, high), (later, last) = (numpy.searchsorted(x[:, 1], bounds) for x in (before, after))
    shared = before[low:high]
    if len(shared) < 2 or not numpy.array_equal(shared, after[later:last]):
        return None
    middle = (start + end) // 2
    for number in numpy.argsort(abs(shared[:, 1] - middle), kind="stable").tolist():
        at = int(shared[number, 1])
        if not text[at - 1 : at + 1].isnumeric():
            return int(low) + number, int(later) + number
    return None
