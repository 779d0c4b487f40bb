"""Counting-Stars, the English files, searching and reasoning.

The question is the file's own. As in the paper's sample the list is opened for the model. Upstream
has the files of 128k tokens; the paper's 256k ones are read if someone has made them. The mistaken
counts of the reasoning task are read off the text, where the official scorer has them in a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench import data_files as files
from esa_cli.evaluation.bench.bench_runner import BenchRecord, BenchTask

SOURCE = "the English .jsonl files in test_data/ of github.com/nick7nlp/Counting-Stars"
NOTES: dict[str, str] = {}
LENGTH = 200_000
KINDS = ("searching", "reasoning")
VERSIONS = ((128, 32, 32), (256, 8, 32), (256, 16, 32), (256, 32, 32))
"""Thousands of tokens in the longest record, counts in each record, records."""
TASKS: tuple[BenchTask, ...] = tuple(
    BenchTask(f"{kind}-{k}k-{m}-{n}", f"({k}k, {m}, {n})", f"Counting-Stars, {kind}", n)
    for kind in KINDS
    for k, m, n in VERSIONS
)
PRIME = '```json\n{"little_penguin": ['
LONGEST = 256
_MISTAKEN = re.compile(r"The little penguin counted (\d+) ★, but found that a mistake")


def _names(task: str) -> tuple[str, ...]:
    kind, k, m, n = task.split("-")
    end = f"{k.removesuffix('k')}000_{m}_{n}.jsonl"
    first = f"Counting_Stars_EN_multi-evidence-retrieval-{kind}_{end}"
    other = "acquisition" if kind == "searching" else kind  # as the project's page calls them
    return first, f"Counting_Stars_EN_{other}_{end}"


def _paths(task: str) -> list[str]:
    return [f"{folder}{name}" for folder in ("", "test_data/") for name in _names(task)]


def there(folder: Path) -> list[str]:
    """The tasks whose files are in the folder."""
    return [task.name for task in TASKS if files.find(folder, *_paths(task.name))]


def load(folder: Path, tasks: Sequence[str], limit: int | None) -> Iterator[BenchRecord]:
    """The first `limit` records of each task. Raises DocumentError."""
    for task in tasks:
        path = files.need(folder, SOURCE, *_paths(task))
        for row in islice(files.rows(path), limit):
            yield _record(row, task)


def _record(row: files.DataRow, task: str) -> BenchRecord:
    question = row.text("retrieval_question")
    document = row.text("question").removesuffix(question)
    if not question or document == row.data["question"]:
        raise row.wrong("'question' does not end with 'retrieval_question'")
    right = row.numbers("reference_counting_results")
    mistaken = tuple(int(count) for count in _MISTAKEN.findall(document))
    if task.startswith("reasoning") and len(mistaken) != len(right):
        raise row.wrong(f"{len(mistaken)} mistaken counts for {len(right)} right ones")
    return BenchRecord(
        "counting-stars",
        task,
        str(row.line),
        before="",
        document=document,
        question=question,
        answers=tuple(str(count) for count in right),
        longest=LONGEST,
        prime=PRIME,
        data={"mistaken": mistaken},
    )


def score(record: BenchRecord, output: str) -> float:
    """The mean over the counts."""
    right = [int(count) for count in record.answers]
    said = metrics.listed_stars(record.prime + output, len(right))
    if record.task.startswith("reasoning"):
        return metrics.reasoning_score(said, right, record.data["mistaken"])
    return metrics.searching_score(said, right)
