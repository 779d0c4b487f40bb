"""The records of an `esa bench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.commands.bench_request import BenchRequest
from esa_cli.errors import LengthError

if TYPE_CHECKING:
    from esa_cli.apps.cli.commands.bench_output import NoRoom
    from esa_cli.apps.cli.model_choice.known_model import KnownModel
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.bench import BenchRecord
    from esa_cli.evaluation.bench.bench_runner import TaskSelection
    from esa_cli.qa.answering.session import Session
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.system.jsonl import Journal
    from esa_cli.system.progress import Progress


@dataclass(frozen=True)
class BenchRun:
    """Asks what has no row in the journal, method by method.

    Args:
        made: presets by method. places: of each record, by task and id. until: by
            `time.monotonic`. left_out: gets what has no room.
    """

    request: BenchRequest
    order: TaskSelection
    made: dict[str, Preset]
    known: KnownModel
    journal: Journal
    reporter: Reporter
    places: Mapping[tuple[str, str], int]
    until: float | None
    left_out: list[NoRoom]

    def run(self) -> bool:
        """False when the time was up before the end."""
        from esa_cli.evaluation.bench.bench_runner import lacks_answers

        settings = {name: self.order.settings(name, one) for name, one in self.made.items()}
        records = chain.from_iterable(self.order.shard_documents())
        if not lacks_answers(records, settings, self.journal):
            return True
        return self._here(settings)

    def _here(self, settings: Mapping[str, Any]) -> bool:
        from esa_cli.models.loading.quiet_transformers import quiet_transformers
        from esa_cli.qa.answering.session import Session

        with quiet_transformers():
            loaded = self.known.load(self.reporter)
        self.reporter.settle()
        host = loaded.model, loaded.tokenizer, self.request.preset, loaded.cache
        with quiet_transformers(), Session(*host) as session:
            return all(self._ask(session, method, settings[method]) for method in self.made)

    def _ask(self, session: Session, method: str, settings: Any) -> bool:
        """Asks all records by one method."""
        from esa_cli.apps.cli.output import progress_display as progress
        from esa_cli.evaluation.bench.bench_runner import run as ask_all
        from esa_cli.evaluation.bench.session_asker import record_asker

        def reading(record: BenchRecord) -> Progress:
            place = f"{self.places[record.task, record.id]} of {len(self.places)}"
            title = f"{method}: {record.task}, record {place}"
            return progress.token_progress(self.reporter, title)

        def no_room(record: BenchRecord, error: LengthError) -> None:
            self._leave_out(method, record, error.message)

        return ask_all(
            chain.from_iterable(self.order.shard_documents()),
            record_asker(session, method, self.made[method], reading),
            self.order.benchmark.score,
            self.journal,
            method=method,
            settings=settings,
            until=self.until,
            on_left_out=no_room,
        )

    def _leave_out(self, method: str, record: BenchRecord, why: str) -> None:
        from esa_cli.apps.cli.commands.bench_output import NoRoom

        self.left_out.append(NoRoom(method, record.task, record.id, why))
        self.reporter.settle()
        self.reporter.warn(f"esa: {method}: {record.task}, {record.id} left out: {why}")
