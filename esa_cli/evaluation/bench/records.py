"""Records of public benchmarks: their types, and how they are read from the official files."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from esa_cli.errors import DocumentError
from esa_cli.evaluation.row_run import reason
from esa_cli.system.text import text_digest

AGAIN = "fetch the official file again"


class BenchTask(NamedTuple):
    """A row of a benchmark's table.

    Args:
        name: as on the command line. title: as in the paper. group: what it is averaged with.
        size: records in the whole task.
    """

    name: str
    title: str
    group: str
    size: int


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


@dataclass(frozen=True)
class Benchmark:
    """A public benchmark.

    Args:
        tasks: in the order of the paper's table. source: the origin of the official files.
        read: the records of a task, from the files in a folder.
        score: 0 to 1, of a record and the model's output.
        length: tokens to which the paper stretches position encodings.
        files: of a task; the names that any one of its files may have.
        notes: remarks on the scores, by task; those of "" are for all.
    """

    tasks: tuple[BenchTask, ...]
    source: str
    read: Callable[[Path, str], Iterator[BenchRecord]]
    score: Callable[[BenchRecord, str], float]
    length: int
    files: Callable[[str], Sequence[str]] = lambda task: [f"{task}.jsonl"]
    notes: Mapping[str, str] = field(default_factory=dict)

    def there(self, folder: Path) -> list[str]:
        """The tasks whose files are in `folder`."""
        return [task.name for task in self.tasks if find_file(folder, self.files(task.name))]

    def load(self, folder: Path, tasks: Sequence[str], limit: int | None) -> Iterator[BenchRecord]:
        """The first `limit` records of each task. Raises DocumentError: a file is missing, or one
        of its lines is invalid. UsageError: a library for the score is missing."""
        for task in tasks:
            if not find_file(folder, self.files(task)):
                missing = folder / self.files(task)[0]
                raise DocumentError(f"{missing} is missing", f"official files: {self.source}")
            yield from islice(self.read(folder, task), limit)


def find_file(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of the files that is in the folder or below it."""
    paths = (path for name in names for path in sorted(folder.rglob(name), key=_depth))
    return next((path for path in paths if path.is_file()), None)


def _depth(path: Path) -> tuple[int, str]:
    return len(path.parts), str(path)


def split_prompt(template: str, context: str, **fields: str) -> tuple[str, str, str]:
    """Before, document and question of a template with one {context}."""
    before, after = template.split("{context}")
    return before.format(**fields), context, after.format(**fields)


def _as_texts(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    return [str(item) if isinstance(item, int | float) else item for item in values]


Texts = Annotated[tuple[str, ...], BeforeValidator(_as_texts), Field(min_length=1)]
"""A list of texts or numbers, or a single one; at least one."""

Row = TypeVar("Row", bound=BaseModel)
T = TypeVar("T")


def read_rows(
    folder: Path, names: Sequence[str], kind: type[Row], make: Callable[[Row, int], T]
) -> Iterator[T]:
    """What `make` returns for each object of a file of JSON lines and its line, from 1.

    Raises:
        DocumentError: the file cannot be read or has no objects; or an object is not of this kind,
            or `make` raises a ValueError.
    """
    path, empty = find_file(folder, names) or folder / names[0], True
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                text = line.removeprefix(codecs.BOM_UTF8).strip()
                if not text:
                    continue
                try:
                    data = json.loads(text.decode())
                    if b"\\ud" in text.lower():  # raises for a lone surrogate
                        json.dumps(data, ensure_ascii=False).encode()
                    if wrong := reason(kind, data):
                        raise ValueError(wrong)
                    record = make(kind.model_validate(data), number)
                except (ValueError, RecursionError) as error:  # RecursionError: nested too deep
                    raise DocumentError(f"{path}, line {number}: {error}", AGAIN) from error
                empty = False
                yield record
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror}", AGAIN) from error
    if empty:
        raise DocumentError(f"{path} has no records", AGAIN)
