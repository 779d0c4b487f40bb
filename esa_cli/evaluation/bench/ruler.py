"""RULER, from the files its own generator wrote: TASK/validation.jsonl for each of its 13 tasks.

Answer lengths and the words that begin an answer are those of its `scripts/data/synthetic/
constants.py`; the words are given to the model, as RULER does. The files must have been
written with the model template `base`: the model's own chat template is put around them here.
The paper has no RULER; the average is RULER's own, over all tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, Field

from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench.records import (
    Benchmark,
    BenchRecord,
    BenchTask,
    FilledTexts,
    read_rows,
)


class TaskForm(NamedTuple):
    """The beginnings of a task's prompt, question and answer, and the answer's length."""

    begins: tuple[str, ...]
    asks: tuple[str, ...]
    answers: str
    longest: int


FORMS = {
    "niah": TaskForm(
        ("Some special magic ", "A special magic "),
        ("What are all the special magic ", "What is the special magic "),
        " The special magic ",
        128,
    ),
    "vt": TaskForm(
        ("Memorize and track the chain(s)",),
        ("Question: Find all variables that are assigned",),
        " Answer: According to the chain(s)",
        30,
    ),
    "cwe": TaskForm(
        ("Below is a numbered list of words.",),
        ("Question: What are the 10 most common words",),
        " Answer: The top 10 words",
        120,
    ),
    "fwe": TaskForm(
        ("Read the following coded text",),
        ("Question: Do not provide any explanation.",),
        " Answer: According to the coded text",
        50,
    ),
    "qa": TaskForm(
        ("Answer the question based on the given documents.",),
        ("Answer the question based on the given documents.",),
        " Answer:",
        32,
    ),
}
TITLES = {
    "niah_single_1": "S-NIAH-1", "niah_single_2": "S-NIAH-2", "niah_single_3": "S-NIAH-3",
    "niah_multikey_1": "MK-NIAH-1", "niah_multikey_2": "MK-NIAH-2", "niah_multikey_3": "MK-NIAH-3",
    "niah_multivalue": "MV-NIAH", "niah_multiquery": "MQ-NIAH", "vt": "VT", "cwe": "CWE",
    "fwe": "FWE", "qa_1": "QA-1", "qa_2": "QA-2",
}  # fmt: skip


class RulerRow(BaseModel):
    """A line of a generated file."""

    input: str
    outputs: FilledTexts
    length: int = Field(ge=0)
    answer_prefix: str = ""


def files(task: str) -> Sequence[str]:
    return [f"{task}/validation.jsonl"]


def read(folder: Path, task: str) -> Iterator[BenchRecord]:
    form = FORMS[task.partition("_")[0]]

    def make(row: RulerRow, line: int) -> BenchRecord:
        text, prime = row.input, row.answer_prefix
        if not text.startswith(form.begins):
            raise ValueError(
                f"the input must begin as {task} does; write the files with "
                "--model_template_type base"
            )
        if not prime:  # older files have it after the question
            at = text.rfind(form.answers)
            text, prime = (text, "") if at < 0 else (text[:at], text[at:])
        at = max(text.rfind(words) for words in form.asks)
        if at <= 0:
            raise ValueError("'input' has no question")
        return BenchRecord(
            "ruler",
            task,
            str(line),  # niah writes the answer's place into `index`, so that is no name
            before="",
            document=text[:at],
            question=text[at:],
            answers=row.outputs,
            longest=form.longest,
            prime=prime,
            # Up to a power of two, as RULER's lengths are: one setting for all of a folder.
            data={"length": 1 << max(row.length - 1, 0).bit_length()},
        )

    return read_rows(folder, files(task), RulerRow, make)


def score(record: BenchRecord, output: str) -> float:
    """The share of the answers in the output; for questions whether one is."""
    rule = metrics.match_part if record.task.startswith("qa") else metrics.match_all
    return rule(output, record.answers)


RULER = Benchmark(
    tasks=tuple(BenchTask(name, title, "RULER", None) for name, title in TITLES.items()),
    source="TASK/validation.jsonl as scripts/data/prepare.py of github.com/NVIDIA/RULER writes it "
    "with --model_template_type base",
    files=files,
    read=read,
    score=score,
)
