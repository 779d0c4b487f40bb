"""InfiniteBench, the six tasks of the paper's table.

Prompts and answer lengths are InfLLM's (`benchmark/config/`), which differ from the benchmark's own
in Retrieve.KV and Code.Debug: the paper compares itself with InfLLM and gives no others. Scores are
the benchmark's own, but for Code.Debug (see `metrics.code_debug`).

The compact form of PassKey and Number gives the numbers of noise lines in place of the context.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench import data_files as files
from esa_cli.evaluation.bench.bench_runner import BenchRecord, BenchTask, split
from esa_cli.evaluation.tasks.passkey_task import NOISE, NUMBER, PASSKEY

SOURCE = "TASK.jsonl of the dataset xinrongzhang2022/InfiniteBench on the Hugging Face hub"
NOTES: dict[str, str] = {
    "code_debug": "Code.Debug: where no option is named, InfLLM's rule guesses one, so an empty "
    "answer is right once in four."
}
LENGTH = 200_000

_ALL = "InfiniteBench"
TASKS: tuple[BenchTask, ...] = (
    BenchTask("kv_retrieval", "Retrieve.KV", _ALL, 500),
    BenchTask("math_find", "Math.Find", _ALL, 350),
    BenchTask("number_string", "Retrieve.Number", _ALL, 590),
    BenchTask("longbook_choice_eng", "En.MC", _ALL, 229),
    BenchTask("code_debug", "Code.Debug", _ALL, 394),
    BenchTask("passkey", "Retrieve.PassKey", _ALL, 590),
)
COMPACT = {"passkey": "infinitebench_passkey.jsonl", "number_string": "infinitebench_number.jsonl"}
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

HIDDEN = {"passkey": PASSKEY, "number_string": NUMBER}


def there(folder: Path) -> list[str]:
    """The tasks whose files are in the folder."""
    return [task.name for task in TASKS if files.find(folder, *_names(task.name))]


def _names(task: str) -> list[str]:
    return [f"{task}.jsonl", *([COMPACT[task]] if task in COMPACT else [])]


def load(folder: Path, tasks: Sequence[str], limit: int | None) -> Iterator[BenchRecord]:
    """The first `limit` records of each task. Raises DocumentError."""
    for task in tasks:
        path = files.need(folder, SOURCE, *_names(task))
        for row in islice(files.rows(path), limit):
            yield _record(row, task)


def _record(row: files.DataRow, task: str) -> BenchRecord:
    answers = row.texts("answer")
    if task in CHOICES:
        answers = _choice(row, answers)
    if task == "math_find" and not metrics.is_number(answers[0]):
        raise row.wrong("'answer' is not a number")
    parts = split(PROMPTS[task], _context(row, task), **_fields(row, task))
    longest = 100 if task == "kv_retrieval" else 32
    return BenchRecord(
        "infinitebench", task, str(row.line), *parts, answers=answers, longest=longest
    )


def _context(row: files.DataRow, task: str) -> str:
    if task in HIDDEN and "context" not in row.data:
        hidden = HIDDEN[task].fact.format(key=row.texts("answer")[0], gate="") + "\n"
        return NOISE * row.number("n_noise_before") + hidden + NOISE * row.number("n_noise_after")
    return row.text("content" if "content" in row.data else "context")


def _choice(row: files.DataRow, answers: tuple[str, ...]) -> tuple[str, ...]:
    """The right option and its letter."""
    options = row.texts("options")
    if len(options) != 4:
        raise row.wrong("'options' are not four")
    if len(answers) == 2 and answers[1] in "ABCD":
        return answers
    if answers[0] not in options:
        raise row.wrong("the answer is not among the options")
    return answers[0], "ABCD"[options.index(answers[0])]


def _fields(row: files.DataRow, task: str) -> dict[str, str]:
    """Values of the prompt's fields."""
    if task == "code_debug":
        return dict(zip("ABCD", row.texts("options"), strict=True))
    question = row.text("input")
    if task == "longbook_choice_eng":
        return {"input": question, **dict(zip("ABCD", row.texts("options"), strict=True))}
    if task == "kv_retrieval":
        key = re.search('"[^"]*"', question)
        if key is None:
            raise row.wrong("'input' names no key")
        return {"input": question, "key": key[0]}
    if task == "math_find":
        wanted = question.partition("The ")[2].rpartition(" of")[0]
        if not wanted:
            raise row.wrong("'input' does not say which number is wanted")
        prefix = f"What is the {wanted.lower()} in the following list?"
        return {"input": question, "prefix": prefix}
    return {"input": question}


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
