"""Runs the ASGI application on a socket until a signal ends it."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from esa_cli.errors import UsageError

END_WITHIN_S = 10
"""Seconds that answers have to end after a signal."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free port. Raises UsageError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address, family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is no name of a machine"
        raise UsageError(
            f"cannot listen on {host}, port {port}: {why}",
            "choose another --port, or --host 127.0.0.1",
        ) from error


def address(sock: socket.socket, path: str = "/v1") -> str:
    """The base URL for clients."""
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"


def make_server(app: ASGIApp) -> uvicorn.Server:
    """A server whose `run(sockets=[...])` returns after `should_exit` is set."""
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=END_WITHIN_S,
        )
    )
    if isinstance(app, Starlette):
        app.state.is_ending = lambda: server.should_exit
    return server


def run(app: ASGIApp, sock: socket.socket) -> None:
    """Returns after Ctrl-C or SIGTERM."""
    with _without_raised_signals():
        make_server(app).run(sockets=[sock])


@contextmanager
def _without_raised_signals() -> Iterator[None]:
    """Ignores the signal that uvicorn raises again after its end: the command ends normally."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
