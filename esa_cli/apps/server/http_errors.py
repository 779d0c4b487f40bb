"""What went wrong with an answer -> an error in OpenAI's shape, with whose mistake it was.

What is wrong with the server's library or disk is nothing a client can mend: paths and hints are
for the server's log.
"""

from __future__ import annotations

from esa_cli.apps.server.wire import ApiError
from esa_cli.errors import (
    DiskError,
    DocumentError,
    EsaError,
    LibraryError,
    ResourceError,
    UsageError,
)


def of_server(error: Exception) -> bool:
    """Whether this is for whoever runs the server: its library is broken, or its disk full."""
    return isinstance(error, LibraryError | DiskError)


def as_api_error(error: Exception) -> ApiError:
    """What to tell the client."""
    if not isinstance(error, EsaError):
        return ApiError(500, "a bug in esa; its log has more")
    if of_server(error):
        if isinstance(error, DiskError):
            return ApiError(507, "the server's disk is full; its log has more", code="no_room")
        return ApiError(500, "the server's library cannot be used; its log has more")
    message = said(error)
    if isinstance(error, DocumentError):
        return ApiError(400, message, "documents", "document")
    if isinstance(error, UsageError):
        return ApiError(400, message, "messages")
    if isinstance(error, ResourceError):
        return ApiError(413, message, code="no_room")
    return ApiError(500, message)


def said(error: EsaError) -> str:
    """Message and hint."""
    return f"{error.message}; {error.hint}" if error.hint else error.message
