"""The tasks of `esa selftest`: documents, questions and scores, as pure functions.

    task_sample   haystacks, how facts are planted in them, and what a task makes
    needle_tasks, key_tasks, stars_task    one function of samples and one score a task

No model is used; the function in the request counts tokens. `length` is that of the document;
prompt, question and answer come on top.
"""

from __future__ import annotations

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.key_tasks import (
    NUMBER,
    PASSKEY,
    key_score,
    key_values,
    magic_numbers,
    magic_score,
    pair_score,
)
from esa_cli.evaluation.tasks.needle_tasks import (
    many_needles,
    many_score,
    needle_score,
    own_document,
    single_needles,
)
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

TASKS: dict[str, Task] = {
    "needle": Task(single_needles, needle_score),
    "needles": Task(many_needles, many_score),
    "stars": Task(counting_stars, star_score),
    "passkey": Task(PASSKEY.samples, key_score),
    "number": Task(NUMBER.samples, key_score),
    "kv": Task(key_values, pair_score),
    "niah": Task(magic_numbers, magic_score),
    "own": Task(own_document, needle_score),
}
"""Every self-test by name."""


def find_task(name: str) -> Task:
    """The self-test of this name. Raises UsageError: there is none; the hint names the nearest."""
    if name not in TASKS:
        raise UsageError(f"there is no test {name!r}", nearest(name, list(TASKS)))
    return TASKS[name]
