"""Listens on a socket, checks who may ask, and runs an ASGI application until a signal arrives.

Without a token only this machine can connect. But a browser on this machine may show a foreign web
page, which can send requests, too. A request of a foreign page is recognised by its headers:
Origin, Sec-Fetch-Site, or a foreign Host that was made to resolve to this machine.
"""

from __future__ import annotations

import asyncio
import hmac
import signal
import socket
import threading
from urllib.parse import urlsplit

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from esa_cli.apps.server.wire import ApiError
from esa_cli.errors import UsageError
from esa_cli.system.machine import is_loopback

END_WITHIN_S = 10
"""Seconds that running answers have to end after a signal."""
SEND_WITHIN_S = 30
"""Seconds that a client has to send its whole request."""
WITHOUT_TOKEN = ("/health", "/")
"""Paths that need no token, as the responses contain nothing of the documents."""
_PORTS = {"http": 80, "https": 443}


def bind_socket(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on a host and port; 0 is any free port. Raises UsageError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address, family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "no machine has this name"
        raise UsageError(
            f"cannot listen on {host}, port {port}: {why}",
            "choose another --port, or --host 127.0.0.1",
        ) from error


def base_url(sock: socket.socket, path: str = "/v1") -> str:
    """Returns the URL of the server that clients must use as their base URL."""
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"


def make_uvicorn_server(app: ASGIApp) -> uvicorn.Server:
    """Returns a uvicorn server, whose `run(sockets=[...])` ends after `should_exit` is set."""
    config = uvicorn.Config(
        app, http="h11", ws="none", loop="asyncio", lifespan="on", log_level="warning",
        access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=END_WITHIN_S,
    )  # fmt: skip
    return uvicorn.Server(config)


def serve_app(app: ASGIApp, sock: socket.socket) -> None:
    """Serves an application until Ctrl-C or SIGTERM. After it has ended, uvicorn raises the signal
    again, which is ignored, so that the command ends normally."""
    is_main = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    try:
        make_uvicorn_server(app).run(sockets=[sock])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class AccessCheck:
    """ASGI middleware that refuses requests without the token, or, where `token` is None, requests
    of foreign web pages."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app = app
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http":
            try:
                self._check_access(scope)
            except ApiError as error:
                app = error.make_error_response()
        await app(scope, receive, send)

    def _check_access(self, scope: Scope) -> None:
        """Raises ApiError 401: the token is missing or wrong. ApiError 403: a foreign page asks."""
        headers, path = dict(scope["headers"]), scope["path"]
        if self.token is not None:
            kind, _, token = headers.get(b"authorization", b"").partition(b" ")
            is_right = kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self.token)
            if not is_right and path not in WITHOUT_TOKEN:
                raise ApiError(401, "the token is missing or wrong", code="invalid_api_key")
            return
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin")
        is_link = path == "/" and headers.get(b"sec-fetch-mode") == b"navigate"
        is_foreign = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") and not is_link
        try:
            if not is_loopback(urlsplit(f"//{host}").hostname or ""):
                raise ApiError(403, "the Host header of the request names another machine")
            is_foreign |= origin is not None and not _is_same_origin(origin.decode("latin-1"), host)
        except (KeyError, ValueError):
            is_foreign = True
        if is_foreign:
            raise ApiError(403, "web pages from other sites may not send requests to this server")


def _is_same_origin(origin: str, host: str) -> bool:
    """Returns whether the web page that sent a request came from this server: `origin` has the host
    name and port of the Host header. Raises KeyError, ValueError: the origin is malformed."""
    page = urlsplit(origin)
    server = urlsplit(f"{page.scheme}://{host}")
    default = _PORTS[page.scheme]
    return (page.hostname, page.port or default) == (server.hostname, server.port or default)


async def read_request_body(request: Request, limit: int) -> bytes:
    """Returns the body of a request, of at most `limit` bytes. Raises ApiError 400, 408, 413."""
    too_large = ApiError(413, f"the request is larger than {limit:,} bytes")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limit:
        raise too_large
    data = bytearray()
    try:
        async with asyncio.timeout(SEND_WITHIN_S):
            async for piece in request.stream():
                data += piece
                if len(data) > limit:
                    raise too_large
    except TimeoutError as error:
        raise ApiError(408, f"the whole request did not arrive within {SEND_WITHIN_S} s") from error
    except ClientDisconnect as error:
        raise ApiError(400, "the client disconnected before the end of the request") from error
    return bytes(data)
