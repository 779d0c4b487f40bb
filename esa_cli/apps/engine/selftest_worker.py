"""Prefills of a self-test with their questions, asked by the workers of an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.model_choice.known_model import inspect_model
from esa_cli.apps.cli.model_choice.model_place import ModelPlace
from esa_cli.apps.cli.options.options import ModelOptions, load_plugins
from esa_cli.apps.cli.output.progress_display import SelftestDisplay
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.task_engine import TaskEngine
from esa_cli.evaluation.selftest.resumed_rows import KEY
from esa_cli.evaluation.selftest.run_plan import SelftestSettings
from esa_cli.evaluation.tasks import Haystack
from esa_cli.models.loading.quiet_transformers import quiet_transformers
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.jsonl import Journal
from esa_cli.system.work_shard import WorkShard

if TYPE_CHECKING:
    from esa_cli.evaluation.selftest.selftest_run import SelftestRun
    from esa_cli.qa.answering.session import Session

Row = dict[str, Any]


@dataclass
class PrefillRows:
    """The `SelftestEvents` of one prefill, as they are sent back."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def reading(self, test: str, length: int, names: Sequence[str], total: int) -> Any:
        return lambda done, all_: None

    def row(self, row: Row) -> None:
        self.rows.append(row)

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass
class NumberedPrefills:
    """Asks the prefills of a run by number. A number below the last one costs making the documents
    again."""

    run: SelftestRun
    session: Session
    _next: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._left = self.run.prefills()

    def __call__(self, number: int) -> PrefillRows | None:
        """The rows of the prefill `number`, from 0; None if there are fewer."""
        self.run.listener = heard = PrefillRows()
        if number < self._next:
            self._left, self._next = self.run.prefills(), 0
        for sample, group in self._left:
            self._next += 1
            if self._next > number:
                self.run.ask(self.session, sample, group)
                return heard
        return None


@dataclass(frozen=True)
class SelftestWorker:
    """Runs single prefills of a self-test.

    Args:
        haystack: name and text of the user's own; None: the generated one.
        rows: of an earlier run, which are not asked again. dtype: that of the header of the rows,
            whatever hardware the worker has.
    """

    preset: Preset
    model: ModelOptions
    settings: SelftestSettings
    haystack: tuple[str, str] | None
    shard: WorkShard
    rows: Sequence[Row]
    dtype: str

    @contextmanager
    def open(self, reporter: Reporter) -> Iterator[Callable[[int], PrefillRows | None]]:
        load_plugins(self.model.plugins)
        place = ModelPlace.of(replace(self.model, dtype=self.dtype))
        known = inspect_model(self.preset, place, reporter)
        from esa_cli.evaluation.selftest.selftest_run import SelftestRun

        hay = Haystack.chronicle(self.settings.seed)
        if self.haystack is not None:
            hay = Haystack.of(*self.haystack)
        journal = Journal(None, {}, same=(), key=KEY)
        for row in self.rows:
            journal.add(row)
        with quiet_transformers():
            run = SelftestRun(
                known.load(reporter), self.preset, self.settings, hay, journal, PrefillRows(),
                shard=self.shard,
            )  # fmt: skip
            with run.session() as session:
                yield NumberedPrefills(run, session)


def selftest_by(
    engine: TaskEngine,
    worker: SelftestWorker,
    journal: Journal,
    listener: SelftestDisplay,
    until: float | None,
) -> bool:
    """Asks what has no row in the journal yet; False when the time limit came first."""
    ended = late = False

    def numbers() -> Iterator[int]:
        nonlocal late
        for number in count():
            late = until is not None and time.monotonic() > until
            if ended or late:
                return
            yield number

    said: set[str] = set()
    for _, found in engine.run(worker, numbers()):
        if found is None:
            ended = True
            continue
        for text in found.notes:
            if text not in said:
                listener.note(text)
                said.add(text)
        for row in found.rows:
            journal.add(row)
            listener.row(row)
    return ended or not late
