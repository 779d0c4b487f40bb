"""Finds stems that are spelled like a word of a question, for words that no document has.

This finds words with a typing error, forms of a word that no stemmer knows, and compounds whose
last part is the word, or the last part of a compound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

MOST = 3
"""The maximum number of stems that stand for a word."""
SHORTEST, SHORTEST_PART = 4, 5
"""The minimum length of a word, and of the last part of a compound."""
ALIKE = 0.65
"""The minimum share of common character pairs of two stems that begin with the same letter."""
PART = 0.7
"""The weight of a last part of a compound, which is multiplied by the part's share of letters."""
_EDGE = "\n"
"""Stands before and after a stem, so that its first and last letter are in two pairs as well."""


class SpellingIndex:
    """An index of V stems by their pairs of adjacent characters."""

    def __init__(self, stems: Sequence[str]) -> None:
        self._stems = stems
        text = _EDGE.join(["", *stems, ""])
        pairs, edges = _encode_pairs(text), _decode_characters(text)[:-1] == ord(_EDGE)
        # One number for each pair of each stem: sorted, they are by pairs and then by stems.
        owners = edges.cumsum() - 1
        self._lengths = numpy.bincount(owners, minlength=len(stems)) - 1
        keys = pairs * len(stems) + owners
        keys.sort()  # much faster than `numpy.unique`
        self._keys = keys[numpy.diff(keys, prepend=-1) > 0]
        self._sizes = numpy.bincount(self._keys % max(1, len(stems)), minlength=len(stems))
        self._first = pairs[edges]  # the edge and the first letter

    def find_similar_stems(self, stem: str) -> list[tuple[int, float]]:
        """Returns the numbers of at most MOST stems that are spelled like `stem`, the best first;
        none for a stem that is short or has a digit. Their weights (0 to 1) are the squares of
        Dice's coefficient of the stems' sets of character pairs, or PART times the share of letters
        if one stem is the end of the other."""
        if len(stem) < SHORTEST or not self._stems or any(map(str.isdigit, stem)):
            return []
        count, pairs = len(self._stems), _encode_pairs(f"{_EDGE}{stem}{_EDGE}")
        first, pairs = pairs[0], numpy.unique(pairs)
        ranges = numpy.searchsorted(self._keys, [pairs * count, (pairs + 1) * count]).T.tolist()
        owners = numpy.concatenate([self._keys[start:end] for start, end in ranges]) % count
        shared = numpy.bincount(owners, minlength=count)
        dice = 2 * shared / (self._sizes + len(pairs))
        alike = numpy.flatnonzero((dice >= ALIKE) & (self._first == first))
        weights = {number: float(dice[number]) ** 2 for number in alike.tolist()}
        # A last part has all its pairs in the compound, but for its first letter after the edge.
        contained = shared >= numpy.minimum(self._sizes, len(pairs)) - 1
        contained &= (self._lengths >= SHORTEST_PART) & (len(stem) >= SHORTEST_PART)
        for number in numpy.flatnonzero(contained).tolist():
            part, whole = sorted((stem, self._stems[number]), key=len)
            if whole.endswith(part):
                weight = PART * len(part) / len(whole)
                weights[number] = max(weights.get(number, 0.0), weight)
        return sorted(weights.items(), key=lambda one: (-one[1], one[0]))[:MOST]


def _decode_characters(text: str) -> Any:
    return numpy.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=numpy.uint32)


def _encode_pairs(text: str) -> Any:
    """Returns a number below 2 ** 32 for each pair of adjacent characters of a text, as int64."""
    characters = _decode_characters(text).astype(numpy.int64) & 0xFFFF
    return (characters[:-1] << 16) | characters[1:]
