"""Errors in OpenAI's shape, and which one an exception of an answer becomes.

A broken library or a full disk is for whoever runs the server: the client gets neither paths nor
hints of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from esa_cli.apps.server.worker import RefusedError
from esa_cli.errors import (
    DiskError,
    DocumentError,
    EsaError,
    LengthError,
    LibraryError,
    ReaderError,
    ResourceError,
    UsageError,
)
from esa_cli.system.machine import memory_ran_out

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class ApiError(RefusedError):
    """An error that the client gets for an answer.

    Args:
        param: the parameter of the request that is at fault. retry: seconds after which to try
            again; None where that does not help.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry: int | None = None

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": _KINDS.get(self.status, kind)}
        return {"error": {**error, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """OpenAI's client tries again unless a header forbids it."""
        headers = {"x-should-retry": "false"} if self.retry is None else {}
        if self.retry is not None:
            headers["retry-after"] = str(self.retry)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def is_of_server(error: Exception) -> bool:
    """True if whoever runs the server must act: its library is broken, its disk full, or the reader
    that words answers gone."""
    return isinstance(error, LibraryError | DiskError | ReaderError)


def as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException) and error.status_code == 404:
        return ApiError(404, "there is no such path; questions go to POST /v1/chat/completions")
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail))
    if memory_ran_out(error):
        return ApiError(503, "the server's memory ran out; its log has more", code="no_room")
    if not isinstance(error, EsaError):
        return ApiError(500, "a bug in esa; its log has more")
    if isinstance(error, DiskError):
        return ApiError(507, "the server's disk is full; its log has more", code="no_room")
    if isinstance(error, LibraryError):
        return ApiError(500, "the server's library cannot be used; its log has more")
    if isinstance(error, ReaderError):
        return ApiError(502, "the server's reader cannot be used; its log has more")
    message = with_hint(error)
    if isinstance(error, DocumentError):
        return ApiError(400, message, "documents", "document")
    if isinstance(error, LengthError):
        return ApiError(400, message, "messages", "context_length_exceeded")
    if isinstance(error, UsageError):
        return ApiError(400, message, "messages")
    if isinstance(error, ResourceError):
        return ApiError(413, message, code="no_room")
    return ApiError(500, message)


def with_hint(error: EsaError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message
