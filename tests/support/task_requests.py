"""Requests to the self-tests' tasks, and ways of counting tokens, for tests."""

from __future__ import annotations

import re
from typing import Any

from esa_cli.evaluation.tasks import TASKS
from esa_cli.evaluation.tasks.task_sample import Haystack, TaskDocument, TaskRequest

CHRONICLE = Haystack.from_chronicle(3)
NAMES = [name for name in TASKS if name != "own"]


def words(text: str) -> int:
    return len(text.split())


def pieces(text: str) -> int:
    """Like a byte-level tokenizer: a word with its space, a digit, punctuation, a line break."""
    return len(re.findall(r" ?[^\W\d]+| ?\d| ?[^\w\s]+|\s", text))


def request(length: int = 3000, **changes: Any) -> TaskRequest:
    given: dict[str, Any] = {
        "count_tokens": words, "haystack": CHRONICLE, "samples": 6, "seed": 1,
    }  # fmt: skip
    return TaskRequest(length, **{**given, **changes})


def samples(name: str, length: int = 3000, **changes: Any) -> list[TaskDocument]:
    return list(TASKS[name].samples(request(length, **changes)))
