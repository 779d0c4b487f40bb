"""A forked child that does one request after another, with limits of memory and time."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

import psutil
from forked import ended

END_S = 0.2
"""Seconds in which a child may end before it is killed."""


class Outcome(NamedTuple):
    """What a request came to: what the work returned, or `hang` or `died`; and its seconds."""

    said: str
    seconds: float


class LimitedChild:
    """Does `work(request)` in a child, which is forked again after a hang or a death.

    Args:
        memory: bytes that the child may take beside what this process has; of no effect but on
            Linux. seconds: after so many, a request is a hang.
    """

    def __init__(self, work: Callable[[bytes], str], memory: int, seconds: float) -> None:
        self.work, self.memory, self.seconds = work, memory, seconds
        self._number, self._pipe = 0, None  # type: tuple[int, Connection | None]

    def do(self, request: bytes) -> Outcome:
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        started = time.perf_counter()
        self._pipe.send_bytes(request)
        said = "hang"
        try:
            if self._pipe.poll(self.seconds):
                said = self._pipe.recv_bytes().decode("utf-8", "replace")
        except EOFError:
            said = "died"
        if said in ("hang", "died"):
            said = f"{said}: {self.end()}"
        return Outcome(said, time.perf_counter() - started)

    def end(self) -> int:
        """Ends the child; its exit code, below 0 a signal's number."""
        if self._pipe is None:
            return 0
        self._pipe.close()
        self._pipe = None
        until = time.monotonic() + END_S
        while time.monotonic() < until:
            if os.waitid(os.P_PID, self._number, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return ended(self._number)
            time.sleep(0.01)
        os.kill(self._number, 9)
        return ended(self._number)

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._number = os.fork()
        if self._number == 0:
            ours.close()
            self._serve(theirs)
        theirs.close()
        self._pipe = ours

    def _serve(self, pipe: Connection) -> None:
        code = 1
        try:
            if sys.platform == "linux":
                most = psutil.Process().memory_info().vms + self.memory
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
            while True:
                pipe.send_bytes(self.work(pipe.recv_bytes()).encode("utf-8", "backslashreplace"))
        except (EOFError, OSError):
            code = 0
        finally:
            os._exit(code)
