"""A tool's work in the worker's thread: its progress, its cancellation, its errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from esa_cli.apps.mcp_server.tool_results import ToolResult
from esa_cli.apps.server.worker import Event, Job, QueueFullError, Worker
from esa_cli.errors import UsageError

EVERY_S = 0.5
"""The shortest time between two reports of progress."""

Report = Callable[[float, float], Awaitable[None]]
"""Called with units done, which only grow, and units in all."""


class ToolJob(Job):
    """A job that tells how far a document is read."""

    def report_progress(self, done: int, total: int) -> None:
        super().report_progress(done, total)
        self.tell(("progress", (done, total)))


class ProgressSum:
    """Progress of documents that are read one after the other, as one count that only grows."""

    def __init__(self) -> None:
        self._before, self._last, self._total = 0, 0, 0
        self._reported_at = 0.0

    def add(self, done: int, total: int) -> tuple[int, int] | None:
        """Units done and in all; None where the last report was just now."""
        if done < self._last or total != self._total:
            self._before += self._last
        grown, self._last, self._total = done > self._last, done, total
        now = time.monotonic()
        if not grown or (done < total and now - self._reported_at < EVERY_S):
            return None
        self._reported_at = now
        return self._before + done, self._before + total


async def follow_job(
    worker: Worker, work: Callable[[Job], ToolResult], report: Report
) -> ToolResult:
    """What the work returns. The job is cancelled when this ends, however it ends.

    Raises:
        EsaError: of the work. UsageError: too many jobs wait.
    """
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Event] = asyncio.Queue()

    def tell(event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(inbox.put_nowait, event)

    job, progress = ToolJob(work, tell), ProgressSum()
    try:
        worker.submit(job)
    except QueueFullError:
        raise UsageError("too many calls wait already", "try again later") from None
    try:
        while True:
            kind, value = await inbox.get()
            if kind == "error":
                raise value
            if kind == "done":
                assert isinstance(value, ToolResult)
                return value
            if kind == "progress" and (count := progress.add(*value)):
                await report(*count)
    finally:
        worker.cancel(job)
