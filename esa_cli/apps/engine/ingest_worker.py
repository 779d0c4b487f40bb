"""Documents read into the library by the workers of an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from esa_cli.apps.cli.model_choice.preflight import Preflight
from esa_cli.apps.cli.options.options import ModelOptions, load_plugins
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.ingest_report import IngestReport, ingest_document
from esa_cli.apps.engine.ingest_tasks import IngestTask, IngestTasks, IngestValue
from esa_cli.apps.engine.task_engine import TaskEngine
from esa_cli.documents.document import Document
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage.library import Library
from esa_cli.system.machine import time_text


@dataclass(frozen=True)
class IngestWorker:
    """Prefills documents into one library.

    Args:
        rows: as `esa ingest --rows`. library: its folder, which all machines share.
    """

    preset: Preset
    model: ModelOptions
    rows: str
    library: Path

    @contextmanager
    def open(self, reporter: Reporter) -> Iterator[Callable[[IngestTask], IngestValue]]:
        from esa_cli.apps.cli.model_choice.open_esa import opened

        load_plugins(self.model.plugins)
        with opened(
            self.preset, self.model, reporter, keep=True, rows=self.rows,
            library=Library(self.library),
        ) as esa:  # fmt: skip

            def work(task: IngestTask) -> IngestValue:
                if isinstance(task.wanted, Document):
                    return ingest_document(esa, task.wanted, self.rows, reporter)
                index = esa.documents.index
                assert index is not None, "only indexes are divided"
                return index.identity if task.wanted is None else index.records(task.wanted)

            yield work


def ingest_by(
    engine: TaskEngine,
    worker: IngestWorker,
    documents: Sequence[Document],
    reporter: Reporter,
    ready: Preflight,
) -> list[IngestReport]:
    """The documents in their order, ingested by the engine's workers.

    Args:
        ready: of the worker's preset and model.
    """
    show = reporter.waiting if reporter.live else reporter.throttled()
    started = time.monotonic()
    with IngestTasks(documents, engine.workers, ready, Library(worker.library)) as work:
        for number, value in engine.run(worker, work.tasks()):
            work.take(number, value)
            spent = max(time.monotonic() - started, 1e-9)
            text = f"{len(work.reports)} of {len(documents)} documents, {work.tokens:,} tokens"
            left = f", {time_text(spent / work.share - spent)} left" if work.share else ""
            show(f"{text}, {work.tokens / spent:,.0f} tokens/s{left}")
        assert len(work.reports) == len(documents), "every document must have been ingested"
        return [work.reports[number] for number in sorted(work.reports)]
