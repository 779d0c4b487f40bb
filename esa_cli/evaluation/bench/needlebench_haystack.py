"""Hides NeedleBench's needles in essays, as OpenCompass does for version 1.

The same tokens (gpt-4's), seeds, order of draws and places. Which three needles OpenCompass draws
for M-RT depends on what ran before; here that draw has the seed 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from esa_cli.errors import DocumentError, UsageError

ESSAYS, NEEDLES = "PaulGrahamEssays.jsonl", "needles.jsonl"
CHAINS = "multi_needle_reasoning_en.json"
REPEATS = 10
GAP = 10
"""Per cent of the text between two needles of a chain."""


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


class NeedleText(NamedTuple):
    """A text, and the needles or the chain in it."""

    text: str
    drawn: list[dict[str, Any]]


def gpt4() -> Tokenizer:
    """gpt-4's tokenizer, fetched once by tiktoken. Raises UsageError: tiktoken is not installed.
    DocumentError: its vocabulary cannot be fetched."""
    try:
        tiktoken: Any = importlib.import_module("tiktoken")
    except ImportError:
        raise UsageError(
            "the benchmark needlebench measures its texts in gpt-4's tokens, which needs tiktoken",
            "pip install 'esa-cli[bench]'",
        ) from None
    try:
        tokenizer: Tokenizer = tiktoken.encoding_for_model("gpt-4")
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DocumentError(
            f"gpt-4's vocabulary cannot be fetched: {reason}",
            "set TIKTOKEN_CACHE_DIR to a folder that was filled where there is a network",
        ) from error
    return tokenizer


class EssayHaystack:
    """Essays to hide needles in."""

    def __init__(self, essays: Sequence[str], tokenizer: Tokenizer) -> None:
        self.essays, self.tokenizer = list(essays), tokenizer
        self._known: dict[str, list[int]] = {}

    def single(
        self, needles: list[dict[str, Any]], length: int, depth: int
    ) -> Iterator[NeedleText]:
        """One needle at a depth in per cent, in texts of `length` tokens."""
        for random, essays in self._shuffled():
            needle = random.choice(needles)
            ids = self._needle(needle["needle"])
            hay = self._hay(essays, length - len(ids))
            yield NeedleText(self._hide(hay, [ids], [_at(hay, depth)]), [needle])

    def parallel(
        self, needles: list[dict[str, Any]], length: int, depths: Sequence[int]
    ) -> Iterator[NeedleText]:
        """The same needles in every text, in another order each time."""
        drawn = _unlike(needles, len(depths))
        for random, essays in self._shuffled():
            order = list(drawn)
            random.shuffle(order)
            ids = [self._needle(needle["needle"]) for needle in order]
            hay = self._hay(essays, length - sum(map(len, ids)))
            yield NeedleText(self._hide(hay, ids, [_at(hay, depth) for depth in depths]), order)

    def chained_needles(
        self, chains: list[dict[str, Any]], length: int, depth: int
    ) -> Iterator[NeedleText]:
        """A chain's needles from a depth on, a tenth of the text and a needle apart."""
        for random, essays in self._shuffled():
            chain = random.choice(chains)
            ids = [self._needle(needle) for needle in chain["derivations"]]
            hay = self._hay(essays, length - sum(map(len, ids)))
            places = [_at(hay, depth)]
            for one in ids[:-1]:
                places.append(int(places[-1] + len(one) + len(hay) * (GAP / 100)))
            yield NeedleText(self._hide(hay, ids, places), [chain])

    def _shuffled(self) -> Iterator[tuple[Random, list[str]]]:
        """For each repeat the random numbers its needles are drawn with, and the essays."""
        essays = list(self.essays)
        for seed in range(REPEATS):
            Random(seed).shuffle(essays)  # on top of the shuffles before
            yield Random(seed), essays

    def _needle(self, text: str) -> list[int]:
        return self._ids(f"\n{text}\n")

    def _ids(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self.tokenizer.encode(text)
        return self._known[text]

    def _hay(self, essays: list[str], length: int) -> list[int]:
        hay: list[int] = []
        for text in essays:
            if len(hay) >= length:
                break
            hay += self._ids(text)
        return hay[: max(length, 0)]

    def _hide(self, hay: list[int], needles: list[list[int]], places: list[int]) -> str:
        """Each needle before the token of the hay at its place; places ascend."""
        ids, last = [], 0
        for needle, place in zip(needles, places, strict=True):
            ids += hay[last:place] + needle
            last = min(place, len(hay))
        return self.tokenizer.decode(ids + hay[last:])


def _at(hay: list[int], depth: int) -> int:
    return int(len(hay) * (depth / 100))


def _unlike(needles: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Needles of which no two share a place or a thing."""
    rows = list(needles)
    Random(0).shuffle(rows)
    drawn: list[dict[str, Any]] = []
    for row in rows:
        if all(row["arg1"] != one["arg1"] and row["arg2"] != one["arg2"] for one in drawn):
            drawn.append(row)
        if len(drawn) == count:
            return drawn
    raise DocumentError(f"{NEEDLES} has no {count} needles unlike each other", "")
