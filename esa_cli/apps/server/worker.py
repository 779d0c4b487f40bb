"""Runs the jobs of a server in one thread, one job at a time, and queues the other jobs.

A running job that is cancelled ends when it next reports progress or sends text of its answer."""

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
"""An event of a job: ("begun", None), ("reading", (done tokens, all tokens)) or ("text", piece),
and at last ("done", result) or ("error", exception)."""
READING_EVERY_S = 1.0
"""Minimum seconds between two "reading" events of a job."""
END_WITHIN_S = 30.0
"""Seconds to wait for the running answer when the server shuts down."""


class JobQueueFullError(Exception):
    """The queue of a `JobThread` is full, so that a further job is refused."""


class JobCancelledError(Exception):
    """A job was cancelled, because its client no longer waits for the result."""


class WorkerJob:
    """Computes a result in a `JobThread`, and passes events to the function `send_event`."""

    def __init__(self, compute_result: JobFunction, send_event: Callable[[Event], None]) -> None:
        self.compute_result, self.send_event = compute_result, send_event
        self.cancelled = threading.Event()
        self._reported_s = time.monotonic()

    def report_progress(self, done_tokens: int, all_tokens: int) -> None:
        """Sends the count of ingested tokens at most once per second. Raises JobCancelledError."""
        self.raise_if_cancelled()
        if done_tokens < all_tokens and time.monotonic() - self._reported_s >= READING_EVERY_S:
            self._reported_s = time.monotonic()
            self.send_event(("reading", (done_tokens, all_tokens)))

    def send_answer_text(self, answer_piece: str) -> None:
        """Sends the next piece of the answer, unless it is empty. Raises JobCancelledError."""
        self.raise_if_cancelled()
        if answer_piece:
            self.send_event(("text", answer_piece))

    def raise_if_cancelled(self) -> None:
        """Raises JobCancelledError if the job has been cancelled."""
        if self.cancelled.is_set():
            raise JobCancelledError

    def run_job(self) -> None:
        """Runs the job, and sends its result or its error as the last event."""
        self._reported_s = time.monotonic()
        try:
            self.raise_if_cancelled()
            self.send_event(("begun", None))
            event: Event = ("done", self.compute_result(self))
        except JobCancelledError:
            return
        except (EsaError, ApiError) as error:
            event = ("error", error)
        except BaseException as error:  # even SystemExit, as the thread must live on
            traceback.print_exc()
            is_exit = not isinstance(error, Exception)
            event = ("error", RuntimeError(type(error).__name__) if is_exit else error)
        self.send_event(event)


JobFunction = Callable[[WorkerJob], object]


class JobThread:
    """Runs jobs one after the other in one thread, while at most `max_waiting` other jobs wait. All
    methods of a `JobThread` must be called by the same thread."""

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._pool = ThreadPoolExecutor(1, "esa-answers")
        self._jobs: dict[WorkerJob, Future[None]] = {}

    def count_unfinished_jobs(self) -> int:
        return sum(not future.done() for future in self._jobs.values())

    @contextlib.contextmanager
    def queue_job_with_events(self, compute_result: JobFunction) -> Iterator[asyncio.Queue[Event]]:
        """Queues a job, yields its events, and at the end cancels it. Raises JobQueueFullError."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()

        def put_event_into_queue(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
                loop.call_soon_threadsafe(events.put_nowait, event)

        if self.count_unfinished_jobs() > self.max_waiting:
            raise JobQueueFullError
        job = WorkerJob(compute_result, put_event_into_queue)
        try:
            future = self._jobs[job] = self._pool.submit(job.run_job)
        except RuntimeError:  # the worker is closed
            raise JobQueueFullError from None
        try:
            yield events
        finally:
            job.cancelled.set()
            future.cancel()  # by now another job may have dropped it from the table
            self._jobs = {job: future for job, future in self._jobs.items() if not future.done()}

    def close(self, wait_s: float = END_WITHIN_S) -> None:
        """Cancels all jobs and waits for the running job. If the running job does not end within
        `wait_s` seconds, the process is ended, as a model in use must not be closed."""
        for job in self._jobs:
            job.cancelled.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        running = [future for future in self._jobs.values() if not future.cancelled()]
        if wait(running, wait_s).not_done:
            print(f"esa: the answer did not end within {wait_s:g} s", file=sys.stderr, flush=True)
            os._exit(BUG)
