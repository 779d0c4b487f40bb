"""Documents that clients of `esa serve` have sent for one session. Only their texts are kept, in
memory alone, until they are removed or have not been used for half a day."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document
from esa_cli.documents.readers import extract_text

SESSION = "session:"
"""The beginning of ids of session documents; the client's random session and a number follow."""
MAX_DOCUMENTS = 20
"""How many documents one session may have."""
MAX_CHARACTERS = 100_000_000
"""How many characters the texts of all sessions may have together."""
LIFE_S = 12 * 3600.0
"""Seconds after the last use of a session until its documents are forgotten."""
_MAX_NAME = 200


def parse_sent_document(data: bytes, file_name: str, source: str) -> Document:
    """Extracts the text of a file that a client has sent. Of `file_name` only the last part counts,
    as a name to show; it is never opened. Raises DocumentError. ApiError 400: no name is left."""
    name = re.split(r"[/\\]", file_name)[-1].strip()[-_MAX_NAME:]
    if not name.strip("."):
        raise ApiError(400, f"name must be the name of a file, got {file_name!r}", "name")
    found = extract_text(data, name)
    return Document(
        name, found.text, source + name, found.encoding, len(data), found.marks, found.missing
    )


@dataclass
class _Session:
    documents: dict[str, Document] = field(default_factory=dict)
    used_s: float = 0.0


class SessionDocuments:
    """The documents of all sessions, by their ids. Any thread may call its methods. `forget` is
    called with the id of each removed document."""

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self._sessions: dict[str, _Session] = {}
        self._added = 0
        self._lock = threading.Lock()

    def add_document(self, session: str, document: Document) -> str:
        """Adds a document to a session and returns its id. Raises ApiError 413: no room is left."""
        with self._lock:
            self._forget_unused_sessions()
            found = self._sessions.get(session, _Session())
            kept = sum(
                len(one.text) for each in self._sessions.values() for one in each.documents.values()
            )
            if len(found.documents) >= MAX_DOCUMENTS:
                wrong = f"a session may have {MAX_DOCUMENTS} documents; remove one first"
                raise ApiError(413, wrong, code="no_room")
            if kept + len(document.text) > MAX_CHARACTERS:
                wrong = "the server has no room for this document now; add it to the library"
                raise ApiError(413, wrong, code="no_room")
            self._added += 1
            id = f"{SESSION}{session}:{self._added}"
            found.documents[id], found.used_s = document, time.monotonic()
            self._sessions[session] = found
            return id

    def list_documents(self, session: str) -> dict[str, Document]:
        """Returns the documents of a session by their ids; an unknown session has none."""
        with self._lock:
            self._forget_unused_sessions()
            found = self._sessions.get(session, _Session())
            found.used_s = time.monotonic()
            return dict(found.documents)

    def remove_document(self, id: str) -> bool:
        """Forgets a document; returns whether it was there."""
        with self._lock:
            session = self._sessions.get(parse_session(id), _Session())
            is_known = session.documents.pop(id, None) is not None
        if is_known:
            self._forget(id)
        return is_known

    def _forget_unused_sessions(self) -> None:
        oldest = time.monotonic() - LIFE_S
        for name in [name for name, one in self._sessions.items() if one.used_s < oldest]:
            for id in self._sessions.pop(name).documents:
                self._forget(id)


def parse_session(id: str) -> str:
    """Returns the session of a document's id, or "" if it is the id of no session document."""
    return id.split(":")[1] if id.startswith(SESSION) else ""
