"""Runs the records of a benchmark through a function that answers them, and writes scored rows.

Every row is on disk before the next record starts (see `system/jsonl.py`), so a stopped run can be
resumed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from esa_cli.errors import DocumentError, LengthError, UsageError
from esa_cli.evaluation.report.statistics import is_share
from esa_cli.methods import registry
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.cache_key import method_hash
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.jsonl import Journal
from esa_cli.system.registry import nearest
from esa_cli.system.text import text_digest
from esa_cli.system.work_shard import ALL_WORK, WorkShard


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


KEY = ("method", "task", "id")
"""Fields that identify a row."""


class BenchReply(NamedTuple):
    """The answer as generated, and the number of the prompt's tokens."""

    text: str
    tokens: int


def wrong(row: Mapping[str, Any]) -> str:
    """Says what is wrong with a row of an earlier run; empty for a valid one."""
    score, tokens = row.get("score"), row.get("tokens")
    if not is_share(score):
        return f"'score' must be a number from 0 to 1, got {score!r}"
    if not isinstance(tokens, int):
        return f"'tokens' must be a number of tokens, got {tokens!r}"
    return ""


def has_answer(record: BenchRecord, method: str, settings: str, journal: Journal) -> bool:
    """True if the journal has the method's answer to this record.

    Args:
        settings: the hash of the method's settings.

    Raises:
        UsageError: the journal's record of that name has another prompt or other right answers, or
            its row comes from other settings.
    """
    row = journal.find({"method": method, "task": record.task, "id": record.id})
    if row is not None and row.get("record") != record.digest:
        raise UsageError(
            f"{journal.path} has another record as {record.task}, {record.id}: its rows come "
            "from other data",
            "give the --data it was begun with, or choose another --out",
        )
    if row is not None and row.get("settings") != settings:
        raise UsageError(
            f"{journal.path} has results by other settings of {method}, or by another version of "
            "its plugin",
            "they would be mixed: choose another --out",
        )
    return row is not None


def lacks_answers(
    records: Iterable[BenchRecord], settings: Mapping[str, str], journal: Journal
) -> bool:
    """True if a record has no answer by one of the methods.

    Args:
        settings: the hash of each method's settings.
    """
    return any(
        not has_answer(record, method, made, journal)
        for record in records
        for method, made in settings.items()
    )


def run(
    records: Iterable[BenchRecord],
    ask: Callable[[BenchRecord], BenchReply],
    score: Callable[[BenchRecord, str], float],
    journal: Journal,
    *,
    method: str,
    settings: str = "",
    until: float | None = None,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    on_left_out: Callable[[BenchRecord, LengthError], None] | None = None,
) -> bool:
    """Asks the records that the journal lacks; False when the time limit came first.

    Args:
        method: the name of the method. settings: the hash of its settings.
        until: seconds on `time.monotonic` after which no record starts.
        on_row: called with each new row.
        on_left_out: called with a record whose question does not fit in the window; the run
            continues. Without it such a record ends the run.

    Raises:
        UsageError: the journal's rows come from other data. LengthError: see `on_left_out`.
    """
    for record in records:
        if has_answer(record, method, settings, journal):
            continue
        started = time.monotonic()
        if until is not None and started >= until:
            return False
        try:
            reply = ask(record)
        except LengthError as error:
            if on_left_out is None:
                raise
            on_left_out(record, error)
            continue
        row = {
            "method": method, "task": record.task, "id": record.id, "settings": settings,
            "benchmark": record.benchmark, "record": record.digest,
            "answers": list(record.answers),
            "output": reply.text,
            "score": score(record, reply.text),
            "tokens": reply.tokens,
            "seconds": round(time.monotonic() - started, 2),
        }  # fmt: skip
        journal.add(row)
        if on_row:
            on_row(row)
    return True


class RecordPlaces(NamedTuple):
    """Each record's place by task and id, and the tokens position encodings are stretched to."""

    places: dict[tuple[str, str], int]
    length: int


