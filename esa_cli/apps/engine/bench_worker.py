"""Records of a benchmark, asked by the workers of an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from esa_cli.apps.cli.model_choice.known_model import inspect_model
from esa_cli.apps.cli.model_choice.model_place import ModelPlace
from esa_cli.apps.cli.options.options import ModelOptions, load_plugins
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.task_engine import TaskEngine
from esa_cli.errors import LengthError
from esa_cli.evaluation.bench import BenchRecord, find
from esa_cli.evaluation.bench.bench_runner import KEY, BenchReply, has_answer
from esa_cli.evaluation.bench.bench_runner import run as ask_all
from esa_cli.evaluation.bench.task_selection import TaskSelection
from esa_cli.models.loading.quiet_transformers import quiet_transformers
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.jsonl import Journal


class RecordGroup(NamedTuple):
    """Records about one document, for one method; `settings` is the hash of its settings."""

    method: str
    settings: str
    records: Sequence[BenchRecord]


@dataclass
class GroupRows:
    """The rows of a group, and the records that do not fit, each with the error's message."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[tuple[BenchRecord, str]] = field(default_factory=list)


@dataclass(frozen=True)
class BenchWorker:
    """Asks records by one method after another.

    Args:
        presets: of each method. dtype: as for `SelftestWorker`.
    """

    benchmark: str
    preset: Preset
    model: ModelOptions
    presets: Mapping[str, Preset]
    dtype: str

    @contextmanager
    def open(self, reporter: Reporter) -> Iterator[Callable[[RecordGroup], GroupRows]]:
        load_plugins(self.model.plugins)
        place = ModelPlace.of(replace(self.model, dtype=self.dtype))
        known = inspect_model(self.preset, place, reporter)
        from esa_cli.evaluation.bench.session_asker import record_asker
        from esa_cli.qa.answering.session import Session

        score = find(self.benchmark).score
        asker: Callable[[BenchRecord], BenchReply] | None = None
        now = ""
        with quiet_transformers():
            loaded = known.load(reporter)
            with Session(loaded.model, loaded.tokenizer, self.preset, loaded.cache) as session:

                def ask(group: RecordGroup) -> GroupRows:
                    nonlocal asker, now
                    if asker is None or now != group.method:
                        now, preset = group.method, self.presets[group.method]
                        asker = record_asker(session, now, preset, lambda record: None)
                    return _asked(group, asker, score)

                yield ask


def _asked(
    group: RecordGroup,
    asker: Callable[[BenchRecord], BenchReply],
    score: Callable[[BenchRecord, str], float],
) -> GroupRows:
    found, journal = GroupRows(), Journal(None, {}, same=(), key=KEY)

    def leave_out(record: BenchRecord, error: LengthError) -> None:
        found.left_out.append((record, error.message))

    ask_all(
        group.records, asker, score, journal,
        method=group.method, settings=group.settings,
        on_row=found.rows.append, on_left_out=leave_out,
    )  # fmt: skip
    return found


def bench_by(
    engine: TaskEngine,
    worker: BenchWorker,
    order: TaskSelection,
    journal: Journal,
    until: float | None,
    show: Callable[[str], None],
    leave_out: Callable[[str, BenchRecord, str], None],
) -> bool:
    """Asks the records that have no row in the journal; False when the time limit came first.

    Args:
        show: shows a line of progress after each group. leave_out: called with method,
            record and message where a record does not fit.
    """
    late = False
    groups: dict[int, str] = {}

    def tasks() -> Iterator[RecordGroup]:
        nonlocal late
        for method, preset in worker.presets.items():
            settings = order.settings(method, preset)
            for records in order.shard_documents():
                left = [one for one in records if not has_answer(one, method, settings, journal)]
                late = bool(left) and until is not None and time.monotonic() >= until
                if late:
                    return
                if left:
                    groups[len(groups)] = method
                    yield RecordGroup(method, settings, left)

    for number, found in engine.run(worker, tasks()):
        for row in found.rows:
            journal.add(row)
        for record, message in found.left_out:
            leave_out(groups[number], record, message)
        show(f"{len(journal.rows):,} records asked")
    return not late
