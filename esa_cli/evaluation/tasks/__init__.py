"""The tasks of `esa selftest`: documents, questions and scores, as pure functions.

    haystack_text  the text around the facts: the generated chronicle, or the user's files
    planting       puts facts into it at given depths
    *_task         one task each, with the prompt and the score of the benchmark it names

No model is used; the function in the request counts tokens. `length` is that of the document;
prompt, question and answer come on top.
"""

from __future__ import annotations

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.key_value_task import KeyValue
from esa_cli.evaluation.tasks.multi_needle_task import ManyNeedles
from esa_cli.evaluation.tasks.needle_task import OwnDocument, SingleNeedle
from esa_cli.evaluation.tasks.passkey_task import NUMBER, PASSKEY
from esa_cli.evaluation.tasks.ruler_niah_task import MagicNumbers
from esa_cli.evaluation.tasks.stars_task import CountingStars
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

_ALL: tuple[Task, ...] = (
    SingleNeedle(), ManyNeedles(), CountingStars(), PASSKEY, NUMBER, KeyValue(), MagicNumbers(),
    OwnDocument(),
)  # fmt: skip
TASKS: dict[str, Task] = {one.name: one for one in _ALL}
"""Every self-test by name."""


def find_task(name: str) -> Task:
    """The self-test of this name. Raises UsageError: there is none; the hint names the nearest."""
    if name not in TASKS:
        raise UsageError(f"there is no test {name!r}", nearest(name, list(TASKS)))
    return TASKS[name]
