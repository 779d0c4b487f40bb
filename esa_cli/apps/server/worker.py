"""The thread that ingests and answers, one job at a time, and the queue before it.

A cancelled job never begins, or ends when it next reports progress or adds text.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from esa_cli.apps.server.wire import ApiError
from esa_cli.errors import BUG, EsaError

Event = tuple[str, Any]
"""("begun", None), ("reading", (tokens, total)) and ("text", piece), then ("done", result) or
("error", exception)."""
READING_EVERY_S = 1.0
"""Minimum seconds between two "reading" events."""


class QueueFullError(Exception):
    """The queue has no place for another job."""


class JobCancelledError(Exception):
    """The client has given up this job."""


class Job:
    """One answer to be computed by the worker's thread. `answer` calls `report_progress` and
    `add_text`; `send_event` gets every event."""

    def __init__(self, answer: Answer, send_event: Callable[[Event], None]) -> None:
        self.answer, self.send_event = answer, send_event
        self.cancelled = threading.Event()
        self._reported_s = time.monotonic()

    def report_progress(self, done: int, total: int) -> None:
        """Sends how far a document is ingested, at most once a second. Raises JobCancelledError."""
        self.raise_if_cancelled()
        if done < total and time.monotonic() - self._reported_s >= READING_EVERY_S:
            self._reported_s = time.monotonic()
            self.send_event(("reading", (done, total)))

    def add_text(self, piece: str) -> None:
        """Sends a piece of the answer. Raises JobCancelledError."""
        self.raise_if_cancelled()
        self.send_event(("text", piece))

    def raise_if_cancelled(self) -> None:
        """Raises JobCancelledError if the job was cancelled."""
        if self.cancelled.is_set():
            raise JobCancelledError

    def run(self) -> None:
        """Computes the answer, and sends the result or the error as the last event."""
        self._reported_s = time.monotonic()
        try:
            self.raise_if_cancelled()
            self.send_event(("begun", None))
            event: Event = ("done", self.answer(self))
        except JobCancelledError:
            return
        except (EsaError, ApiError) as error:
            event = ("error", error)
        except BaseException as error:  # SystemExit of a library, too: the thread must live on
            traceback.print_exc()
            is_exit = not isinstance(error, Exception)
            event = ("error", RuntimeError(type(error).__name__) if is_exit else error)
        self.send_event(event)


Answer = Callable[[Job], object]


class Worker:
    """Runs jobs one after the other in a thread; `max_waiting` may wait besides the running one.
    All methods must be called by the same thread."""

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._pool = ThreadPoolExecutor(1, "esa-answers")
        self._jobs: dict[Job, Future[None]] = {}

    def count_jobs(self) -> int:
        """Returns the number of jobs that wait or run."""
        return sum(not future.done() for future in self._jobs.values())

    @contextlib.contextmanager
    def queue_job(self, answer: Answer) -> Iterator[asyncio.Queue[Event]]:
        """Queues a job and yields its events; cancels it at the end. Raises QueueFullError."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()

        def send_event(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
                loop.call_soon_threadsafe(events.put_nowait, event)

        job = Job(answer, send_event)
        self.submit(job)
        try:
            yield events
        finally:
            job.cancelled.set()
            self._jobs[job].cancel()
            self._jobs = {job: future for job, future in self._jobs.items() if not future.done()}

    def submit(self, job: Job) -> None:
        """Queues a job. Raises QueueFullError."""
        if self.count_jobs() > self.max_waiting:
            raise QueueFullError
        try:
            self._jobs[job] = self._pool.submit(job.run)
        except RuntimeError:  # the worker is closed
            raise QueueFullError from None

    def close(self, wait_s: float) -> None:
        """Cancels all jobs and waits for the running one. A job that does not end in time ends the
        process, as its model must not be closed meanwhile."""
        for job in self._jobs:
            job.cancelled.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        running = [future for future in self._jobs.values() if not future.cancelled()]
        if wait(running, wait_s).not_done:
            print(f"esa: the answer did not end within {wait_s:g} s", file=sys.stderr, flush=True)
            os._exit(BUG)
