"""Who may come in: the token, the host a browser was told, and the size of what is sent.

Without a token only this machine can reach the server, but any web page it shows can, too: its
requests carry the page's own Origin, or, where a foreign name was made to lead here, that Host.
Both are refused.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from esa_cli.apps.server.wire import ApiError

SEND_WITHIN_S = 30
OPEN = ("/health",)
"""Paths that need no token."""


def is_loopback(host: str) -> bool:
    """Whether a name or address, without a port, means this machine alone."""
    name = host.strip("[]").rstrip(".").lower()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def refused(error: ApiError) -> JSONResponse:
    """The error as a response. OpenAI's client comes again where it is not told to stay away."""
    headers = {"x-should-retry": "false"} if error.retry is None else {}
    if error.retry is not None:
        headers["retry-after"] = str(error.retry)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error.body(), error.status, headers)


class Guard:
    """Lets through who may come in.

    Args:
        token: what `Authorization: Bearer` must hold; None where only this machine can connect.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._fault(scope) if scope["type"] == "http" else None
        if error is None:
            await self.app(scope, receive, send)
        else:
            await refused(error)(scope, receive, send)

    def _fault(self, scope: Scope) -> ApiError | None:
        headers = dict(scope["headers"])
        if self.token is None:
            host = headers.get(b"host", b"").decode("latin-1")
            origin = headers.get(b"origin")
            if not _is_here(f"//{host}"):
                return ApiError(403, "the Host header names another machine")
            if origin is not None and not _is_here(origin.decode("latin-1")):
                return ApiError(403, "pages of other origins may not ask here")
            return None
        if scope["path"] in OPEN:
            return None
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self.token):
            return None
        return ApiError(401, "the token is missing or wrong", code="invalid_api_key")


def _is_here(address: str) -> bool:
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        return False


async def body(request: Request, limit: int) -> bytes:
    """What was sent. Raises ApiError 408, 413."""
    too_large = ApiError(413, f"the request is larger than {limit:,} bytes")
    stated = request.headers.get("content-length", "0")
    if not stated.isdecimal() or int(stated) > limit:
        raise too_large
    data = bytearray()
    try:
        async with asyncio.timeout(SEND_WITHIN_S):
            async for piece in request.stream():
                data += piece
                if len(data) > limit:
                    raise too_large
    except TimeoutError as error:
        raise ApiError(408, f"the request did not come within {SEND_WITHIN_S} s") from error
    except ClientDisconnect as error:
        raise ApiError(400, "the request was not sent to its end") from error
    return bytes(data)
