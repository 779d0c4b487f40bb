"""The routes: /v1/chat/completions, /v1/models, /v1/documents, /health and the page.

Streams and whole answers need the queue, the time limit and the end at a disconnect alike: both go
through `follow`. sse-starlette would replace only the comment in times of silence, and patches
uvicorn's signal handler on import, so that streams are cut off half a second after a signal.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from esa_cli.apps.server.access import AccessCheck
from esa_cli.apps.server.allowed_documents import AllowedDocuments, list_documents
from esa_cli.apps.server.question_page import question_page
from esa_cli.apps.server.wire import (
    ApiError,
    ChatRequest,
    Completion,
    TextQuery,
    as_api_error,
    json_bytes,
    parse,
    with_hint,
)
from esa_cli.apps.server.worker import Answer, Event, Job, QueueFullError, Worker
from esa_cli.documents.document import Document
from esa_cli.errors import DiskError, EsaError, LengthError, LibraryError, ReaderError
from esa_cli.qa.answering.reply import Reply, lacking

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

TICK_S = 5.0
"""The longest a stream is silent."""
CLIENT_GONE = 499
END_WITHIN_S = 30.0
"""Seconds to wait for the running answer, which ends between two pieces of its reading."""
PRIVATE = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
"""Headers of whatever has a document's text or name: no other page's element may load it."""
Events = AsyncGenerator[Event, None]


class ClientGoneError(Exception):
    """The client has closed the connection."""


async def follow(worker: Worker, answer: Answer, request: Request, timeout_s: float) -> Events:
    """("reading", (tokens, of)), ("text", piece), then ("done", Reply); ("alive", None) after every
    few seconds of silence.

    The job is cancelled when this ends, however it ends.

    Args:
        timeout_s: the longest the answer may take, without its time in the queue.

    Raises:
        ApiError: 429, 503, 504, or what kept the job from an answer. ClientGoneError. EsaError.
    """
    loop, deadline = asyncio.get_running_loop(), math.inf
    gone = asyncio.ensure_future(_until_gone(request))
    try:
        with worker.queued(answer) as inbox:
            gone.add_done_callback(lambda _: inbox.put_nowait(("alive", None)))
            while True:
                kind, value = await _next(inbox, deadline - loop.time())
                if kind == "error":
                    raise value if isinstance(value, EsaError) else as_api_error(value)
                if kind == "done":
                    yield kind, value
                    return
                if kind == "begun":
                    deadline = loop.time() + timeout_s
                elif gone.done():
                    raise ClientGoneError
                elif loop.time() >= deadline:
                    late = f"no answer within {timeout_s:g} s; `esa serve --timeout` allows longer"
                    raise ApiError(504, late, code="timeout")
                else:
                    yield kind, value
    except QueueFullError:
        full = "too many questions wait already"
        raise ApiError(429, full, code="queue_full", retry=worker.load()) from None
    except asyncio.CancelledError:
        if gone.done() or not request.app.state.is_ending():
            raise
        raise ApiError(503, "the server ends", code="shutdown") from None
    finally:
        gone.cancel()


async def _next(inbox: asyncio.Queue[Event], left_s: float) -> Event:
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, min(TICK_S, left_s))):
            return await inbox.get()
    return "alive", None


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True)
class ServerLimits:
    """Bytes of a request, tokens of a question with the messages before it, answers in the queue,
    seconds an answer may take."""

    max_body: int = 1_000_000
    max_question: int = 8192
    max_queue: int = 8
    timeout_s: float = 600.0


def make_app(
    asker: Esa,
    documents: AllowedDocuments,
    token: str | None = None,
    limits: ServerLimits | None = None,
    note: Callable[[str], None] = lambda text: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Starlette:
    """The server as an ASGI application.

    Args:
        token: what clients must send, or None. note: called with a line about every answer.
        warn: called with what is wrong with the server itself.
    """
    limits = limits or ServerLimits()
    routes = _Routes(asker, documents, limits, note, warn)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            routes.worker.close(END_WITHIN_S)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", routes.completions, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.model),
            Route("/v1/documents", routes.list_documents),
            Route("/v1/documents/text", routes.document_text),
            Route("/health", routes.health),
            Route("/", question_page),
        ],
        middleware=[Middleware(AccessCheck, token=token, max_body=limits.max_body)],
        exception_handlers=dict.fromkeys(
            (ApiError, EsaError, HTTPException, Exception), routes.error
        ),
        lifespan=lifespan,
    )
    app.state.is_ending = lambda: False
    return app


@dataclass
class _Routes:
    asker: Esa
    documents: AllowedDocuments
    limits: ServerLimits
    note: Callable[[str], None]
    warn: Callable[[str], None]

    def __post_init__(self) -> None:
        self.worker = Worker(self.limits.max_queue)
        about = {"id": self.asker.name, "object": "model", "created": int(time.time())}
        self.card = {**about, "owned_by": "esa"}

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "questions": self.worker.load()})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self.card]})

    async def model(self, request: Request) -> Response:
        if request.path_params["name"] != self.asker.name:
            raise ApiError(404, "there is no such model here", "model", "model_not_found")
        return JSONResponse(self.card)

    async def list_documents(self, request: Request) -> Response:
        return _private(await run_in_threadpool(list_documents, self.documents))

    async def document_text(self, request: Request) -> Response:
        query = TextQuery.parse(request.query_params)
        document = await run_in_threadpool(self.documents.document, query.document)
        return _private(await run_in_threadpool(_piece, query, document))

    async def completions(self, request: Request) -> Response:
        asked = parse(await request.body())
        completion = Completion(self.asker.name)
        answer = await run_in_threadpool(self._answer, asked, completion)
        events = follow(self.worker, answer, request, self.limits.timeout_s)
        try:
            if not asked.stream:
                whole = json_bytes(completion.whole(await self._reply(events)))
                return Response(whole, media_type="application/json")
            first = await anext(events)  # an error before it keeps its own status
        except ClientGoneError:
            return Response(status_code=CLIENT_GONE)
        return StreamingResponse(
            self._stream(asked, completion, first, events),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    def _answer(self, asked: ChatRequest, completion: Completion) -> Answer:
        """Answers a request, in the worker's thread; fills the lists of `completion`. Raises
        ApiError, EsaError."""
        question, history = asked.conversation()
        named = self.documents.find(asked.documents)

        def answer(job: Job) -> Reply:
            tokens, most = self.asker.question_tokens(question, history), self.limits.max_question
            if tokens > most:
                raise LengthError(
                    f"the question with the messages before it must be at most {most:,} tokens, "
                    f"got {tokens:,}",
                    "ask a shorter one; `esa serve --max-question` allows longer ones",
                )
            opened = self.documents.open(named, job.report_progress, question, completion.missing)
            ids, books = [document.id for document in opened], [one.book for one in opened]
            completion.missing.extend(lacking(books))
            with self.asker.interruptible(job.check):
                reply = self.asker.ask(
                    question, books, history=history, on_text=job.add_text, **asked.options()
                )
            if asked.heat:
                for id, heat in zip(ids, self.asker.heat_maps(books), strict=True):
                    about = {"document": heat.document, "id": id, "spans": heat.spans}
                    completion.heat.append(about)
            return reply

        return answer

    async def _reply(self, events: Events) -> Reply:
        async with aclosing(events):
            values = [value async for _, value in events]
        return self._note_reply(values[-1])

    def _note_reply(self, reply: Reply) -> Reply:
        self.note(f"{reply.answer_tokens} tokens answered in {reply.total_s:.1f} s")
        return reply

    async def _stream(
        self, asked: ChatRequest, completion: Completion, first: Event, events: Events
    ) -> AsyncIterator[bytes]:
        """Server-sent events; an error is one of them, since the status has been sent."""
        try:
            async with aclosing(events):
                yield _event(completion.chunk({"role": "assistant", "content": ""}))
                kind, value = first
                while kind != "done":
                    if kind == "text":
                        yield _event(completion.chunk({"content": value}))
                    elif kind == "reading":
                        yield b": reading %d of %d tokens\n\n" % value
                    else:
                        yield b": waiting\n\n"
                    kind, value = await anext(events)
        except (ApiError, EsaError) as error:
            yield _event(self._api_error(error).body())
        except ClientGoneError:
            return
        else:
            for chunk in completion.last_chunks(self._note_reply(value), asked.stream_usage):
                yield _event(chunk)
            yield b"data: [DONE]\n\n"

    async def error(self, request: Request, error: Exception) -> Response:
        return self._api_error(error).response()

    def _api_error(self, error: Exception) -> ApiError:
        """What the client gets; what is wrong with the server itself is reported here, too."""
        if isinstance(error, LibraryError | DiskError | ReaderError):
            self.warn(with_hint(error))
        return as_api_error(error)


def _piece(query: TextQuery, document: Document) -> dict[str, Any]:
    """A piece of the text, and the pages and chapters that begin in it; the first of these is that
    of the piece's first character."""
    text = document.text
    start = min(query.start, len(text))
    end = min(start + query.length, len(text))
    place = document.place(start)
    marks = [{"start": start, "page": place.page, "chapter": place.chapter}]
    marks += [
        {"start": mark.start, "page": mark.page, "chapter": mark.chapter}
        for mark in document.marks
        if start < mark.start < end
    ]
    return {
        "id": query.document, "object": "document.text", "name": document.name,
        "characters": len(text), "start": start, "end": end, "line": place.line,
        "text": text[start:end], "marks": marks, "missing": list(document.missing),
    }  # fmt: skip


def _private(data: dict[str, Any]) -> Response:
    return Response(json_bytes(data), media_type="application/json", headers=PRIVATE)


def _event(data: Any) -> bytes:
    return b"data: %s\n\n" % json_bytes(data)
