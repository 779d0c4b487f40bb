"""InfiniteBench, the six tasks of the paper's table.

Prompts and answer lengths are InfLLM's (`benchmark/config/`), which differ from the benchmark's own
in Retrieve.KV and Code.Debug: the paper compares itself with InfLLM and gives no others. Scores are
the benchmark's own, but for Code.Debug (see `metrics.code_debug`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field

from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench.records import (
    Benchmark,
    BenchRecord,
    BenchTask,
    Texts,
    read_rows,
    split_prompt,
)
from esa_cli.evaluation.tasks.key_tasks import NUMBER, PASSKEY

_OPTIONS = "A. {A}\nB. {B}\nC. {C}\nD. {D}"
PROMPTS = {
    "passkey": PASSKEY.before + "{context}\n\n{input}",
    "number_string": NUMBER.before + "{context}\n\n{input}",
    "kv_retrieval": (
        "Extract the value corresponding to the specified key {key} in the JSON object below.\n\n"
        "{context}\n\n{input}"
    ),
    "math_find": "{prefix}\n\n{context}\n\n{input}",
    "longbook_choice_eng": (
        "Read the book and answer the question.\n\n{context}\n\nQuestion: {input}\n\nOnly one of "
        "the following options is correct, tell me the answer using one single letter (A, B, C, or "
        "D). Don't say anything else.\n" + _OPTIONS
    ),
    "code_debug": (
        "There is ONLY ONE function in the large project that is deliberately made to include an "
        "obvious error. Please find the function that contains the most obvious errors. I will "
        "give you four options to narrow your scope. You can inspect the options and think. "
        "Eventually, tell me the answer using one single letter (A, B, C, or D).\n\n{context}\n\n"
        "Which funtion has deliberate error?\n" + _OPTIONS + "\n\nGive me your answer for the "
        "function that has the deliberate and obvious error in A, B, C, or D. Your answer MUST be "
        "chosen from one of the four options without any explanation. If you cannot determine "
        "answers accurately, you also MUST provide the answer you think is most likely. Absolutely "
        "do not say you do not know or you need more information."
    ),
}
CHOICES = ("longbook_choice_eng", "code_debug")


class InfiniteBenchRow(BaseModel):
    """A line of an official file."""

    context: str = Field(validation_alias=AliasChoices("content", "context"))
    input: str
    answer: Texts
    options: Texts | None = None


def files(task: str) -> Sequence[str]:
    return [f"{task}.jsonl"]


def read(folder: Path, task: str) -> Iterator[BenchRecord]:
    def make(row: InfiniteBenchRow, line: int) -> BenchRecord:
        return BenchRecord(
            "infinitebench",
            task,
            str(line),
            *split_prompt(PROMPTS[task], row.context, **_fields(row, task)),
            answers=_choice(row) if task in CHOICES else row.answer,
            longest=100 if task == "kv_retrieval" else 32,
        )

    return read_rows(folder, files(task), InfiniteBenchRow, make)


def _choice(row: InfiniteBenchRow) -> tuple[str, ...]:
    """The right option and its letter."""
    options, answers = row.options or (), row.answer
    if len(answers) == 2 and answers[1] in "ABCD":
        return answers
    if answers[0] not in options:
        raise ValueError("the answer is not among the options")
    return answers[0], "ABCD"[options.index(answers[0])]


def _fields(row: InfiniteBenchRow, task: str) -> dict[str, str]:
    """Values of the prompt's fields. Raises ValueError."""
    fields = {"input": row.input}
    if task in CHOICES:
        if len(row.options or ()) != 4:
            raise ValueError("'options' are not four")
        return fields | dict(zip("ABCD", row.options or (), strict=True))
    if task == "kv_retrieval":
        key = re.search('"[^"]*"', row.input)
        if key is None:
            raise ValueError("'input' names no key")
        return fields | {"key": key[0]}
    if task == "math_find":
        wanted = row.input.partition("The ")[2].rpartition(" of")[0]
        if not wanted or not metrics.is_number(row.answer[0]):
            raise ValueError("'input' names no number that is wanted, or 'answer' is no number")
        return fields | {"prefix": f"What is the {wanted.lower()} in the following list?"}
    return fields


_SCORES = {
    "kv_retrieval": metrics.contains_word,
    "math_find": metrics.first_number_match,
    "number_string": metrics.first_integer_match,
    "passkey": metrics.first_integer_match,
}


def score(record: BenchRecord, output: str) -> float:
    """0 or 1."""
    if record.task == "code_debug":
        return metrics.code_debug(output, record.answers)
    if record.task == "longbook_choice_eng":
        return metrics.multiple_choice(output, record.answers)
    return _SCORES[record.task](output, record.answers[0])


INFINITEBENCH = Benchmark(
    tasks=tuple(
        BenchTask(name, title, "InfiniteBench", size)
        for name, title, size in (
            ("kv_retrieval", "Retrieve.KV", 500),
            ("math_find", "Math.Find", 350),
            ("number_string", "Retrieve.Number", 590),
            ("longbook_choice_eng", "En.MC", 229),
            ("code_debug", "Code.Debug", 394),
            ("passkey", "Retrieve.PassKey", 590),
        )
    ),
    source="hf download xinrongzhang2022/InfiniteBench --repo-type dataset --local-dir DIR",
    files=files,
    read=read,
    score=score,
    length=200_000,
    notes={
        "code_debug": "Code.Debug: where no option is named, InfLLM's rule guesses one, so an "
        "empty answer is right once in four."
    },
)
