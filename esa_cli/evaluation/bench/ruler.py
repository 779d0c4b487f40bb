"""RULER, from the files its own generator wrote: TASK/validation.jsonl for each of its 13 tasks.

Answer lengths and the words that begin an answer are those of its `scripts/data/synthetic/
constants.py`; the words are given to the model, as RULER does. The files must have been
written with the model template `base`: the model's own chat template is put around them here.
The paper has no RULER; the average is RULER's own, over all tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from esa_cli.errors import DocumentError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench import data_files as files
from esa_cli.evaluation.bench.bench_runner import BenchRecord, BenchTask

SOURCE = (
    "TASK/validation.jsonl as scripts/data/prepare.py of github.com/NVIDIA/RULER writes it with "
    "--model_template_type base"
)
NOTES: dict[str, str] = {}
LENGTH = 0


@dataclass(frozen=True)
class _TaskForm:
    """The beginnings of a task's prompt, question and answer, and the answer's length."""

    begins: tuple[str, ...]
    asks: tuple[str, ...]
    answers: str
    longest: int


_FORMS = {
    "niah": _TaskForm(
        ("Some special magic ", "A special magic "),
        ("What are all the special magic ", "What is the special magic "),
        " The special magic ",
        128,
    ),
    "vt": _TaskForm(
        ("Memorize and track the chain(s)",),
        ("Question: Find all variables that are assigned",),
        " Answer: According to the chain(s)",
        30,
    ),
    "cwe": _TaskForm(
        ("Below is a numbered list of words.",),
        ("Question: What are the 10 most common words",),
        " Answer: The top 10 words",
        120,
    ),
    "fwe": _TaskForm(
        ("Read the following coded text",),
        ("Question: Do not provide any explanation.",),
        " Answer: According to the coded text",
        50,
    ),
    "qa": _TaskForm(
        ("Answer the question based on the given documents.",),
        ("Answer the question based on the given documents.",),
        " Answer:",
        32,
    ),
}
_NAMES = {
    "niah_single_1": "S-NIAH-1", "niah_single_2": "S-NIAH-2", "niah_single_3": "S-NIAH-3",
    "niah_multikey_1": "MK-NIAH-1", "niah_multikey_2": "MK-NIAH-2", "niah_multikey_3": "MK-NIAH-3",
    "niah_multivalue": "MV-NIAH", "niah_multiquery": "MQ-NIAH", "vt": "VT", "cwe": "CWE",
    "fwe": "FWE", "qa_1": "QA-1", "qa_2": "QA-2",
}  # fmt: skip
TASKS: tuple[BenchTask, ...] = tuple(
    BenchTask(name, title, "RULER", None) for name, title in _NAMES.items()
)


def there(folder: Path) -> list[str]:
    """The tasks whose files are in the folder."""
    return [task.name for task in TASKS if files.find(folder, f"{task.name}/validation.jsonl")]


def load(folder: Path, tasks: Sequence[str], limit: int | None) -> Iterator[BenchRecord]:
    """The first `limit` records of each task. Raises DocumentError."""
    for task in tasks:
        path = files.need(folder, SOURCE, f"{task}/validation.jsonl")
        for row in islice(files.rows(path), limit):
            yield _record(row, task)


def _record(row: files.DataRow, task: str) -> BenchRecord:
    kind = _FORMS[task.partition("_")[0]]
    text = row.text("input")
    if not text.startswith(kind.begins):
        raise DocumentError(
            f"{row.path}, line {row.line}: the input does not begin as {task} does",
            "write the files with --model_template_type base",
        )
    prime = row.text("answer_prefix") if "answer_prefix" in row.data else ""
    if not prime:  # older files have it behind the question
        at = text.rfind(kind.answers)
        text, prime = (text, "") if at < 0 else (text[:at], text[at:])
    at = max(text.rfind(words) for words in kind.asks)
    if at <= 0:
        raise row.wrong("'input' holds no question")
    return BenchRecord(
        "ruler",
        task,
        str(row.line),  # niah writes the answer's place into `index`, so that is no name
        before="",
        document=text[:at],
        question=text[at:],
        answers=row.filled_texts("outputs"),
        longest=kind.longest,
        prime=prime,
        data={"length": _rounded(row.number("length"))},
    )


def _rounded(tokens: int) -> int:
    """Up to a power of two, as RULER's lengths are: one setting for all records of a folder."""
    return 1 << max(tokens - 1, 0).bit_length()


def score(record: BenchRecord, output: str) -> float:
    """The share of the answers in the output; for questions whether one is."""
    rule = metrics.match_part if record.task.startswith("qa") else metrics.match_all
    return rule(output, record.answers)
