"""Access control of requests: the token, the Host and Origin headers, and the size.

Without a token only this machine can connect, but any web page that a browser shows here can, too:
its requests have the page's own Origin, or, where a foreign name was made to resolve to this
machine, that Host. Both are refused, and so are pages of other ports; their images and scripts,
which send no Origin, by Sec-Fetch-Site. Starlette's TrustedHostMiddleware cannot do it: its list of
hosts has no networks (127.0.0.0/8), it does not check Origin, and its error has another shape.
"""

from __future__ import annotations

import asyncio
import hmac
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from esa_cli.apps.server.wire import ApiError
from esa_cli.system.machine import is_loopback

SEND_WITHIN_S = 30
PAGE = "/"
WITHOUT_TOKEN = ("/health", PAGE)
"""Paths that need no token: they have nothing of the documents."""
_FOREIGN = (b"cross-site", b"same-site")
_PORTS = {"http": 80, "https": 443}


class AccessCheck:
    """ASGI middleware that refuses foreign requests, and passes others on when all of their body is
    there. `token`: what `Authorization: Bearer` must contain; None where only this machine can
    connect. `max_body`: bytes."""

    def __init__(self, app: ASGIApp, token: str | None, max_body: int) -> None:
        self.app, self.max_body = app, max_body
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            if refusal := self._refusal(scope):
                raise refusal
            body = await self._body(Request(scope, receive))
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self.app(scope, replay, send)

    async def _body(self, request: Request) -> bytes:
        """Raises ApiError 400, 408, 413."""
        too_large = ApiError(413, f"the request is larger than {self.max_body:,} bytes")
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.max_body:
            raise too_large
        data = bytearray()
        try:
            async with asyncio.timeout(SEND_WITHIN_S):
                async for piece in request.stream():
                    data += piece
                    if len(data) > self.max_body:
                        raise too_large
        except TimeoutError as error:
            raise ApiError(408, f"the request did not come within {SEND_WITHIN_S} s") from error
        except ClientDisconnect as error:
            raise ApiError(400, "the request was not sent to its end") from error
        return bytes(data)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = dict(scope["headers"])
        if self.token is not None:
            kind, _, token = headers.get(b"authorization", b"").partition(b" ")
            is_right = kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self.token)
            if is_right or scope["path"] in WITHOUT_TOKEN:
                return None
            return ApiError(401, "the token is missing or wrong", code="invalid_api_key")
        host = headers.get(b"host", b"").decode("latin-1")
        if not _is_here(f"//{host}"):
            return ApiError(403, "the Host header names another machine")
        origin = headers.get(b"origin")
        is_link = scope["path"] == PAGE and headers.get(b"sec-fetch-mode") == b"navigate"
        is_foreign = headers.get(b"sec-fetch-site") in _FOREIGN and not is_link
        if is_foreign or (origin is not None and not _is_own(origin.decode("latin-1"), host)):
            return ApiError(403, "pages of other origins may not ask here")
        return None


def _is_here(address: str) -> bool:
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        return False


def _is_own(origin: str, host: str) -> bool:
    """Whether a page of this origin comes from the address that the request was sent to: a page of
    another port is another program's."""
    try:
        page = urlsplit(origin)
        asked = urlsplit(f"{page.scheme}://{host}")
        default = _PORTS[page.scheme]
        return (page.hostname, page.port or default) == (asked.hostname, asked.port or default)
    except (KeyError, ValueError):
        return False
