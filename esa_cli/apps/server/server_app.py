"""The HTTP server of `esa serve`: socket, routes, access checks, and shutdown after a signal.

Without a token the server accepts only connections from this machine, and refuses requests of
foreign web pages, which are known by the headers Origin, Sec-Fetch-Site and Host.

The package sse-starlette is not used, as it cuts off streams half a second after a signal."""

from __future__ import annotations

import asyncio
import hmac
import math
import signal
import socket
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, closing, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from esa_cli.apps.cli.output.terminal import Reporter, pluralize
from esa_cli.apps.server import wire
from esa_cli.apps.server.access_log import FACTS
from esa_cli.apps.server.allowed_documents import AllowedDocuments, make_documents_json
from esa_cli.apps.server.browser_page import PRIVATE, make_browser_page
from esa_cli.apps.server.session_documents import parse_sent_document
from esa_cli.apps.server.wire import ApiError, ChatCompletionMaker, ChatRequest, DocumentTextQuery
from esa_cli.apps.server.worker import Event, JobQueueFullError, JobThread, WorkerJob
from esa_cli.documents.document import Document
from esa_cli.errors import DiskError, EsaError, LengthError, LibraryError, ReaderError, UsageError
from esa_cli.qa.answering.reply import Reply, describe_unextracted_parts
from esa_cli.system.machine import is_loopback_host

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from esa_cli.apps.server.mcp_server import McpDocumentTools

TICK_S = 5.0
"""Maximum seconds between two events of a stream."""
CLIENT_GONE = 499
"""The status for the log of a request whose client has closed the connection."""
END_STREAMS_WITHIN_S = 10
"""Seconds that running answers have to end after a signal."""
SEND_WITHIN_S = 30
"""Seconds that a client has to send its whole request."""
SEND_DOCUMENT_WITHIN_S = 300
"""Seconds that a client has to send a document."""
MAX_SENT_AT_ONCE = 4
"""How many documents clients may be sending at the same time, as each takes memory."""
INSTRUCTION_UNUSED = (
    "the system message was not used: without --reader, answers are quotations of the documents"
)
WITHOUT_TOKEN = ("/health", "/")
"""Paths that need no token, as the responses contain nothing of the documents."""
Events = AsyncGenerator[Event, None]
Facts = dict[str, Any]
"""Facts about a request for its line in the log, such as a status other than the response's."""


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on a port; 0 means any free port. Raises UsageError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address, family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "no machine has this name"
        raise UsageError(
            f"`esa serve` cannot listen on {host}, port {port}: {why}",
            "choose another --port, or --host 127.0.0.1",
        ) from error


def make_base_url(server_socket: socket.socket) -> str:
    """Returns the base URL that clients of the server must use."""
    host, port = server_socket.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def make_uvicorn_server(app: ASGIApp) -> uvicorn.Server:
    """Makes a uvicorn server that runs until its attribute `should_exit` is set."""
    config = uvicorn.Config(
        app, http="h11", ws="none", loop="asyncio", lifespan="on", log_level="warning",
        access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=END_STREAMS_WITHIN_S,
    )  # fmt: skip
    return uvicorn.Server(config)