@dataclass(frozen=True)
class TaskSelection:
    """Tasks of a benchmark from the files in a folder, the first `limit` records of each."""

    benchmark: Benchmark
    folder: Path
    tasks: Sequence[str]
    limit: int | None = None
    shard: WorkShard = ALL_WORK

    def records(self) -> Iterator[BenchRecord]:
        """Those of all shards. Raises DocumentError, UsageError."""
        return self.benchmark.load(self.folder, self.tasks, self.limit)

    def shard_documents(self) -> Iterator[list[BenchRecord]]:
        """The records to ask, consecutive ones about one document together. Raises DocumentError,
        UsageError."""
        documents = groupby(self.records(), lambda record: (record.task, record.document))
        return self.shard.take(list(records) for _, records in documents)

    def settings(self, method: str, preset: Preset) -> str:
        """The hash of a method's settings, over rows without the prompt, which is the
        benchmark's."""
        return method_hash(method, preset, ("name", "description", "prompt", "generation"))

    def survey(self) -> RecordPlaces:
        """Reads every line once, so that an invalid one is found before any question is asked.
        Raises DocumentError, UsageError."""
        places: dict[tuple[str, str], int] = {}
        length = self.benchmark.LENGTH
        for record in self.records():
            name = (record.task, record.id)
            if name in places:  # its second answer would be taken for the first one's
                raise DocumentError(
                    f"{record.task} has two records {record.id!r}", "fetch the official file again"
                )
            if not record.question.strip():
                raise DocumentError(
                    f"{record.task}, record {record.id!r} has no question",
                    "fetch the official file again",
                )
            places[name] = len(places) + 1
            length = max(length, record.data.get("length", 0))
        asked = {task for task, _ in places}
        if without := [task for task in self.tasks if task not in asked]:
            raise DocumentError(
                f"{self.folder} has no records of {', '.join(without)}",
                "fetch the official files again, or name other --tasks",
            )
        return RecordPlaces(places, length)

    def left_out(self) -> list[str]:
        """Tasks of the same averages that are not selected."""
        tasks = self.benchmark.TASKS
        groups = {task.group for task in tasks if task.name in self.tasks}
        return [t.name for t in tasks if t.group in groups and t.name not in self.tasks]

    def notes(self) -> list[str]:
        """The benchmark's remarks on the selected tasks."""
        notes = self.benchmark.NOTES.items()
        return [note for begin, note in notes if any(t.startswith(begin) for t in self.tasks)]


def tasks(benchmark: Benchmark, folder: Path, asked: Sequence[str] | None) -> list[str]:
    """The tasks to run, in the table's order: those asked for, else those whose files are there.
    Raises UsageError: there is no such task. DocumentError: no folder, or nothing in it."""
    if not folder.is_dir():
        raise DocumentError(f"there is no folder {folder}", f"official files: {benchmark.SOURCE}")
    known = [task.name for task in benchmark.TASKS]
    if asked is None:
        there = benchmark.there(folder)
        if not there:
            raise DocumentError(
                f"{folder} has none of the benchmark's files", f"official: {benchmark.SOURCE}"
            )
        return there
    if not asked:
        raise UsageError("--tasks must name a task, got none", f"known: {', '.join(known)}")
    for name in asked:
        if name not in known:
            raise UsageError(f"unknown task {name!r}", nearest(name, known))
    return [name for name in known if name in asked]


def presets(base: Preset, methods: Sequence[str], length: int) -> dict[str, Preset]:
    """A preset for each method, at the base's token budget; each method is built once as a check.
    Raises UsageError: no method, or an unknown one. PresetError: one is invalid."""
    from esa_cli.qa.presets.resolved_preset import resolve

    if not methods:
        raise UsageError(
            "--methods must name a method, got none",
            "`esa methods` lists all; `preset`: the preset as it is",
        )
    made = {name: resolved_preset.compared(name, base, length) for name in methods}
    for preset in made.values():
        resolve(preset)
    return made


def titles(base: Preset, methods: Iterable[str], length: int) -> dict[str, str]:
    """Column headings of methods that are stretched to `length`, such as the paper's NTK(200k)."""
    known = {recipe.name for recipe in registry.recipes()}
    thousand = 1000 if length % 1000 == 0 else 1024
    to = f"{length // thousand}k" if length % thousand == 0 else str(length)
    return {
        name: f"{name}({to})"
        for name in methods
        if length and name in known and resolved_preset.stretches(name, base)
    }
