"""One answer while it is generated: events of the worker, the clock and the client's connection.

Streams and whole answers need the queue, the time limit and the end at a disconnect alike.
sse-starlette would replace only the comment in times of silence, and patches uvicorn's signal
handler on import, so that streams are cut off half a second after a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator

from starlette.types import Receive

from esa_cli.apps.server.http_errors import ApiError, as_api_error
from esa_cli.apps.server.worker import Answer, Event, Job, QueueFullError, Worker

TICK_S = 5.0
"""The longest a stream is silent."""
Events = AsyncGenerator[Event, None]


class ClientGoneError(Exception):
    """The client has closed the connection."""


async def follow(worker: Worker, answer: Answer, receive: Receive, timeout_s: float) -> Events:
    """("reading", (tokens, of)), ("text", piece), then ("done", Reply); ("alive", None) after every
    few seconds of silence.

    The job is cancelled when this ends, however it ends.

    Args:
        timeout_s: the longest the answer may take, without its time in the queue.

    Raises:
        ApiError: 429, 503, 504, or what kept the job from an answer. ClientGoneError.
    """
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Event] = asyncio.Queue()

    def tell(event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(inbox.put_nowait, event)

    job = Job(answer, tell)
    _submit(worker, job)
    gone = asyncio.ensure_future(_until_gone(receive))
    gone.add_done_callback(lambda _: inbox.put_nowait(("alive", None)))
    deadline = math.inf
    try:
        while True:
            kind, value = await _next(inbox, deadline - loop.time())
            if kind == "error":
                raise as_api_error(value)
            if kind == "done":
                yield kind, value
                return
            if kind == "begun":
                deadline = loop.time() + timeout_s
                continue
            if gone.done():
                raise ClientGoneError
            if loop.time() >= deadline:
                raise _late(job, timeout_s)
            yield kind, value
    except asyncio.CancelledError:
        if gone.done():
            raise
        raise ApiError(503, "the server ends", code="shutdown") from None
    finally:
        worker.cancel(job)
        gone.cancel()


def _submit(worker: Worker, job: Job) -> None:
    try:
        worker.submit(job)
    except QueueFullError:
        raise ApiError(
            429, "too many questions wait already", code="queue_full", retry=worker.retry_after()
        ) from None


def _late(job: Job, timeout_s: float) -> ApiError:
    text = f"no answer within {timeout_s:g} s"
    if job.ingesting is not None:
        done, total = job.ingesting
        text += (
            f": the document was still being read ({done:,} of {total:,} tokens); `esa serve` "
            "needs a longer --timeout, or --keep: then asking again goes on where this stopped"
        )
    return ApiError(504, text, code="timeout")


async def _next(inbox: asyncio.Queue[Event], left_s: float) -> Event:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, min(TICK_S, left_s))):
            return await inbox.get()
    return "alive", None


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
