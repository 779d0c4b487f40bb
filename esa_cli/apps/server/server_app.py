"""The routes: /v1/chat/completions, /v1/models, /v1/documents, /health and the page."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from esa_cli.apps.server.access import AccessCheck, read_body
from esa_cli.apps.server.allowed_documents import AllowedDocuments
from esa_cli.apps.server.completion_json import Completion, heat_of, json_bytes, model_card
from esa_cli.apps.server.document_routes import DocumentRoutes
from esa_cli.apps.server.http_errors import ApiError, as_api_error, is_of_server, with_hint
from esa_cli.apps.server.question_page import question_page
from esa_cli.apps.server.streaming import ClientGoneError, Events, follow
from esa_cli.apps.server.wire import ChatRequest, parse
from esa_cli.apps.server.worker import Answer, Event, Job, Worker
from esa_cli.errors import EsaError, LengthError
from esa_cli.qa.answering.reply import Asker, Reply, lacking

CLIENT_GONE = 499
END_WITHIN_S = 30.0
"""Seconds to wait for the running answer, which ends between two pieces of its reading."""


@dataclass(frozen=True)
class ServerLimits:
    """Bytes of a request, tokens of a question with the messages before it, answers in the queue,
    seconds an answer may take."""

    max_body: int = 1_000_000
    max_question: int = 8192
    max_queue: int = 8
    timeout_s: float = 600.0


def make_app(
    asker: Asker,
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
    routes = _Routes(asker, documents, limits or ServerLimits(), note, warn)
    about = DocumentRoutes(documents)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            routes.worker.close(END_WITHIN_S)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", routes.completions, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.model),
            Route("/v1/documents", about.list),
            Route("/v1/documents/text", about.text),
            Route("/health", routes.health),
            Route("/", question_page),
        ],
        middleware=[Middleware(AccessCheck, token=token)],
        exception_handlers=dict.fromkeys((ApiError, HTTPException, Exception), _error),
        lifespan=lifespan,
    )


@dataclass
class _Routes:
    asker: Asker
    documents: AllowedDocuments
    limits: ServerLimits
    note: Callable[[str], None]
    warn: Callable[[str], None]

    def __post_init__(self) -> None:
        self.worker = Worker(self.limits.max_queue)
        self.card = model_card(self.asker.name, int(time.time()))

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "questions": self.worker.load()})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self.card]})

    async def model(self, request: Request) -> Response:
        if request.path_params["name"] != self.asker.name:
            raise ApiError(404, "there is no such model here", "model", "model_not_found")
        return JSONResponse(self.card)

    async def completions(self, request: Request) -> Response:
        asked = parse(await read_body(request, self.limits.max_body))
        completion = Completion(self.asker.name)
        answer = await run_in_threadpool(self._answer, asked, completion)
        events = follow(self.worker, answer, request.receive, self.limits.timeout_s)
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
        ApiError."""
        question, history = asked.conversation()
        try:
            found = self.documents.find(asked.documents)
        except EsaError as error:
            self._say(error)
            raise as_api_error(error) from error

        def answer(job: Job) -> Reply:
            try:
                self._check_length(self.asker.question_tokens(question, history))
                opened = self.documents.open(
                    found, job.report_progress, question, completion.missing
                )
                books = [one.book for one in opened]
                completion.missing.extend(lacking(books))
                with self.asker.interruptible(job.check):
                    reply = self.asker.ask(
                        question, books, history=history, on_text=job.add_text, **asked.options()
                    )
                if asked.heat:
                    ids: dict[str, str] = {}  # of each text once, as the heat maps
                    for id, book in opened:
                        ids.setdefault(book.document.text, id)
                    completion.heat.extend(heat_of(ids.values(), self.asker.heat_maps(books)))
                return reply
            except EsaError as error:
                self._say(error)
                raise

        return answer

    def _say(self, error: EsaError) -> None:
        """Says what is wrong with the server itself."""
        if is_of_server(error):
            self.warn(with_hint(error))

    def _check_length(self, tokens: int) -> None:
        """Refuses a question before anything is read for it. Raises LengthError."""
        if tokens > self.limits.max_question:
            raise LengthError(
                f"the question with the messages before it must be at most "
                f"{self.limits.max_question:,} tokens, got {tokens:,}",
                "ask a shorter one; `esa serve --max-question` allows longer ones",
            )

    async def _reply(self, events: Events) -> Reply:
        async with aclosing(events):
            async for kind, value in events:
                if kind == "done":
                    return self._note_reply(value)
        raise AssertionError("an answer ends with an event")

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
                async for kind, value in _chained(first, events):
                    if kind == "text":
                        yield _event(completion.chunk({"content": value}))
                    elif kind == "reading":
                        yield b": reading %d of %d tokens\n\n" % value
                    elif kind == "alive":
                        yield b": waiting\n\n"
                    else:
                        yield _event(completion.last_chunk(self._note_reply(value)))
                        if asked.stream_usage:
                            yield _event(completion.usage_chunk(value))
                        yield b"data: [DONE]\n\n"
        except ApiError as error:
            yield _event(error.body())
        except ClientGoneError:
            return


async def _chained(first: Event, events: Events) -> AsyncIterator[Event]:
    yield first
    async for event in events:
        yield event


def _event(data: Any) -> bytes:
    return b"data: %s\n\n" % json_bytes(data)


async def _error(request: Request, error: Exception) -> Response:
    return as_api_error(error).response()
