"""Tasks and records of a benchmark, and the interface of a benchmark's module.

A record is one prompt, divided so that a document is read once for all questions about it:

    prompt = before + document + question

A record is never shortened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from esa_cli.system.text import text_digest


@dataclass(frozen=True)
class BenchTask:
    """A row of a benchmark's table.

    Args:
        name: as on the command line. title: as in the paper. group: what it is averaged with.
        size: records in the whole task; None where the user's own files decide.
    """

    name: str
    title: str
    group: str
    size: int | None


@dataclass(frozen=True)
class BenchRecord:
    """One prompt and its right answers.

    Args:
        id: unique within the task. longest: tokens of the longest answer.
        chat: inside the model's chat template. prime: the answer's first words, given to the model.
        data: what this benchmark's score needs besides the answers.
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
        """Hash of all fields but the id, which is only a place in a file for some benchmarks."""
        fields = {name: value for name, value in vars(self).items() if name != "id"}
        return text_digest(json.dumps(fields))[:16]


class Benchmark(Protocol):
    """The interface of each benchmark's module."""

    TASKS: tuple[BenchTask, ...]
    """In the order of the paper's table."""
    SOURCE: str
    """The origin of the official files, in a few words."""
    NOTES: dict[str, str]
    """Remarks on the scores; a key is the beginning of its tasks' names."""
    LENGTH: int
    """Tokens to which the paper stretches position encodings; 0 if it lacks the benchmark."""

    def there(self, folder: Path) -> list[str]:
        """The tasks whose files are in `folder`."""
        ...

    def load(self, folder: Path, tasks: Sequence[str], limit: int | None) -> Iterator[BenchRecord]:
        """The first `limit` records of each task, from the official files. Raises DocumentError: a
        file is missing, or one of its lines is invalid."""
        ...

    def score(self, record: BenchRecord, output: str) -> float:
        """0 to 1."""
        ...


def split(template: str, context: str, **fields: str) -> tuple[str, str, str]:
    """Before, document and question of a template with one {context}."""
    before, after = template.split("{context}")
    return before.format(**fields), context, after.format(**fields)
