"""Counting-Stars, the English files, searching and reasoning.

The question is the file's own. As in the paper's sample the list is opened for the model. Upstream
has the files of 128k tokens; the paper's 256k ones are read if someone has made them. The mistaken
counts of the reasoning task are read off the text, where the official scorer has them in a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench.records import Benchmark, BenchRecord, BenchTask, read_rows

KINDS = ("searching", "reasoning")
VERSIONS = ((128, 32, 32), (256, 8, 32), (256, 16, 32), (256, 32, 32))
"""Thousands of tokens in the longest record, counts in each record, records."""
PRIME = '```json\n{"little_penguin": ['
LONGEST = 256
_MISTAKEN = re.compile(r"The little penguin counted (\d+) ★, but found that a mistake")


class StarsRow(BaseModel):
    """A line of an official file."""

    question: str
    retrieval_question: str
    reference_counting_results: Annotated[tuple[int, ...], Field(min_length=1)]


def files(task: str) -> Sequence[str]:
    kind, k, m, n = task.split("-")
    end = f"{k.removesuffix('k')}000_{m}_{n}.jsonl"
    other = "acquisition" if kind == "searching" else kind  # as the project's page calls them
    return [
        f"Counting_Stars_EN_multi-evidence-retrieval-{kind}_{end}",
        f"Counting_Stars_EN_{other}_{end}",
    ]


def read(folder: Path, task: str) -> Iterator[BenchRecord]:
    def make(row: StarsRow, line: int) -> BenchRecord:
        document = row.question.removesuffix(row.retrieval_question)
        if not row.retrieval_question or document == row.question:
            raise ValueError("'question' does not end with 'retrieval_question'")
        right = row.reference_counting_results
        mistaken = tuple(int(count) for count in _MISTAKEN.findall(document))
        if task.startswith("reasoning") and len(mistaken) != len(right):
            raise ValueError(f"{len(mistaken)} mistaken counts for {len(right)} right ones")
        return BenchRecord(
            "counting-stars",
            task,
            str(line),
            before="",
            document=document,
            question=row.retrieval_question,
            answers=tuple(str(count) for count in right),
            longest=LONGEST,
            prime=PRIME,
            data={"mistaken": mistaken},
        )

    return read_rows(folder, files(task), StarsRow, make)


def score(record: BenchRecord, output: str) -> float:
    """The mean over the counts."""
    right = [int(count) for count in record.answers]
    listed = metrics.listed_stars(record.prime + output, len(right))
    if record.task.startswith("reasoning"):
        return metrics.reasoning_score(listed, right, record.data["mistaken"])
    return metrics.searching_score(listed, right)


COUNTING_STARS = Benchmark(
    tasks=tuple(
        BenchTask(f"{kind}-{k}k-{m}-{n}", f"({k}k, {m}, {n})", f"Counting-Stars, {kind}", n)
        for kind in KINDS
        for k, m, n in VERSIONS
    ),
    source="the English .jsonl files in test_data/ of github.com/nick7nlp/Counting-Stars",
    files=files,
    read=read,
    score=score,
    length=200_000,
)
