"""The thread that ingests and answers, and the queue before it.

An asker answers one question at a time. A few jobs wait, in order; a job that is cancelled ends
when it next calls `report_progress`, `add_text` or `check`, or is never begun. Knows nothing about
HTTP.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from esa_cli.errors import EsaError

Event = tuple[str, Any]
"""("begun", None), ("reading", (tokens, of)), ("text", piece), then ("done", result) or ("error",
exception)."""
READING_EVERY_S = 1.0
"""The least seconds between two events of reading."""


class QueueFullError(Exception):
    """No more jobs may wait."""


class RefusedError(Exception):
    """A client asked for what it cannot get; it is told so, and no log needs it."""


class JobCancelledError(Exception):
    """The client no longer waits for this answer."""


class Job:
    """One answer to be given.

    Args:
        answer: gives it, and calls the job's `report_progress` and `add_text`.
        tell: called with every event, in the worker's thread.
    """

    def __init__(self, answer: Answer, tell: Callable[[Event], None]) -> None:
        self.answer, self.tell = answer, tell
        self._cancelled = threading.Event()
        self.ingesting: tuple[int, int] | None = None
        """During the ingestion of a document: its tokens done, and all of them."""
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
            self.tell(("done", self.answer(self)))
        except JobCancelledError:
            pass
        except Exception as error:
            if not isinstance(error, EsaError | RefusedError):
                traceback.print_exc()
            self.tell(("error", error))
        except BaseException as error:  # SystemExit of a library, say: the thread must live on
            traceback.print_exc()
            self.tell(("error", RuntimeError(f"the answer ended with {type(error).__name__}")))


Answer = Callable[[Job], object]
"""Gives a Reply, or what another kind of job gives."""


class Worker:
    """Runs jobs one after the other in its own thread.

    Args:
        max_waiting: jobs that may wait besides the one that runs.
    """

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
        """Cancels all jobs; waits at most that long for the running one to end."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            if self._running is not None:
                self._running.cancel()
            self._changed.notify()
        self._thread.join(wait_s)

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
