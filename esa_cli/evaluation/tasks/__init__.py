"""The tasks of `esa selftest`, which make documents and questions, and score answers."""

from __future__ import annotations

from functools import partial

from esa_cli.errors import UsageError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks.chronicle_task import contains_answer
from esa_cli.evaluation.tasks.key_tasks import (
    NUMBER,
    PASSKEY,
    make_hidden_keys,
    make_key_values,
    make_magic_numbers,
)
from esa_cli.evaluation.tasks.needle_tasks import (
    make_counting_stars,
    make_many_needles,
    make_own_document,
    make_single_needles,
)
from esa_cli.evaluation.tasks.task_sample import SelftestTask, TaskQuestion
from esa_cli.system.registry import suggest_name


def _score_whole_words(question: TaskQuestion, output: str) -> float:
    return float(contains_answer(output, question.answers))


def _score_stars(question: TaskQuestion, output: str) -> float:
    return metrics.score_listed_stars(output, question.answers, question.data.get("mistaken"))


def _score_integer(question: TaskQuestion, output: str) -> float:
    return metrics.score_first_integer(output, question.answers[0])


TASKS: dict[str, SelftestTask] = {
    "needle": SelftestTask(make_single_needles, _score_whole_words),
    "needles": SelftestTask(
        make_many_needles, lambda q, output: metrics.compute_keyword_share(output, q.answers)
    ),
    "stars": SelftestTask(make_counting_stars, _score_stars),
    "passkey": SelftestTask(partial(make_hidden_keys, PASSKEY), _score_integer),
    "number": SelftestTask(partial(make_hidden_keys, NUMBER), _score_integer),
    "kv": SelftestTask(
        make_key_values, lambda q, output: metrics.score_answer_word(output, q.answers[0])
    ),
    "niah": SelftestTask(
        make_magic_numbers, lambda q, output: metrics.compute_share_of_answers(output, q.answers)
    ),
    "own": SelftestTask(make_own_document, _score_whole_words),
}
"""The tasks of all self-tests by name."""


def find_selftest_task(name: str) -> SelftestTask:
    """Returns the task of the self-test with this name. Raises UsageError: the name is unknown."""
    if name not in TASKS:
        raise UsageError(f"there is no self-test {name!r}", suggest_name(name, list(TASKS)))
    return TASKS[name]
