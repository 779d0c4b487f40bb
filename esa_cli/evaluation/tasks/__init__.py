"""The tests of `esa selftest`, which make documents with questions, and score answers."""

from __future__ import annotations

from functools import partial

from esa_cli.errors import UsageError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks import chronicle_task, key_tasks, needle_tasks
from esa_cli.evaluation.tasks.task_sample import SelftestTask, TaskQuestion
from esa_cli.system.registry import suggest_name


def _score_contained_answer(question: TaskQuestion, output: str) -> float:
    return float(chronicle_task.contains_answer(output, question.answers))


def _score_star_counts(question: TaskQuestion, output: str) -> float:
    return metrics.score_star_counts(output, question.answers, question.data.get("mistaken"))


def _score_first_integer(question: TaskQuestion, output: str) -> float:
    return metrics.score_first_integer(output, question.answers[0])


def _score_keywords(question: TaskQuestion, output: str) -> float:
    return metrics.compute_share_of_found_keywords(output, question.answers)


def _score_value_of_key(question: TaskQuestion, output: str) -> float:
    return metrics.score_contained_gold_word(output, question.answers[0])


def _score_found_numbers(question: TaskQuestion, output: str) -> float:
    return metrics.compute_share_of_found_answers(output, question.answers)


_make_keys = key_tasks.make_hidden_key_document
TASKS: dict[str, SelftestTask] = {
    "needle": SelftestTask(needle_tasks.make_single_needle_document, _score_contained_answer),
    "needles": SelftestTask(needle_tasks.make_multi_needle_documents, _score_keywords),
    "stars": SelftestTask(needle_tasks.make_counting_stars_documents, _score_star_counts),
    "passkey": SelftestTask(partial(_make_keys, key_tasks.PASSKEY), _score_first_integer),
    "number": SelftestTask(partial(_make_keys, key_tasks.NUMBER), _score_first_integer),
    "kv": SelftestTask(key_tasks.make_key_value_document, _score_value_of_key),
    "niah": SelftestTask(key_tasks.make_magic_number_document, _score_found_numbers),
    "own": SelftestTask(needle_tasks.plant_needles_in_user_document, _score_contained_answer),
}
"""The tasks of all self-tests by name."""


def find_selftest_task(name: str) -> SelftestTask:
    """Finds a self-test by name. Raises UsageError: the name is unknown."""
    if name not in TASKS:
        raise UsageError(f"esa has no self-test {name!r}", suggest_name(name, list(TASKS)))
    return TASKS[name]
