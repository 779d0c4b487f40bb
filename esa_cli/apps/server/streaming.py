"""One answer as the server sees it: events from the worker, the clock, and a client who may go."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator
from typing import Any

from starlette.types import Receive

from esa_cli.apps.server.wire import ApiError
from esa_cli.apps.server.worker import Answer, Event, Full, Job, Worker

TICK_S = 5.0


class Gone(Exception):
    """The client went away."""


async def follow(
    worker: Worker,
    answer: Answer,
    receive: Receive,
    timeout_s: float,
) -> AsyncGenerator[Event, None]:
    """The answer's events, and ("alive", None) every few seconds where nothing else comes.

    The job is cancelled when this ends, however it ends.

    Args:
        timeout_s: the longest the answer may take from when it is begun; waiting is not counted.

    Raises:
        ApiError: 429, 503, 504. Gone: the client is no longer there.
    """
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Event] = asyncio.Queue()

    def tell(event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(inbox.put_nowait, event)

    job = Job(answer, tell)
    _submit(worker, job)
    gone = asyncio.ensure_future(_until_gone(receive))
    deadline = math.inf
    try:
        while True:
            event = await _next(inbox, gone, deadline - loop.time())
            if event[0] == "begun":
                deadline = loop.time() + timeout_s
            elif event[0] not in ("done", "error"):
                if gone.done():
                    raise Gone
                if loop.time() >= deadline:
                    raise _late(job, timeout_s)
            yield event
            if event[0] in ("done", "error"):
                return
    except asyncio.CancelledError:
        raise ApiError(503, "the server ends", code="shutdown") from None
    finally:
        worker.cancel(job)
        gone.cancel()


def _submit(worker: Worker, job: Job) -> None:
    """Raises ApiError 429."""
    try:
        worker.submit(job)
    except Full:
        raise ApiError(
            429, "too many questions wait already", code="queue_full", retry=worker.patience()
        ) from None


def _late(job: Job, timeout_s: float) -> ApiError:
    text, reading = f"no answer within {timeout_s:g} s", job.reading
    if reading is not None:
        done, total = reading
        text += (
            f": the document was still being read ({done:,} of {total:,} tokens); `esa serve` "
            "needs a longer --timeout, or --keep: then asking again goes on where this stopped"
        )
    return ApiError(504, text, code="timeout")


async def _next(inbox: asyncio.Queue[Event], gone: asyncio.Future[Any], left_s: float) -> Event:
    """The next event; "alive" when there is none, because of the clock or the client."""
    coming = asyncio.ensure_future(inbox.get())
    either: set[asyncio.Future[Any]] = {gone, coming}
    try:
        wait_s = max(0.0, min(TICK_S, left_s))
        await asyncio.wait(either, timeout=wait_s, return_when="FIRST_COMPLETED")
        return coming.result() if coming.done() else ("alive", None)
    finally:
        coming.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