def serve_asgi_app(app: ASGIApp, listening_socket: socket.socket) -> None:
    """Serves an ASGI application until Ctrl-C or SIGTERM; ignores a signal that uvicorn repeats."""
    is_main = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    try:
        make_uvicorn_server(app).run(sockets=[listening_socket])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class AccessCheckMiddleware:
    """ASGI middleware that refuses requests without the token; if it is None, of foreign pages."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app = app
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http":
            try:
                self._raise_if_access_is_denied(scope)
            except ApiError as error:
                app = error.make_error_response()
        await app(scope, receive, send)

    def _raise_if_access_is_denied(self, scope: Scope) -> None:
        """Raises ApiError 401: the token is missing or wrong. ApiError 403: a foreign page asks."""
        headers, path = dict(scope["headers"]), scope["path"]
        if self.token is not None:
            kind, _, token = headers.get(b"authorization", b"").partition(b" ")
            is_right = kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self.token)
            if not is_right and path not in WITHOUT_TOKEN:
                wrong = "the request has no token or a wrong token"
                raise ApiError(401, wrong, code="invalid_api_key")
            return
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin")
        is_link = path == "/" and headers.get(b"sec-fetch-mode") == b"navigate"
        is_foreign = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") and not is_link
        try:
            if not is_loopback_host(urlsplit(f"//{host}").hostname or ""):
                raise ApiError(403, "the Host header of the request names another machine")
            # Browsers leave out the default port both in Origin and in Host.
            is_foreign |= origin is not None and urlsplit(origin.decode("latin-1")).netloc != host
        except ValueError:
            is_foreign = True
        if is_foreign:
            raise ApiError(403, "web pages from other sites may not send requests to this server")


async def read_request_body(request: Request, max_bytes: int, within_s: float) -> bytes:
    """Returns the body of a request, of at most `max_bytes`. Raises ApiError 400, 408, 413."""
    too_large = ApiError(413, f"the request is larger than {max_bytes:,} bytes")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > max_bytes:
        raise too_large
    data = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for piece in request.stream():
                data += piece
                if len(data) > max_bytes:
                    raise too_large
    except TimeoutError as error:
        raise ApiError(408, f"the whole request did not arrive within {within_s:g} s") from error
    except ClientDisconnect as error:
        raise ApiError(400, "the client disconnected before the end of the request") from error
    return bytes(data)


async def yield_job_events(
    worker: JobThread, answer: Callable[[WorkerJob], object], request: Request, timeout_s: float
) -> Events:
    """Queues a job and yields its events up to ("done", result), and ("alive", None) after some
    seconds without an event. Closing the generator cancels the job. Raises the error of the job, or
    ApiError 429, 499, 504: the queue is full, the client is gone, or the job takes too long."""
    loop, deadline = asyncio.get_running_loop(), math.inf
    gone = asyncio.ensure_future(_wait_until_client_disconnects(request))
    try:
        with worker.queue_job_with_events(answer) as events:
            gone.add_done_callback(lambda _: events.put_nowait(("alive", None)))
            while True:
                event: Event = ("alive", None)
                with suppress(TimeoutError):
                    wait_s = max(0.0, min(TICK_S, deadline - loop.time()))
                    async with asyncio.timeout(wait_s):
                        event = await events.get()
                kind, value = event
                if kind == "error":
                    raise value if isinstance(value, EsaError) else wire.convert_to_api_error(value)
                if kind == "done":
                    yield kind, value
                    return
                if kind == "begun":
                    deadline = loop.time() + timeout_s
                elif gone.done():
                    raise ApiError(CLIENT_GONE, "the client closed the connection")
                elif loop.time() >= deadline:
                    late = f"no answer within {timeout_s:g} s; `esa serve --timeout` allows more"
                    raise ApiError(504, late, code="timeout")
                else:
                    yield kind, value
    except JobQueueFullError:
        raise ApiError(429, "too many questions are waiting already", code="queue_full") from None
    finally:
        gone.cancel()


async def _wait_until_client_disconnects(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True)
class ServerLimits:
    """The maximum bytes of a request and of a document that is sent, tokens of a question with its
    history, number of waiting questions, and seconds of an answer."""

    max_body: int = 1_000_000
    max_document: int = 100_000_000
    max_question: int = 8192
    max_queue: int = 8
    timeout_s: float = 600.0


def make_asgi_app(
    documents: AllowedDocuments, token: str | None, limits: ServerLimits, reporter: Reporter,
    mcp_tools: McpDocumentTools | None = None, access_log: Middleware | None = None,
) -> Starlette:  # fmt: skip
    """Returns the HTTP server as an ASGI application. With `mcp_tools` it is an MCP server, too, at
    /mcp. `reporter` gets notes of answers, and warnings of errors that are the server's fault."""
    routes = _ServerRoutes(documents, limits, reporter)
    mcp_manager: StreamableHTTPSessionManager | None = None
    if mcp_tools is not None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from esa_cli.apps.server.mcp_server import make_mcp_server

        # Requests to /mcp pass the access check, as all others do.
        mcp_manager = StreamableHTTPSessionManager(
            make_mcp_server(mcp_tools, routes.worker), stateless=True,
            max_request_body_size=limits.max_body,
        )  # fmt: skip

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with closing(routes.worker):
            async with mcp_manager.run() if mcp_manager else nullcontext():
                yield

    log = [] if access_log is None else [access_log]
    handled_errors = (ApiError, EsaError, HTTPException, Exception)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", routes.complete_chat, methods=["POST"]),
            Route("/v1/models", routes.list_models),
            Route("/v1/documents", routes.list_documents),
            Route("/v1/documents", routes.add_document, methods=["POST"]),
            Route("/v1/documents", routes.remove_document, methods=["DELETE"]),
            Route("/v1/documents/text", routes.show_document_text),
            Route("/health", routes.show_health),
            Route("/", routes.show_page),
            *([Route("/mcp", mcp_manager.asgi_app)] if mcp_manager else []),
        ],
        middleware=[*log, Middleware(AccessCheckMiddleware, token=token)],
        exception_handlers=dict.fromkeys(handled_errors, routes.send_error),
        lifespan=lifespan,
    )


