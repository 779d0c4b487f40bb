"""NeedleBench, version 1, English: one needle (S-RT), three (M-RT), and chains of needles (M-RS).

`needlebench_haystack.py` builds the texts. The paper gives M-RT alone, without the number of
prompts or the depths. Its scores are multiples of 1/30, and its sample has text on both sides of
each needle, so here it is ten prompts with needles at 25, 50 and 75 per cent.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from esa_cli.errors import DocumentError, UsageError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench import data_files as files
from esa_cli.evaluation.bench.bench_runner import BenchRecord, BenchTask
from esa_cli.evaluation.tasks.multi_needle_task import BEFORE

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


SOURCE = (
    "needles.jsonl and PaulGrahamEssays.jsonl of the dataset opencompass/NeedleBench on the "
    "Hugging Face hub"
)
NOTES: dict[str, str] = {
    "": "Where all essays together are shorter than a task's length, so are its texts, as in "
    "OpenCompass."
}
LENGTH = 200_000

LENGTHS = (4, 8, 16, 48, 80, 112, 128, 144, 176, 200)
"""Thousands of gpt-4's tokens."""
DEPTHS = (0, 10, 21, 31, 42, 52, 63, 73, 84, 94, 100)
PARALLEL = (25, 50, 75)
CHAIN_NEEDLES = (2, 3, 4, 5)
LONGEST = 256
_SIZES = {
    "m-rt": REPEATS,
    "s-rt": REPEATS * len(DEPTHS),
    "m-rs": REPEATS * len(DEPTHS) * len(CHAIN_NEEDLES),
}
TASKS: tuple[BenchTask, ...] = tuple(
    BenchTask(f"{kind}-{k}k", f"{k}k", f"NeedleBench {kind.upper()}", size)
    for kind, size in _SIZES.items()
    for k in LENGTHS
)

GUIDE = "Before answering, please consider what in the document is most relevant to this question."
FORMAT = "Please answer in the format"


def there(folder: Path) -> list[str]:
    """M-RT's tasks, the paper's, if the needles and essays are in the folder."""
    found = files.find(folder, ESSAYS) and files.find(folder, NEEDLES)
    return [task.name for task in TASKS if task.name.startswith("m-rt")] if found else []


def load(folder: Path, tasks: Sequence[str], limit: int | None) -> Iterator[BenchRecord]:
    """The first `limit` records of each task. Raises DocumentError, UsageError."""
    essays = [row.text("text") for row in files.rows(files.need(folder, SOURCE, ESSAYS))]
    build = {"s-rt": _single, "m-rt": _parallel, "m-rs": _chained}
    # The tokenizer may have to be fetched; a missing file is found before.
    haystack = None
    if any(task.startswith("s-rt") for task in tasks):
        metrics.library("rapidfuzz.distance")
    for task in tasks:
        kind, _, k = task.rpartition("-")
        material = _chains(folder) if kind == "m-rs" else _needles(folder)
        haystack = haystack or EssayHaystack(essays, gpt4())
        records = build[kind](haystack, material, int(k.removesuffix("k")) * 1000)
        for at, (document, question, answers, data) in enumerate(islice(records, limit)):
            yield BenchRecord(
                "needlebench", task, str(at), BEFORE, document, question, answers, LONGEST,
                data=data,
            )  # fmt: skip


Parts = tuple[str, str, tuple[str, ...], dict[str, Any]]
"""Document, question, answers, and what the score needs beside them."""


def _single(haystack: EssayHaystack, needles: list[dict[str, Any]], length: int) -> Iterator[Parts]:
    buffer = 800 if length == 8000 else 600
    for depth in DEPTHS:
        for hidden in haystack.single(needles, length - buffer, depth):
            needle = hidden.drawn[0]
            asked, how = needle["retrieval_question"].split(FORMAT, 1)
            question = f"\n\nNow, the question is: {asked}{GUIDE} {FORMAT}{how}"
            yield hidden.text, question, (needle["arg2"],), {"needle": needle["needle"]}


def _parallel(
    haystack: EssayHaystack, needles: list[dict[str, Any]], length: int
) -> Iterator[Parts]:
    buffer = {4000: 1000, 8000: 1300}.get(length, 3000)
    for hidden in haystack.parallel(needles, length - buffer, PARALLEL):
        asked = [needle["retrieval_question"] for needle in hidden.drawn]
        questions = "、".join(one.split("?")[0] + "?" for one in asked)
        formats = "、".join(one.split("'")[1].split(".")[0] for one in asked)
        question = f"\n\nNow, the questions are: {questions}{GUIDE} {FORMAT} of '{formats}'\n"
        yield hidden.text, question, tuple(needle["arg2"] for needle in hidden.drawn), {}


def _chained(haystack: EssayHaystack, chains: list[dict[str, Any]], length: int) -> Iterator[Parts]:
    buffer = 800 if length == 8000 else 600
    for count in CHAIN_NEEDLES:
        some = [chain for chain in chains if chain["derivation_count"] == count]
        for depth in DEPTHS if some else ():
            for hidden in haystack.chained_needles(some, length - buffer, depth):
                chain = hidden.drawn[0]
                question = f"\n\nNow, the question is: {chain['question']}{GUIDE}"
                yield hidden.text, question, (chain["answer"],), {}


def _needles(folder: Path) -> list[dict[str, Any]]:
    path = files.need(folder, SOURCE, NEEDLES)
    found = [row for row in files.rows(path) if row.data.get("language") == "English"]
    for row in found:
        asked = row.text("retrieval_question")
        if FORMAT not in asked or asked.count("'") < 2:
            raise row.wrong(f"'retrieval_question' does not say {FORMAT!r}")
        for key in ("needle", "arg1", "arg2"):
            row.text(key), row.filled_texts(key)
    if not found:
        raise DocumentError(f"{path} has no English needles", f"official files: {SOURCE}")
    return [row.data for row in found]


def _chains(folder: Path) -> list[dict[str, Any]]:
    path = files.need(folder, SOURCE, CHAINS)
    chains = files.array(path)
    for row in chains:
        row.number("derivation_count"), row.text("answer"), row.text("question")
        row.filled_texts("answer")
        row.texts("derivations")
    return [row.data for row in chains]


def score(record: BenchRecord, output: str) -> float:
    """The mean over needles or words."""
    if record.task.startswith("s-rt"):
        return metrics.needle_score(output, record.answers[0], record.data["needle"])
    if record.task.startswith("m-rt"):
        return metrics.keyword_share(output, record.answers)
    return metrics.word_share(output, record.answers[0])
