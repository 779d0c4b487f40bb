"""The thread that ingests and answers, and the queue before it.

An `Esa` answers one question at a time. A few jobs wait, in order; a job that is cancelled ends
when it next calls `report_progress`, `add_text` or `check`, or is never begun. Knows nothing about
HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from esa_cli.errors import BUG, EsaError

Event = tuple[str, Any]
"""("begun", None), ("reading", (tokens, of)), ("text", piece), then ("done", result) or ("error",
exception)."""
READING_EVERY_S = 1.0
"""The least seconds between two events of reading."""


class QueueFullError(Exception):
    """No more jobs may wait."""


class RefusedError(Exception):
    """A client asked for what it cannot get; no log needs it."""


class JobCancelledError(Exception):
    """The client no longer waits for this answer."""


class Job:
    """One answer to be given by `answer`, which calls the job's `report_progress` and `add_text`;
    `tell` is called with every event, in the worker's thread."""

    def __init__(self, answer: Answer, tell: Callable[[Event], None]) -> None:
        self.answer, self.tell = answer, tell
        self._cancelled = threading.Event()
        self.ingesting: tuple[int, int] | None = None  # tokens done and all, during an ingestion
        self._told_s = time.monotonic()

    def cancel(self) -> None:
        self._cancelled.set()

    def report_progress(self, done: int, total: int) -> None:
        """Notes how far a document is ingested, and tells it now and then. Raises
        JobCancelledError."""
        self.ingesting = (done, total) if done < total else None
        self.check()
        if self.ingesting and time.monotonic() - self._told_s >= READING_EVERY_S:
            self._told_s = time.monotonic()
            self.tell(("reading", self.ingesting))

    def add_text(self, piece: str) -> None:
        """Tells a piece of the answer. Raises JobCancelledError."""
        self.check()
        self.tell(("text", piece))

    def check(self) -> None:
        """Raises JobCancelledError if the job was cancelled."""
        if self._cancelled.is_set():
            raise JobCancelledError

    def run(self) -> None:
        if self._cancelled.is_set():
            return
        self._told_s = time.monotonic()
        self.tell(("begun", None))
        try:
            event: Event = ("done", self.answer(self))
        except JobCancelledError:
            return
        except (EsaError, RefusedError) as error:
            event = ("error", error)
        except BaseException as error:  # also SystemExit of a library: the thread must live on
            traceback.print_exc()
            kind = type(error).__name__
            is_usual = isinstance(error, Exception)
            event = ("error", error if is_usual else RuntimeError(f"the answer ended with {kind}"))
        self.tell(event)


Answer = Callable[[Job], object]
"""Gives a Reply, or what another kind of job gives."""


class Worker:
    """Runs jobs one after the other in its own thread; `max_waiting` may wait besides the one that
    runs."""

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._closed = False
        self._mean_s = 1.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="esa-answers", daemon=True)
        self._thread.start()

    def load(self) -> int:
        """Jobs that wait or run."""
        with self._changed:
            return len(self._waiting) + (self._running is not None)

    def retry_after(self) -> int:
        """Seconds after which another job should be accepted, from how long jobs took."""
        return max(1, math.ceil(self._mean_s * self.load() / 2))

    def submit(self, job: Job) -> None:
        """Queues the job. Raises QueueFullError."""
        with self._changed:
            if self._closed or self.load() > self.max_waiting:
                raise QueueFullError
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        job.cancel()
        with self._changed, contextlib.suppress(ValueError):
            self._waiting.remove(job)

    def close(self, wait_s: float) -> None:
        """Cancels all jobs, and waits for the running one. One that does not end in time ends the
        process: what it writes survives that, but not that its model is closed under it."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            if self._running is not None:
                self._running.cancel()
            self._changed.notify()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            print(f"esa: the answer did not end within {wait_s:g} s", file=sys.stderr, flush=True)
            os._exit(BUG)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                self._running = job = self._waiting.popleft()
            started = time.monotonic()
            job.run()
            with self._changed:
                self._running = None
                self._mean_s += 0.3 * (time.monotonic() - started - self._mean_s)


@contextlib.contextmanager
def queued(worker: Worker, answer: Answer) -> Iterator[tuple[Job, asyncio.Queue[Event]]]:
    """A job in the worker's queue, and its events in this event loop; it is cancelled at the end.
    Raises QueueFullError."""
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Event] = asyncio.Queue()

    def tell(event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(inbox.put_nowait, event)

    job = Job(answer, tell)
    worker.submit(job)
    try:
        yield job, inbox
    finally:
        worker.cancel(job)
