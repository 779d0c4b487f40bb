"""The tasks of `esa selftest`: documents, questions and scores, as pure functions.

    task_sample   haystacks, how facts are planted in them, and what a task makes
    needle_tasks, key_tasks, stars_task    one function of samples and one score a task

No model is used; the function in the request counts tokens. `length` is that of the document;
prompt, question and answer come on top.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from esa_cli.errors import UsageError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks.chronicle_task import is_answered
from esa_cli.evaluation.tasks.key_tasks import (
    NUMBER,
    PASSKEY,
    hidden_keys,
    key_values,
    magic_numbers,
)
from esa_cli.evaluation.tasks.needle_tasks import many_needles, own_document, single_needles
from esa_cli.evaluation.tasks.stars_task import counting_stars, star_score
from esa_cli.evaluation.tasks.task_sample import (
    Fact,
    Haystack,
    Task,
    TaskQuestion,
    TaskRequest,
    TaskSample,
)
from esa_cli.system.registry import nearest

__all__ = [
    "TASKS", "Fact", "Haystack", "Task", "TaskQuestion", "TaskRequest", "TaskSample", "find_task",
]  # fmt: skip


def _needle_score(question: TaskQuestion, output: str) -> float:
    return float(is_answered(output, question.answers))


def _of_all(rule: Callable[[str, Sequence[str]], float]) -> Callable[[TaskQuestion, str], float]:
    return lambda question, output: rule(output, question.answers)


def _of_first(rule: Callable[[str, str], float]) -> Callable[[TaskQuestion, str], float]:
    return lambda question, output: rule(output, question.answers[0])


TASKS: dict[str, Task] = {
    "needle": Task(single_needles, _needle_score),
    "needles": Task(many_needles, _of_all(metrics.keyword_share)),
    "stars": Task(counting_stars, star_score),
    "passkey": Task(partial(hidden_keys, PASSKEY), _of_first(metrics.first_integer_match)),
    "number": Task(partial(hidden_keys, NUMBER), _of_first(metrics.first_integer_match)),
    "kv": Task(key_values, _of_first(metrics.contains_word)),
    "niah": Task(magic_numbers, _of_all(metrics.match_all)),
    "own": Task(own_document, _needle_score),
}
"""Every self-test by name."""


def find_task(name: str) -> Task:
    """The self-test of this name. Raises UsageError: there is none; the hint names the nearest."""
    if name not in TASKS:
        raise UsageError(f"there is no test {name!r}", nearest(name, list(TASKS)))
    return TASKS[name]
