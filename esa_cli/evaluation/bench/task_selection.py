"""The tasks, records and methods of a benchmark run, all checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from esa_cli.errors import DocumentError, UsageError
from esa_cli.evaluation.bench.bench_record import Benchmark, BenchRecord
from esa_cli.methods import recipes
from esa_cli.qa.presets import method_presets
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.settings_hash import method_hash
from esa_cli.system.registry import nearest
from esa_cli.system.work_shard import ALL_WORK, WorkShard


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
    made = {name: method_presets.compared(name, base, length) for name in methods}
    for preset in made.values():
        resolve(preset)
    return made


def titles(base: Preset, methods: Iterable[str], length: int) -> dict[str, str]:
    """Column headings of methods that are stretched to `length`, such as the paper's NTK(200k)."""
    known = {recipe.name for recipe in recipes.known()}
    thousand = 1000 if length % 1000 == 0 else 1024
    to = f"{length // thousand}k" if length % thousand == 0 else str(length)
    return {
        name: f"{name}({to})"
        for name in methods
        if length and name in known and method_presets.stretches(name, base)
    }
