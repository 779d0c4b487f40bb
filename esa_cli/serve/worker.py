"""The one thread that reads and answers, and the queue before it.

An asker serves one question at a time. Jobs wait in order, only so many of them; a job that nobody
waits for any more ends at its next piece, or is never begun. Knows nothing about HTTP.
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

from ..errors import EsaError
from ..reply import Reply

Event = tuple[str, Any]
"""("begun", None), ("text", piece), then ("done", Reply) or ("error", exception)."""
Answer = Callable[[Callable[[str], None]], Reply]


class Full(Exception):
    """The queue has no more places."""


class Cancelled(Exception):
    """Nobody waits for this answer any more."""


class Job:
    """One answer to be given.

    Args:
        answer: gives it, calling back with each piece. tell: hears every event, in the worker.
    """

    def __init__(self, answer: Answer, tell: Callable[[Event], None]) -> None:
        self.answer, self.tell = answer, tell
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Ends it at its next piece, or before it begins."""
        self._cancelled.set()

    def _hear(self, piece: str) -> None:
        if self._cancelled.is_set():
            raise Cancelled
        self.tell(("text", piece))

    def run(self) -> None:
        if self._cancelled.is_set():
            return
        self.tell(("begun", None))
        try:
            self.tell(("done", self.answer(self._hear)))
        except Cancelled:
            pass
        except Exception as error:
            if not isinstance(error, EsaError):
                traceback.print_exc()
            self.tell(("error", error))


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
        """Ends the job at its next piece, or takes it out of the queue."""
        job.cancel()
        with self._ready, contextlib.suppress(ValueError):
            self._waiting.remove(job)

    def close(self, wait_s: float) -> None:
        """Cancels everything, and waits for the thread that long: a reading cannot be ended."""
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