@dataclass
class _ServerRoutes:
    documents: AllowedDocuments
    limits: ServerLimits
    reporter: Reporter

    def __post_init__(self) -> None:
        self.esa = self.documents.esa
        self.worker = JobThread(self.limits.max_queue)
        self.started = int(time.time())
        self.sending = asyncio.Semaphore(MAX_SENT_AT_ONCE)

    async def show_health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "questions": self.worker.count_unfinished_jobs()})

    async def show_page(self, request: Request) -> Response:
        html, headers = make_browser_page()
        return HTMLResponse(html, headers=headers)

    async def list_models(self, request: Request) -> Response:
        about = {"id": self.esa.name, "object": "model", "created": self.started}
        return JSONResponse({"object": "list", "data": [{**about, "owned_by": "esa"}]})

    async def list_documents(self, request: Request) -> Response:
        query = wire.parse_request(wire.DocumentListQuery, request.query_params)
        session = query.session or ""
        listed = await run_in_threadpool(make_documents_json, self.documents, session)
        keeps = ["session", "library"] if self.documents.has_stored else ["session"]
        listed["sending"] = {"bytes": self.limits.max_document, "keep": keeps}
        return Response(wire.encode_json(listed), media_type="application/json", headers=PRIVATE)

    async def add_document(self, request: Request) -> Response:
        """Adds the document that is the body of a request to a session or to the library."""
        query = wire.parse_request(wire.SentDocumentQuery, request.query_params)
        if query.keep == "session" and query.session is None:
            raise ApiError(400, "session must be given to keep a document for a session", "session")
        if query.keep == "library" and not self.documents.has_stored:
            raise ApiError(403, "requests to this server may not use the library", "keep")
        if self.sending.locked():
            raise ApiError(429, "too many documents are being sent already", code="queue_full")
        async with self.sending:
            limits = self.limits.max_document, SEND_DOCUMENT_WITHIN_S
            data = await read_request_body(request, *limits)
            source = f"{query.keep}:"
            document = await run_in_threadpool(parse_sent_document, data, query.name, source)
        if query.session and query.keep == "session":
            id = self.documents.sent.add_document(query.session, document)
        else:
            id = await self._store_document(document, request)
        about = {"id": id, "object": "document", "name": document.name, "bytes": document.bytes}
        body = wire.encode_json({**about, "missing": list(document.missing)})
        return Response(body, 201, media_type="application/json", headers=PRIVATE)

    async def _store_document(self, document: Document, request: Request) -> str:
        def store(job: WorkerJob) -> str:
            with self.esa.interruptible(job.raise_if_cancelled):
                return self.documents.store_document(document, job.report_progress)

        events = yield_job_events(self.worker, store, request, self.limits.timeout_s)
        async with aclosing(events):
            *_, id = [value async for _, value in events]
        return str(id)

    async def remove_document(self, request: Request) -> Response:
        """Forgets a document of a session; documents from elsewhere cannot be removed."""
        query = wire.parse_request(wire.DocumentTextQuery, request.query_params)
        if not self.documents.sent.remove_document(query.document):
            wrong = f"there is no document {query.document} of a session"
            raise ApiError(404, wrong, "document", "document_not_found")
        return Response(status_code=204)

    async def show_document_text(self, request: Request) -> Response:
        query = wire.parse_request(DocumentTextQuery, request.query_params)
        piece = await run_in_threadpool(make_text_excerpt_json, query, self.documents)
        return Response(wire.encode_json(piece), media_type="application/json", headers=PRIVATE)

    async def complete_chat(self, request: Request) -> Response:
        body = await read_request_body(request, self.limits.max_body, SEND_WITHIN_S)
        asked = wire.parse_request(ChatRequest, body)
        completion = ChatCompletionMaker(self.esa.name)
        facts = request.scope.setdefault(FACTS, {})
        answer = await run_in_threadpool(self._make_answer_function, asked, completion, facts)
        events = yield_job_events(self.worker, answer, request, self.limits.timeout_s)
        if asked.stream:  # an error before the first event still has its own status
            stream = self._stream_answer(asked, completion, await anext(events), events, facts)
            headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
            return StreamingResponse(stream, headers=headers, media_type="text/event-stream")
        async with aclosing(events):
            *_, reply = [value async for _, value in events]
        data = wire.encode_json(completion.make_unstreamed_body(reply))
        return Response(data, media_type="application/json")

    def _make_answer_function(
        self, chat_request: ChatRequest, completion: ChatCompletionMaker, facts: Facts
    ) -> Callable[[WorkerJob], Reply]:
        """Returns a function that answers a chat request, and adds heat maps of the documents."""
        question, history = chat_request.split_question_and_history()
        facts["question"] = question
        named = self.documents.resolve_documents(chat_request.documents)

        def answer_chat_request(job: WorkerJob) -> Reply:
            tokens = self.esa.question_tokens(question, history)
            limit = self.limits.max_question
            if tokens > limit:
                wrong = f"question and history must be at most {limit:,} tokens, got {tokens:,}"
                hint = "ask a shorter question; `esa serve --max-question` allows longer ones"
                raise LengthError(wrong, hint)
            missing = completion.missing
            opened = self.documents.open_documents(named, job.report_progress, question, missing)
            books = [document.book for document in opened]
            missing.extend(describe_unextracted_parts(books))
            if self.esa.answers_unread and self.esa.reader is None:
                missing.extend({INSTRUCTION_UNUSED for turn in history if not turn.answer})
            text = wire.StoppedText(chat_request.list_stop_sequences(), job.send_answer_text)
            with self.esa.interruptible(job.raise_if_cancelled):
                settings = chat_request.make_esa_ask_arguments()
                reply = self.esa.ask(
                    question, books, history=history, on_text=text.add_piece, **settings
                )
                reply = text.finish_reply(reply)
            facts["tokens"] = reply.answer_tokens
            count = pluralize(reply.answer_tokens, "token")
            self.reporter.show_note(f"esa: {count} answered in {reply.total_s:.1f} s")
            heat_maps = self.esa.heat_maps() if chat_request.heat else []
            completion.heat.extend(
                {"document": heat.document, "id": document.id, "spans": heat.spans}
                for document, heat in zip(opened, heat_maps, strict=False)
            )
            return reply

        return answer_chat_request

    async def _stream_answer(
        self, chat_request: ChatRequest, completion: ChatCompletionMaker, first: Event,
        events: Events, facts: Facts,
    ) -> AsyncIterator[bytes]:  # fmt: skip
        """Yields an answer or error as server-sent events, after the HTTP status has been sent."""
        kind, value = first
        try:
            async with aclosing(events):
                begin = {"role": "assistant", "content": ""}
                yield _encode_sse_event(completion.make_stream_chunk(begin))
                while kind != "done":
                    if kind == "text":
                        yield _encode_sse_event(completion.make_stream_chunk({"content": value}))
                    elif kind == "reading":
                        yield b": reading %d of %d tokens\n\n" % value
                    else:
                        yield b": waiting\n\n"
                    kind, value = await anext(events)
        except (ApiError, EsaError) as error:
            shown = self._log_and_convert_to_api_error(error)
            facts["status"] = shown.status
            yield _encode_sse_event(shown.make_error_body())
            return
        for chunk in completion.make_last_stream_chunks(value, chat_request.wants_token_counts()):
            yield _encode_sse_event(chunk)
        yield b"data: [DONE]\n\n"

    async def send_error(self, request: Request, error: Exception) -> Response:
        return self._log_and_convert_to_api_error(error).make_error_response()

    def _log_and_convert_to_api_error(self, error: Exception) -> ApiError:
        """Converts an error to an `ApiError`, and logs errors that are the server's fault."""
        if isinstance(error, LibraryError | DiskError | ReaderError):
            self.reporter.warn(f"esa: {wire.join_message_and_hint(error)}")
        return wire.convert_to_api_error(error)


def _encode_sse_event(event_data: Any) -> bytes:
    return b"data: %s\n\n" % wire.encode_json(event_data)


def make_text_excerpt_json(query: DocumentTextQuery, documents: AllowedDocuments) -> dict[str, Any]:
    """Returns part of a document's text as JSON, with the positions of its pages and chapters."""
    document = documents.read_named_document(query.document)
    text = document.text
    start = min(query.start, len(text))
    end = min(start + query.length, len(text))
    place = document.place(start)
    begins = [start, *(mark.start for mark in document.marks if start < mark.start < end)]
    places = [(at, document.place(at)) for at in begins]
    marks = [{"start": at, "page": one.page, "chapter": one.chapter} for at, one in places]
    return {
        "id": query.document, "object": "document.text", "name": document.name,
        "characters": len(text), "start": start, "end": end, "line": place.line,
        "text": text[start:end], "marks": marks, "missing": list(document.missing),
    }  # fmt: skip
