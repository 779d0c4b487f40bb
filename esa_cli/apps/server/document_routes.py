"""The routes of documents: which there are, and their text in pieces."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from esa_cli.apps.server.allowed_documents import AllowedDocuments
from esa_cli.apps.server.completion_json import json_bytes
from esa_cli.apps.server.document_listing import list_documents
from esa_cli.apps.server.http_errors import ApiError, as_api_error
from esa_cli.documents.document import Document
from esa_cli.errors import EsaError

MOST_CHARACTERS = 100_000
DEFAULT_CHARACTERS = 20_000
PRIVATE = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
"""Headers of whatever has a document's text or name: no other page's element may load it."""


class DocumentRoutes:
    """`GET /v1/documents` and `GET /v1/documents/text`, which need no model."""

    def __init__(self, documents: AllowedDocuments) -> None:
        self.documents = documents

    async def list(self, request: Request) -> Response:
        return _private(await run_in_threadpool(list_documents, self.documents))

    async def text(self, request: Request) -> Response:
        name = request.query_params.get("document", "")
        if not name:
            raise ApiError(400, "document must be an id of /v1/documents, got none", "document")
        start = _number(request, "start", 0, 0, None)
        length = _number(request, "length", DEFAULT_CHARACTERS, 1, MOST_CHARACTERS)
        try:
            document = await run_in_threadpool(self.documents.document, name)
        except EsaError as error:
            raise as_api_error(error) from error
        return _private(await run_in_threadpool(_piece, name, document, start, length))


def _number(request: Request, name: str, default: int, least: int, most: int | None) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    number = int(given) if given.isascii() and given.isdecimal() and len(given) < 16 else -1
    if number < least or (most is not None and number > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ApiError(400, f"{name} must be a whole number {limits}, got {given[:40]!r}", name)
    return number


def _piece(id: str, document: Document, start: int, length: int) -> dict[str, Any]:
    """A piece of the text, and the pages and chapters that begin in it; the first of these is that
    of the piece's first character."""
    text = document.text
    start = min(start, len(text))
    end = min(start + length, len(text))
    place = document.place(start)
    inside = [one for one in document.marks if start < one.start < end]
    marks = [{"start": start, "page": place.page, "chapter": place.chapter}]
    marks += [{"start": m.start, "page": m.page, "chapter": m.chapter} for m in inside]
    return {
        "id": id, "object": "document.text", "name": document.name, "characters": len(text),
        "start": start, "end": end, "line": place.line, "text": text[start:end],
        "marks": marks, "missing": list(document.missing),
    }  # fmt: skip


def _private(data: dict[str, Any]) -> Response:
    return Response(json_bytes(data), media_type="application/json", headers=PRIVATE)
