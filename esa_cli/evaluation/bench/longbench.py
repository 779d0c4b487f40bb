"""LongBench, the 16 English tasks of the paper's table.

Prompts and answer lengths are those of the benchmark's `config/dataset2prompt.json` and
`config/dataset2maxlen.json`; they are part of its definition. Its five Chinese tasks need a word
splitter and are left out. The official code cuts long prompts in the middle; nothing is cut here.
It stops samsum at the first line break; here the score takes the first line, as it does there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench.records import (
    Benchmark,
    BenchRecord,
    BenchTask,
    Texts,
    read_rows,
    split_prompt,
)

FORMS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("longbench_tasks.json").read_text("utf-8")
)
"""Title, records, length of answers, prompt and score of each task; whether it is put as a chat."""
FIRST_LINE = ("trec", "triviaqa", "samsum")


class LongBenchRow(BaseModel):
    """A line of an official file."""

    context: str
    input: str
    answers: Texts
    all_classes: Texts | None = None
    name: str | int | None = Field(None, alias="_id")


def files(task: str) -> Sequence[str]:
    return [f"{task}.jsonl"]


def read(folder: Path, task: str) -> Iterator[BenchRecord]:
    form = FORMS[task]
    if form["score"] == "rouge_l":
        metrics.library("rouge")

    def make(row: LongBenchRow, line: int) -> BenchRecord:
        classes = row.all_classes
        if task == "trec" and classes is None:
            raise ValueError("'all_classes' is missing")
        return BenchRecord(
            "longbench",
            task,
            str(row.name or line),
            *split_prompt(form["prompt"], row.context, input=row.input),
            answers=row.answers,
            longest=form["longest"],
            chat=form["chat"],
            data={"classes": classes} if task == "trec" else {},
        )

    return read_rows(folder, files(task), LongBenchRow, make)


def score(record: BenchRecord, output: str) -> float:
    """The best over the answers."""
    if record.task in FIRST_LINE:
        output = metrics.first_line(output)
    if record.task == "trec":
        classes = record.data["classes"]
        return max(metrics.class_share(output, gold, classes) for gold in record.answers)
    rule: Callable[[str, str], float] = getattr(metrics, FORMS[record.task]["score"])
    return max(rule(output, gold) for gold in record.answers)


LONGBENCH = Benchmark(
    tasks=tuple(
        BenchTask(name, form["title"], "LongBench", form["size"]) for name, form in FORMS.items()
    ),
    source="hf download THUDM/LongBench data.zip --repo-type dataset --local-dir DIR, unpacked",
    files=files,
    read=read,
    score=score,
    length=32_000,
)
