"""Runs the application on a socket until it is told to end."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from esa_cli.errors import UsageError

END_WITHIN_S = 10


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises UsageError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, proto)
    except OSError as error:
        raise UsageError(
            f"there is no address {host}: {error.strerror}", "try --host 127.0.0.1"
        ) from error
    try:
        if hasattr(socket, "SO_REUSEADDR") and not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        found.close()
        raise UsageError(
            f"cannot listen on {host}, port {port}: {error.strerror}", "choose another --port"
        ) from error
    return found


def address(sock: socket.socket) -> str:
    """The base URL that clients need."""
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def make_server(app: ASGIApp) -> uvicorn.Server:
    """A server for `app`; `run(sockets=[...])` runs it until `should_exit` is set."""
    return uvicorn.Server(
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


def run(app: ASGIApp, sock: socket.socket) -> None:
    """Serves until Ctrl-C or SIGTERM; answers that are being given have some seconds to end."""
    with _signals_end_the_server_alone():
        make_server(app).run(sockets=[sock])


@contextmanager
def _signals_end_the_server_alone() -> Iterator[None]:
    """uvicorn raises the signal again once it has ended; here it has done what it should."""
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
