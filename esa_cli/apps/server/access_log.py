"""Writes one line of JSON for each request to `esa serve` into the file of --log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

FACTS = "esa.log"
"""The key in an ASGI scope of a dict to which routes add facts about a request for its line."""
_LONGEST_ROUTE = 200


class AccessLogMiddleware:
    """ASGI middleware that writes a line at the end of each request: time, client, route, status,
    seconds, and tokens of the answer; with `with_questions` the question, too. A line never has the
    query of an address, which may name a document. `warn` is told once why lines are missing."""

    def __init__(
        self, app: ASGIApp, file: TextIO, with_questions: bool, warn: Callable[[str], None]
    ) -> None:
        self.app, self._file, self._with_questions, self._warn = app, file, with_questions, warn
        self._is_writable = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, started_s, status = datetime.now(UTC), time.monotonic(), 500

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note_status)
        finally:
            facts = scope.get(FACTS, {})
            line = {
                "time": began.isoformat(timespec="seconds"),
                "client": (scope.get("client") or ("",))[0],
                "route": f"{scope['method']} {scope['path'][:_LONGEST_ROUTE]}",
                "status": status,
                "seconds": round(time.monotonic() - started_s, 3),
                "tokens": None,
                **facts,
            }
            if not self._with_questions:
                line.pop("question", None)
            try:
                self._file.write(json.dumps(line) + "\n")
                self._file.flush()
            except OSError as error:
                if self._is_writable:
                    self._warn(f"esa: the log cannot be written: {error.strerror}")
                self._is_writable = False
