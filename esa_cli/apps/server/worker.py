"""The thread that ingests and answers, and the queue before it.

An `Esa` answers one question at a time. A few jobs wait, in order; a job that is cancelled ends
when it next calls `report_progress`, `add_text` or `check`, or is never begun. Knows nothing about
HTTP.
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
    """The client has given this answer up."""


class Job:
    """One answer to be given by `answer`, which calls the job's `report_progress` and `add_text`;
    `tell` is called with every event, in the worker's thread."""

    def __init__(self, answer: Answer, tell: Callable[[Event], None]) -> None:
        self.answer, self.tell = answer, tell
        self.cancelled = threading.Event()
        self._reported_s = time.monotonic()

    def report_progress(self, done: int, total: int) -> None:
        """Tells now and then how far a document is ingested. Raises JobCancelledError."""
        self.check()
        if done < total and time.monotonic() - self._reported_s >= READING_EVERY_S:
            self._reported_s = time.monotonic()
            self.tell(("reading", (done, total)))

    def add_text(self, piece: str) -> None:
        """Tells a piece of the answer. Raises JobCancelledError."""
        self.check()
        self.tell(("text", piece))

    def check(self) -> None:
        """Raises JobCancelledError if the job was cancelled."""
        if self.cancelled.is_set():
            raise JobCancelledError

    def run(self) -> None:
        self._reported_s = time.monotonic()
        try:
            self.check()
            self.tell(("begun", None))
            event: Event = ("done", self.answer(self))
        except JobCancelledError:
            return
        except (EsaError, RefusedError) as error:
            event = ("error", error)
        except Exception as error:
            traceback.print_exc()
            event = ("error", error)
        except BaseException as error:  # SystemExit of a library: the thread must live on
            traceback.print_exc()
            event = ("error", RuntimeError(f"the answer ended with {type(error).__name__}"))
        self.tell(event)


Answer = Callable[[Job], object]
"""Gives a Reply, or what another kind of job gives."""


class Worker:
    """Runs jobs one after the other in its own thread; `max_waiting` may wait besides the one that
    runs. Its methods are called by one thread."""

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._pool = ThreadPoolExecutor(1, "esa-answers")
        self._jobs: dict[Job, Future[None]] = {}

    def load(self) -> int:
        """Jobs that wait or run."""
        return sum(not future.done() for future in list(self._jobs.values()))

    @contextlib.contextmanager
    def queued(self, answer: Answer) -> Iterator[asyncio.Queue[Event]]:
        """The events of a job in the queue, in this event loop; it is cancelled at the end. Raises
        QueueFullError."""
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Event] = asyncio.Queue()

        def tell(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
                loop.call_soon_threadsafe(inbox.put_nowait, event)

        job = Job(answer, tell)
        self.submit(job)
        try:
            yield inbox
        finally:
            job.cancelled.set()
            if future := self._jobs.get(job):
                future.cancel()
            self._jobs = {job: future for job, future in self._jobs.items() if not future.done()}

    def submit(self, job: Job) -> None:
        """Queues the job. Raises QueueFullError."""
        if self.load() > self.max_waiting:
            raise QueueFullError
        try:
            self._jobs[job] = self._pool.submit(job.run)
        except RuntimeError:  # it is closed
            raise QueueFullError from None

    def close(self, wait_s: float) -> None:
        """Cancels all jobs, and waits for the running one. One that does not end in time ends the
        process: what it writes survives that, but not that its model is closed under it."""
        for job in self._jobs:
            job.cancelled.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        running = [future for future in self._jobs.values() if not future.cancelled()]
        if wait(running, wait_s).not_done:
            print(f"esa: the answer did not end within {wait_s:g} s", file=sys.stderr, flush=True)
            os._exit(BUG)
