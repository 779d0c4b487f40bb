"""The one thread that reads and answers, and the queue before it.

An asker serves one question at a time. Jobs wait in order, only so many of them; a job that nobody
waits for any more ends at its next sign of life, or is never begun. Knows nothing about HTTP.
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
from esa_cli.qa.reply import Reply

Event = tuple[str, Any]
"""("begun", None), ("text", piece), then ("done", Reply) or ("error", exception)."""


class Full(Exception):
    """The queue has no more places."""


class Cancelled(Exception):
    """Nobody waits for this answer any more."""


class Job:
    """One answer to be given.

    Args:
        answer: gives it, calling the job's `read` and `hear`. tell: hears every event, in the
            worker.
    """

    def __init__(self, answer: Answer, tell: Callable[[Event], None]) -> None:
        self.answer, self.tell = answer, tell
        self._cancelled = threading.Event()
        self.reading: tuple[int, int] | None = None
        """While a document is being read: its tokens that are, and all of them."""

    def cancel(self) -> None:
        """Ends it at its next sign of life, or before it begins."""
        self._cancelled.set()

    def read(self, done: int, total: int) -> None:
        """Hears how far a document is read. Raises Cancelled."""
        self.reading = (done, total) if done < total else None
        self._check()

    def hear(self, piece: str) -> None:
        """Hears a piece of the answer. Raises Cancelled."""
        self._check()
        self.tell(("text", piece))

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    def run(self) -> None:
        if self._cancelled.is_set():
            return
        self.tell(("begun", None))
        try:
            self.tell(("done", self.answer(self)))
        except Cancelled:
            pass
        except Exception as error:
            if not isinstance(error, EsaError):
                traceback.print_exc()
            self.tell(("error", error))


Answer = Callable[[Job], Reply]


class Worker:
    """Runs jobs one after the other in a thread of its own.

    Args:
        places: jobs that may wait besides the one that runs.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._closed = False
        self._each = 1.0
        self._ready = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="esa-answers", daemon=True)
        self._thread.start()

    def load(self) -> int:
        """Jobs that wait or run."""
        with self._ready:
            return len(self._waiting) + (self._running is not None)

    def patience(self) -> int:
        """Seconds after which a place should be free, from how long jobs took."""
        return max(1, math.ceil(self._each * self.load() / 2))

    def submit(self, job: Job) -> None:
        """Queues the job. Raises Full."""
        with self._ready:
            if self._closed or self.load() > self.places:
                raise Full
            self._waiting.append(job)
            self._ready.notify()

    def cancel(self, job: Job) -> None:
        """Ends the job at its next sign of life, or takes it out of the queue."""
        job.cancel()
        with self._ready, contextlib.suppress(ValueError):
            self._waiting.remove(job)

    def close(self, wait_s: float) -> None:
        """Cancels everything, and waits that long for the thread to end what it does."""
        with self._ready:
            self._closed = True
            self._waiting.clear()
            if self._running is not None:
                self._running.cancel()
            self._ready.notify()
        self._thread.join(wait_s)

    def _work(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                self._running = job = self._waiting.popleft()
            started = time.monotonic()
            job.run()
            with self._ready:
                self._running = None
                self._each += 0.3 * (time.monotonic() - started - self._each)
