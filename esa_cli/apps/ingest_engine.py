"""Ingests documents for `esa ingest` in this process, or in several processes of this machine.

Each worker process loads the model when it gets its first document. If a worker process dies, `esa
ingest` ends with an error, but keeps the ingested documents, and continues when it is run again."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, connection, get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options.options import ModelOptions, load_plugin_files
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import Document
from esa_cli.errors import EsaError, ResourceError
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.machine import is_out_of_memory_error

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

MEMORY_HINT = "use fewer --workers, as memory may be short; finished documents are stored"
IngestRow = dict[str, Any]
"""A document in the library, as JSON; `read_s` is 0 if the document was already stored."""


def ingest_document(esa: Esa, document: Document, kv_dtype: str, reporter: Reporter) -> IngestRow:
    """Ingests a document, and warns if its KV cache is already stored with another precision."""
    book = esa.ingest(document)
    entry = book.entry
    if entry is not None and entry.kv_format not in (kv_dtype, "index"):
        reporter.warn(
            f"esa: {document.name} is already stored with --rows {entry.kv_format}; "
            f"for --rows {kv_dtype} run `esa library rm {entry.id}` first"
        )
    reporter.clear_spinner()
    return {
        "id": entry.id if entry else None, "name": document.name, "source": document.source,
        "tokens": book.tokens, "bytes": entry.nbytes if entry else None,
        "rows": entry.kv_format if entry else None, "read_s": round(book.read_s, 3),
        "missing": list(document.missing),
    }  # fmt: skip


class WarningCollector(Reporter):
    """Collects the warnings of a worker process instead of printing them."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


IngestTask = tuple[int, Document]
IngestOutcome = tuple[int, IngestRow, list[str]]
"""The index of an ingested document, its JSON object, and the warnings about the document."""


@dataclass
class IngestWorker:
    """Ingests documents in a worker process."""

    preset: Preset
    model: ModelOptions
    kv_dtype: str
    library: Path
    esa: Esa | None = None
    reporter: WarningCollector | None = None

    def run_ingest_task(self, task: IngestTask) -> IngestOutcome:
        """Ingests a document; returns the document's JSON object and warnings. Raises EsaError."""
        number, document = task
        reporter = self.reporter = self.reporter or WarningCollector()
        reporter.texts = []
        try:
            self.esa = self.esa or self._open_model(reporter)
            row = ingest_document(self.esa, document, self.kv_dtype, reporter)
        except Exception as error:
            if isinstance(error, EsaError) or not is_out_of_memory_error(error):
                raise
            raise ResourceError("a worker process ran out of memory", MEMORY_HINT) from None
        return number, row, reporter.texts

    def _open_model(self, reporter: Reporter) -> Esa:
        from esa_cli.apps.cli.model_and_documents import open_model
        from esa_cli.storage.library import Library

        load_plugin_files(self.model.plugins)
        self._opened = open_model(
            self.preset, self.model, reporter, keep=True, kv_dtype=self.kv_dtype,
            library=Library(self.library),
        )  # fmt: skip
        return self._opened.__enter__()


_worker: IngestWorker
"""The worker of this process, where `ingest_in_processes` has started the process."""


def ingest_in_processes(
    worker: IngestWorker, documents: Sequence[Document], worker_count: int, reporter: Reporter
) -> list[IngestRow]:
    """Ingests documents in processes of this machine; returns the JSON object of each document.
    Raises EsaError. ResourceError: a process died."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    threads = max(1, cores // worker_count)
    reporter.show_note(f"esa: {worker_count} workers, {threads} cores each", dim=False)
    show = reporter.show_spinner if reporter.live else reporter.make_throttled_note_printer()
    rows = dict[int, IngestRow]()
    tasks = sorted(enumerate(documents), key=lambda task: -len(task[1].text))
    # The worker is a pickle, as unpickling imports torch, which reads OMP_NUM_THREADS then.
    about = pickle.dumps(worker), threads
    pool = ProcessPoolExecutor(worker_count, get_context("spawn"), _set_up_worker_process, about)
    try:
        for future in as_completed([pool.submit(_ingest_with_worker, task) for task in tasks]):
            number, row, warnings = future.result()
            rows[number] = row
            for text in warnings:
                reporter.warn(text)
            show(f"{len(rows)} of {len(documents)} documents")
    except BrokenProcessPool as error:
        raise ResourceError("a worker process died", MEMORY_HINT) from error
    except BaseException:
        for child in active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return [rows[number] for number in range(len(documents))]


def _set_up_worker_process(pickled_worker: bytes, thread_count: int) -> None:
    """Loads the worker of a process, which ignores Ctrl-C and ends with its parent process."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def exit_when_parent_process_ends() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=exit_when_parent_process_ends, daemon=True).start()
    os.environ.setdefault("OMP_NUM_THREADS", str(thread_count))
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    _worker = pickle.loads(pickled_worker)


def _ingest_with_worker(task: IngestTask) -> IngestOutcome:
    return _worker.run_ingest_task(task)
