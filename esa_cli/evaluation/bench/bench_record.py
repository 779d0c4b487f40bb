"""What a benchmark is made of: tasks, and records that hold one prompt each.

    prompt = before + document + question

cut at the document, so that it is read once for all questions about it. A record is never cut
short. It knows nothing of chat templates but whether the official code uses one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from esa_cli.system.digest import text_digest


@dataclass(frozen=True)
class BenchTask:
    """One row of a benchmark's table.

    Args:
        name: as on the command line. title: as in the paper. group: what it is averaged with.
        size: records in the whole task; None where the user's own files say.
    """

    name: str
    title: str
    group: str
    size: int | None


@dataclass(frozen=True)
class BenchRecord:
    """One prompt and what a right answer is.

    Args:
        id: with `task` the record's own name. longest: tokens of the longest answer.
        chat: inside the model's chat template. prime: words put into the model's mouth.
        data: what this benchmark's score needs beside the answers.
    """

    benchmark: str
    task: str
    id: str
    before: str
    document: str
    question: str
    answers: tuple[str, ...]
    longest: int
    chat: bool = True
    prime: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Tells records apart, what is right included: ids are places in a file for some."""
        fields = {name: value for name, value in vars(self).items() if name != "id"}
        return text_digest(json.dumps(fields))[:16]


class Benchmark(Protocol):
    """What each benchmark's module has."""

    TASKS: tuple[BenchTask, ...]
    """In the order of the paper's table."""
    SOURCE: str
    """Where the official files come from, in a few words."""
    NOTES: dict[str, str]
    """What a reader of the scores must know; the keys begin the names of the tasks it is about."""
    LENGTH: int
    """Tokens to which the paper stretches position encodings on it; 0 where it does not use it."""

    def there(self, folder: Path) -> list[str]:
        """The tasks whose files are in `folder`."""
        ...

    def load(self, folder: Path, tasks: Sequence[str], limit: int | None) -> Iterator[BenchRecord]:
        """The first `limit` records of each task, from the official files.

        Raises:
            DocumentError: a file is missing, or a line of it is not as it should be.
        """
        ...

    def score(self, record: BenchRecord, output: str) -> float:
        """0 to 1."""
        ...


def split(template: str, context: str, **fields: str) -> tuple[str, str, str]:
    """Before, document and question of a template that holds {context} once."""
    before, after = template.split("{context}")
    return before.format(**fields), context, after.format(**fields)
