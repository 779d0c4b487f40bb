"""Tokenises long texts in windows, with the same token ids and offsets as one call for the whole
text.

One call would need a hundred bytes of memory for each character. Windows overlap, and a window ends
at a token where it agrees with the next window on all tokens nearby. The cut is exact for byte pair
encoding: tokens are the encoding of their text if each two neighbouring tokens are the encoding of
their own text (within one pre-token; pre-tokenizers look ahead at most to the end of a run of
digits). If two windows do not agree, as in a megabyte of digits, the first window is enlarged."""

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
"""The number of characters that one call tokenises."""
OVERLAP = 1 << 12
"""The number of characters that two windows share; the quarter at each end need not agree."""
LONGEST = 1 << 20
"""The largest number of characters in a window, used where smaller windows do not agree."""

Rows = NDArray[numpy.int32]
"""An array (n, 3) with the id, first character and end of each token."""
Encode = Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]]]]
"""A function that returns the token ids and offsets of a text."""


class TokenArrays(NamedTuple):
    """The tokens of a text: their `ids`, and the `offsets` (n, 2) of their characters."""

    ids: array[int]
    offsets: NDArray[numpy.int32]


def tokenise(tokenizer: Any, text: str) -> TokenArrays:
    """Returns the tokens of a document; special tokens that occur in its text are treated as plain
    text. Raises DocumentError: the text cannot be divided, as in `iterate_token_rows`."""

    def encode_part(part: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        out = tokenizer(
            part, add_special_tokens=False, split_special_tokens=True,
            return_offsets_mapping=True, verbose=False,
        )  # fmt: skip
        return out["input_ids"], out["offset_mapping"]

    ids, offsets = array("i"), []
    for rows in iterate_token_rows(encode_part, text):
        ids.frombytes(rows[:, 0].tobytes())
        offsets.append(rows[:, 1:].copy())
    return TokenArrays(ids, numpy.concatenate(offsets))


def count_tokens(folder: Path, text: str) -> int:
    """Returns the number of tokens of a document, counted by the tokenizer in a model's folder.
    Raises ModelError: the tokenizer cannot be read. DocumentError: the text cannot be divided."""
    with reading(f"the tokenizer in {folder}"):
        tokenizer = load_plain_tokenizer(folder) or load_tokenizer(folder)
        return len(tokenise(tokenizer, text).ids)


def iterate_token_rows(encode: Encode, text: str) -> Iterator[Rows]:
    """Yields the tokens of a text in their order, one array for each window. Raises DocumentError:
    a part of `LONGEST` characters cannot be divided."""
    start, first, length = 0, 0, WINDOW
    rows = _encode_window(encode, text, start, length)
    while start + length < len(text):
        end = start + length
        at = int(numpy.searchsorted(rows[:, 1], end - OVERLAP))
        after = int(rows[at, 1]) if at < len(rows) else end
        following = _encode_window(encode, text, after, WINDOW)
        cut = _find_common_token(rows, following, after, end, text)
        if cut is None:
            length *= 2
            if length > LONGEST:
                raise DocumentError(
                    f"the document must contain white space or letters, got {LONGEST:,} "
                    f"characters without either from character {start:,} on",
                    "break the document into lines that the tokenizer can process separately",
                )
            rows = _encode_window(encode, text, start, length)
            continue
        yield rows[first : cut[0]]
        rows, start, first, length = following, after, cut[1], WINDOW
    yield rows[first:]


def _encode_window(encode: Encode, text: str, start: int, length: int) -> Rows:
    """Returns the tokens of one window, with offsets into the whole text."""
    ids, offsets = encode(text[start : start + length])
    rows = numpy.empty((len(ids), 3), dtype=numpy.int32)
    rows[:, 0] = ids
    rows[:, 1:] = numpy.asarray(offsets, dtype=numpy.int32).reshape(-1, 2)
    rows[:, 1:] += start
    return rows


def _find_common_token(
    before: Rows, after: Rows, start: int, end: int, text: str
) -> tuple[int, int] | None:
    """Returns the token at which the second window takes over, by its index in both windows, or
    None if the windows differ on their shared characters [start, end), margins aside."""
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
