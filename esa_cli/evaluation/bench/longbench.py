"""LongBench, the 16 English tasks of the paper's table.

Prompts and answer lengths are those of the benchmark's `config/dataset2prompt.json` and
`config/dataset2maxlen.json`; they are part of its definition. Its five Chinese tasks need a word
splitter and are left out. The official code cuts long prompts in the middle; nothing is cut here.
It stops samsum at the first line break; here the score takes the first line, as it does there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench import data_files as files
from esa_cli.evaluation.bench.bench_runner import BenchRecord, BenchTask, split

SOURCE = "TASK.jsonl from data.zip of the dataset THUDM/LongBench on the Hugging Face hub"
NOTES: dict[str, str] = {}
LENGTH = 32_000
MINI = "longbench_mini.jsonl"
"""A few records of all tasks in one file, each with its prompt and the context's place in it; where
that prompt is not the official one, its question too."""

_FORMS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("longbench_tasks.json").read_text("utf-8")
)
"""Title, records, length of answers, prompt and score of each task; whether it is put as a chat."""
TASKS: tuple[BenchTask, ...] = tuple(
    BenchTask(name, form["title"], "LongBench", form["size"]) for name, form in _FORMS.items()
)
FIRST_LINE = ("trec", "triviaqa", "samsum")


def there(folder: Path) -> list[str]:
    """The tasks whose files are in the folder."""
    mini = files.find(folder, MINI)
    some = {row.data.get("task") for row in files.rows(mini)} if mini else set()
    return [
        task.name for task in TASKS if task.name in some or files.find(folder, f"{task.name}.jsonl")
    ]


def load(folder: Path, tasks: Sequence[str], limit: int | None) -> Iterator[BenchRecord]:
    """The first `limit` records of each task. Raises DocumentError, UsageError."""
    if any(_FORMS[task]["score"] == "rouge_l" for task in tasks):
        metrics.library("rouge")
    for task in tasks:
        yield from islice(_records(folder, task), limit)


def _records(folder: Path, task: str) -> Iterator[BenchRecord]:
    path = files.need(folder, SOURCE, f"{task}.jsonl", MINI)
    for row in files.rows(path):
        if path.name == MINI:
            if row.data.get("task") == task:
                yield _mini(row, task)
        else:
            parts = split(_FORMS[task]["prompt"], row.text("context"), input=row.text("input"))
            yield _record(row, task, parts, row.data.get("_id"))


def _record(
    row: files.DataRow, task: str, parts: tuple[str, str, str], name: object
) -> BenchRecord:
    return BenchRecord(
        "longbench",
        task,
        str(name or row.line),
        *parts,
        answers=row.texts("answers"),
        longest=_FORMS[task]["longest"],
        chat=_FORMS[task]["chat"],
        data={"classes": row.texts("all_classes")} if task == "trec" else {},
    )


def _mini(row: files.DataRow, task: str) -> BenchRecord:
    prompt, span = row.text("prompt"), row.numbers("context_span")
    start, stop = (span[0], span[-1]) if len(span) == 2 else (0, 0)
    if not 0 <= start < stop <= len(prompt):
        raise row.wrong("'context_span' is no part of the prompt")
    parts = prompt[:start], prompt[start:stop], prompt[stop:]
    if row.data.get("official_prompt_if_different"):
        parts = split(_FORMS[task]["prompt"], parts[1], input=row.text("question"))
    return _record(row, task, parts, None)


def score(record: BenchRecord, output: str) -> float:
    """The best over the answers."""
    if record.task in FIRST_LINE:
        output = metrics.first_line(output)
    if record.task == "trec":
        classes = record.data["classes"]
        return max(metrics.class_share(output, gold, classes) for gold in record.answers)
    rule: Callable[[str, str], float] = getattr(metrics, _FORMS[record.task]["score"])
    return max(rule(output, gold) for gold in record.answers)
