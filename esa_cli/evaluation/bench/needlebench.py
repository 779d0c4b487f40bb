"""NeedleBench, version 1, English, three needles at once (M-RT): the part that the paper gives.

The texts are built from essays as in OpenCompass. The paper gives neither the number of prompts nor
the depths. Its scores are multiples of 1/30, and its sample has text on both sides of each needle,
so here it is ten prompts with needles at 25, 50 and 75 per cent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel

from esa_cli.errors import DocumentError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench.records import Benchmark, BenchRecord, BenchTask, read_rows
from esa_cli.evaluation.tasks.needle_tasks import BEFORE

ESSAYS, NEEDLES = "PaulGrahamEssays.jsonl", "needles.jsonl"
REPEATS = 10
LENGTHS = (4, 8, 16, 48, 80, 112, 128, 144, 176, 200)
"""Thousands of gpt-4's tokens."""
BUFFERS = {4000: 1000, 8000: 1300}
"""Tokens that a text of this length lacks, for question and answer; others lack 3000."""
DEPTHS = (25, 50, 75)
LONGEST = 256
GUIDE = "Before answering, please consider what in the document is most relevant to this question."
FORMAT = "Please answer in the format"


class EssayRow(BaseModel):
    """A line of the essays."""

    text: str


class NeedleRow(BaseModel):
    """A needle of the official file, in any language."""

    arg1: str
    arg2: str
    needle: str
    retrieval_question: str
    language: str


def gpt4() -> Any:
    """gpt-4's tokenizer, fetched once by tiktoken. Raises UsageError: tiktoken is not installed.
    DocumentError: its vocabulary cannot be fetched."""
    tiktoken = metrics.library("tiktoken")
    try:
        return tiktoken.encoding_for_model("gpt-4")
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DocumentError(
            f"gpt-4's vocabulary cannot be fetched: {reason}",
            "set TIKTOKEN_CACHE_DIR to a folder that was filled where there is a network",
        ) from error


def files(task: str) -> Sequence[str]:
    return [NEEDLES]


def read(folder: Path, task: str) -> Iterator[BenchRecord]:
    """The same needles in every text, in another order each time."""
    length = int(task.rpartition("-")[2].removesuffix("k")) * 1000
    unlike = _unlike(_needles(folder), len(DEPTHS))
    essays = list(read_rows(folder, [ESSAYS], EssayRow, lambda row, _: row.text))
    tokenizer = gpt4()
    tokens = {essay: tokenizer.encode(essay) for essay in essays}
    for seed in range(REPEATS):
        Random(seed).shuffle(essays)  # on top of the shuffles before
        order = list(unlike)
        Random(seed).shuffle(order)
        hidden = [tokenizer.encode(f"\n{needle.needle}\n") for needle in order]
        size = length - BUFFERS.get(length, 3000) - sum(map(len, hidden))
        hay = [token for essay in essays for token in tokens[essay]][: max(size, 0)]
        ids, last = list[int](), 0
        for needle, depth in zip(hidden, DEPTHS, strict=True):
            place = int(len(hay) * (depth / 100))
            ids += hay[last:place] + needle
            last = place
        document = tokenizer.decode(ids + hay[last:])
        answers = tuple(needle.arg2 for needle in order)
        question = _question([needle.retrieval_question for needle in order])
        yield BenchRecord(
            "needlebench", task, str(seed), BEFORE, document, question, answers, LONGEST
        )


def _question(asked: Sequence[str]) -> str:
    questions = "、".join(text.split("?")[0] + "?" for text in asked)
    formats = "、".join(text.split("'")[1].split(".")[0] for text in asked)
    return f"\n\nNow, the questions are: {questions}{GUIDE} {FORMAT} of '{formats}'\n"


def _needles(folder: Path) -> list[NeedleRow]:
    """The English needles. Raises DocumentError."""

    def make(row: NeedleRow, _: int) -> NeedleRow:
        question = row.retrieval_question
        if row.language == "English" and (FORMAT not in question or question.count("'") < 2):
            raise ValueError(f"'retrieval_question' does not say {FORMAT!r}")
        if not (row.arg1.strip() and row.arg2.strip() and row.needle.strip()):
            raise ValueError("'arg1', 'arg2' and 'needle' must not be empty")
        return row

    rows = read_rows(folder, [NEEDLES], NeedleRow, make)
    needles = [row for row in rows if row.language == "English"]
    if not needles:
        raise DocumentError(f"{NEEDLES} has no English needles", f"official files: {SOURCE}")
    return needles


def _unlike(needles: Sequence[NeedleRow], count: int) -> list[NeedleRow]:
    """Needles of which no two share a place or a thing."""
    rows = list(needles)
    Random(0).shuffle(rows)
    drawn: list[NeedleRow] = []
    for row in rows:
        if all(row.arg1 != other.arg1 and row.arg2 != other.arg2 for other in drawn):
            drawn.append(row)
        if len(drawn) == count:
            return drawn
    raise DocumentError(f"{NEEDLES} has no {count} needles unlike each other", "")


def score(record: BenchRecord, output: str) -> float:
    return metrics.keyword_share(output, record.answers)


SOURCE = "hf download opencompass/NeedleBench --repo-type dataset --local-dir DIR"
NEEDLEBENCH = Benchmark(
    tasks=tuple(BenchTask(f"m-rt-{k}k", f"{k}k", "NeedleBench M-RT", REPEATS) for k in LENGTHS),
    source=SOURCE,
    files=files,
    read=read,
    score=score,
    length=200_000,
    notes={
        "": "Where all essays together are shorter than a task's length, so are its texts, as in "
        "OpenCompass."
    },
)
