"""The routes: /v1/chat/completions, /v1/models, /health."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from esa_cli.apps.server import bodies, wire
from esa_cli.apps.server.access import Guard, body, refused
from esa_cli.apps.server.allowed_documents import AllowedDocuments
from esa_cli.apps.server.http_errors import as_api_error, of_server, said
from esa_cli.apps.server.streaming import Gone, follow
from esa_cli.apps.server.wire import ApiError, ChatRequest
from esa_cli.apps.server.worker import Answer, Event, Job, Worker
from esa_cli.errors import EsaError
from esa_cli.qa.reply import Asker, Reply, lacking

Events = AsyncGenerator[Event, None]
CLIENT_GONE = 499
END_WITHIN_S = 5.0


@dataclass(frozen=True)
class Limits:
    """Bytes of a request, answers that may wait, seconds an answer may take."""

    max_body: int = 1_000_000
    max_queue: int = 8
    timeout_s: float = 600.0


def make_app(
    asker: Asker,
    allowed: AllowedDocuments,
    token: str | None = None,
    limits: Limits | None = None,
    note: Callable[[str], None] = lambda text: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Starlette:
    """The whole server as an ASGI application.

    Args:
        token: what clients must show, or None. note: hears one line about every answer.
        warn: hears what is wrong with the server itself.
    """
    routes = _Routes(asker, allowed, limits or Limits(), note, warn)

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
            Route("/health", routes.health),
        ],
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            Exception: _any_error,
        },
        lifespan=lifespan,
    )


class _Routes:
    def __init__(
        self,
        asker: Asker,
        allowed: AllowedDocuments,
        limits: Limits,
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self.asker, self.allowed, self.limits = asker, allowed, limits
        self.note, self.warn = note, warn
        self.worker = Worker(limits.max_queue)
        self.created = int(time.time())

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "questions": self.worker.load()})

    async def models(self, request: Request) -> Response:
        only = bodies.model(self.asker.name, self.created)
        return JSONResponse({"object": "list", "data": [only]})

    async def model(self, request: Request) -> Response:
        if request.path_params["name"] != self.asker.name:
            raise ApiError(404, "there is no such model here", "model", "model_not_found")
        return JSONResponse(bodies.model(self.asker.name, self.created))

    async def completions(self, request: Request) -> Response:
        asked = wire.parse(await body(request, self.limits.max_body))
        shape = bodies.Shape(self.asker.name)
        answer = self._answer(asked, shape.missing)
        events = follow(self.worker, answer, request.receive, self.limits.timeout_s)
        try:
            if not asked.stream:
                return bodies.Whole(shape.whole(self._told(await _whole(events))))
            first = await _first(events)
        except Gone:
            return Response(status_code=CLIENT_GONE)
        return StreamingResponse(
            self._stream(asked, shape, events, first),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    def _answer(self, asked: ChatRequest, missing: list[str]) -> Answer:
        """What the worker does for a request; it adds to `missing`. Raises ApiError."""
        paths = self.allowed.find(asked.documents)

        def answer(job: Job) -> Reply:
            books = self._books(paths, job)
            missing.extend(lacking(books))
            return self.asker.ask(
                asked.question,
                books,
                history=asked.history,
                max_new_tokens=asked.max_new_tokens,
                temperature=asked.temperature,
                top_p=asked.top_p,
                seed=asked.seed,
                evidence=asked.evidence,
                on_text=job.hear,
            )

        return answer

    def _books(self, paths: Sequence[Path] | None, job: Job) -> list[Any]:
        try:
            return self.allowed.open(paths, job.read)
        except EsaError as error:
            if of_server(error):
                self.warn(said(error))
            raise

    def _told(self, reply: Reply) -> Reply:
        self.note(f"{reply.answer_tokens} tokens answered in {reply.total_s:.1f} s")
        return reply

    async def _stream(
        self,
        asked: ChatRequest,
        shape: bodies.Shape,
        events: Events,
        first: Event,
    ) -> AsyncIterator[bytes]:
        """Server-sent events; an error is one of them, since the status is long sent."""
        try:
            async with aclosing(events):
                yield bodies.event(shape.chunk({"role": "assistant", "content": ""}))
                async for kind, value in _again(first, events):
                    if kind == "text":
                        yield bodies.event(shape.chunk({"content": value}))
                    elif kind == "error":
                        raise as_api_error(value)
                    elif kind == "done":
                        yield bodies.event(shape.last(self._told(value)))
                        if asked.stream_usage:
                            yield bodies.event(shape.counts(value))
                        yield bodies.DONE
                    else:
                        yield bodies.ALIVE
        except ApiError as error:
            yield bodies.event(error.body())
        except Gone:
            return


async def _first(events: Events) -> Event:
    """What comes first, but for "begun"; errors that come at once keep their own status."""
    async for kind, value in events:
        if kind == "error":
            await events.aclose()
            raise as_api_error(value)
        if kind != "begun":
            return kind, value
    raise AssertionError("an answer ends with an event")


async def _again(first: Event, events: Events) -> AsyncIterator[Event]:
    yield first
    async for event in events:
        yield event


async def _whole(events: Events) -> Reply:
    async with aclosing(events):
        async for kind, value in events:
            if kind == "error":
                raise as_api_error(value)
            if kind == "done":
                assert isinstance(value, Reply)
                return value
    raise AssertionError("an answer ends with an event")


async def _api_error(request: Request, error: Any) -> Response:
    return refused(error)


async def _http_error(request: Request, error: Any) -> Response:
    return refused(ApiError(error.status_code, str(error.detail)))


async def _any_error(request: Request, error: Exception) -> Response:
    return refused(as_api_error(error))
