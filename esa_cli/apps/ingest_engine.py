"""Ingests documents for `esa ingest` in this process, in several processes, or on a Ray cluster.

Each worker process loads the model when it gets its first document. If a worker process dies, `esa
ingest` ends with an error, but keeps the ingested documents, and continues when it is run again."""

from __future__ import annotations

import logging
import math
import os
import pickle
import re
import signal
import socket
import sys
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import active_children, connection, get_context, parent_process
from pathlib import Path
from typing import Any

from esa_cli.apps.cli.options.options import ModelOptions, load_plugin_files
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import Document
from esa_cli.errors import EsaError, ResourceError, UsageError, get_first_line
from esa_cli.qa.api import Esa
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.machine import is_out_of_memory_error

MEMORY_HINT = "use fewer --workers, as memory may be short; finished documents are stored"
CONNECT_S = 5.0
"""Maximum seconds to connect to a Ray cluster; Ray itself would try for minutes."""
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


IngestTask = tuple[int, Document]
IngestOutcome = tuple[int, IngestRow, list[str]]
"""The index of an ingested document, its JSON object, and the warnings about the document."""


@dataclass
class IngestWorker:
    """Ingests documents in a worker process, whose current directory becomes `folder`."""

    preset: Preset
    model: ModelOptions
    kv_dtype: str
    library: Path
    folder: str
    esa: Esa | None = None
    reporter: Reporter | None = None

    def run_ingest_task(self, task: IngestTask) -> IngestOutcome:
        """Ingests a document; returns the document's JSON object and warnings. Raises EsaError."""
        number, document = task
        reporter = self.reporter = self.reporter or Reporter(quiet=True)
        reporter.hold_warnings(even_if_quiet=True)
        try:
            self.esa = self.esa or self._open_model(reporter)
            row = ingest_document(self.esa, document, self.kv_dtype, reporter)
        except Exception as error:
            if isinstance(error, EsaError) or not is_out_of_memory_error(error):
                raise
            raise ResourceError("a worker process ran out of memory", MEMORY_HINT) from None
        return number, row, reporter.release_warnings()

    def _open_model(self, reporter: Reporter) -> Esa:
        from esa_cli.apps.cli.model_and_documents import open_model
        from esa_cli.storage.library import Library

        try:
            os.chdir(self.folder)
        except OSError as error:
            raise UsageError(
                f"a worker process cannot use the folder {self.folder}: {error.strerror}",
                "start `esa ingest` in a folder that all machines of the cluster share",
            ) from None
        load_plugin_files(self.model.plugins)
        self._opened = open_model(
            self.preset, self.model, reporter, keep=True, kv_dtype=self.kv_dtype,
            library=Library(self.library),
        )  # fmt: skip
        return self._opened.__enter__()


def ingest_in_parallel(
    worker: IngestWorker, documents: Sequence[Document], reporter: Reporter,
    worker_count: int | None, *, on_ray: bool,
) -> list[IngestRow]:  # fmt: skip
    """Ingests documents in several processes; returns the JSON object of each document.
    Raises EsaError. ResourceError: a process died. UsageError: the Ray cluster cannot be used."""
    show = reporter.show_spinner if reporter.live else reporter.show_note_if_due
    rows = dict[int, IngestRow]()
    tasks = sorted(enumerate(documents), key=lambda task: -len(task[1].text))
    if on_ray:
        outcomes = ingest_on_ray_cluster(worker, tasks, worker_count, reporter)
    else:
        outcomes = ingest_in_processes(worker, tasks, worker_count or 1, reporter)
    with closing(outcomes):
        for number, row, warnings in outcomes:
            for text in warnings:
                reporter.warn(text)
            rows[number] = row
            show(f"{len(rows)} of {len(documents)} documents")
    return [rows[number] for number in range(len(documents))]


_worker: IngestWorker
"""The worker of this process, where `ingest_in_processes` has started the process."""


def ingest_in_processes(
    worker: IngestWorker, tasks: Sequence[IngestTask], worker_count: int, reporter: Reporter
) -> Generator[IngestOutcome, None, None]:
    """Ingests documents in processes of this machine, and yields the result of each document."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    threads = max(1, cores // worker_count)
    reporter.show_note(f"esa: {worker_count} workers, {threads} cores each", dim=False)
    # The worker is a pickle, as unpickling imports torch, which reads OMP_NUM_THREADS then.
    about = pickle.dumps(worker), threads
    pool = ProcessPoolExecutor(worker_count, get_context("spawn"), _set_up_worker_process, about)
    try:
        for future in as_completed([pool.submit(_ingest_with_worker, task) for task in tasks]):
            yield future.result()
    except BrokenProcessPool as error:
        raise ResourceError("a worker process died", MEMORY_HINT) from error
    except BaseException:
        for child in active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


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


def ingest_on_ray_cluster(
    worker: IngestWorker, tasks: Sequence[IngestTask], actor_count: int | None, reporter: Reporter
) -> Generator[IngestOutcome, None, None]:
    """Ingests in Ray actors, one per GPU or machine; starts a Ray cluster without $RAY_ADDRESS."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.exceptions import RayActorError, RayTaskError
    from ray.util import ActorPool

    try:
        address = os.environ.get("RAY_ADDRESS") or "local"  # "" joins any cluster here
        if host := re.fullmatch(r"(?:ray://)?([^:/]+):([0-9]+)", address):
            socket.create_connection((host[1], int(host[2])), CONNECT_S).close()
        ray.init(
            address, log_to_driver=False, logging_level=logging.CRITICAL, include_dashboard=False
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"the Ray cluster cannot be used: {get_first_line(error)}",
            "check RAY_ADDRESS, or unset it to use this machine alone",
        ) from error
    try:
        hosts = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        device = worker.model.device
        gpus = 0 if device == "cpu" else sum(int(host.get("GPU", 0)) for host in hosts)
        if not gpus and device.startswith("cuda"):
            raise ResourceError("the Ray cluster has no GPU", f"leave out --device {device}")
        count = actor_count or gpus or len(hosts)
        cores = min(host.get("CPU", 0) for host in hosts) / math.ceil(count / len(hosts))
        share = {"num_cpus": math.floor(cores) if cores >= 1 else round(cores, 3)}
        share |= {"num_gpus": min(1.0, gpus / count)} if gpus else {}
        reporter.show_note(f"esa: ray: {count} workers, each {share}", dim=False)
        kind = ray.remote(IngestWorker).options(max_restarts=0, **share)
        settings = worker.preset, worker.model, worker.kv_dtype, worker.library, worker.folder
        pool = ActorPool([kind.remote(*settings) for _ in range(count)])
        yield from pool.map_unordered(lambda actor, task: actor.run_ingest_task.remote(task), tasks)
    except RayTaskError as error:
        raise error.cause from None
    except RayActorError as error:
        reason = get_first_line(error)
        raise ResourceError(f"a worker process died: {reason}", MEMORY_HINT) from error
    finally:
        ray.shutdown()
