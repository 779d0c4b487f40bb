"""Documents that clients of `esa serve` have sent for one session. Only their texts are kept, in
memory alone, until they are removed or have not been used for half a day."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

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


class SessionDocuments:
    """The documents of all sessions, by their ids. Any thread may call its methods. `forget` is
    called with the id of each removed document."""

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self._sessions: dict[str, dict[str, Document]] = {}
        self._used_s: dict[str, float] = {}
        self._added = 0
        self._lock = threading.Lock()

    def add_document(self, session: str, document: Document) -> str:
        """Adds a document to a session and returns its id. Raises ApiError 413: no room is left."""
        with self._lock:
            self._forget_unused_sessions()
            documents = self._sessions.get(session, {})
            kept = sum(len(one.text) for each in self._sessions.values() for one in each.values())
            if len(documents) >= MAX_DOCUMENTS:
                wrong = f"a session may have {MAX_DOCUMENTS} documents; remove one first"
                raise ApiError(413, wrong, code="no_room")
            if kept + len(document.text) > MAX_CHARACTERS:
                wrong = "the server has no room for this document now; add it to the library"
                raise ApiError(413, wrong, code="no_room")
            self._added += 1
            id = f"{SESSION}{session}:{self._added}"
            self._sessions[session] = {**documents, id: document}
            self._used_s[session] = time.monotonic()
            return id

    def list_documents(self, session: str) -> dict[str, Document]:
        """Returns the documents of a session by their ids; an unknown session has none."""
        with self._lock:
            self._forget_unused_sessions()
            if session in self._sessions:
                self._used_s[session] = time.monotonic()
            return dict(self._sessions.get(session, {}))

    def remove_document(self, id: str) -> bool:
        """Forgets a document; returns whether it was there."""
        with self._lock:
            is_known = self._sessions.get(parse_session(id), {}).pop(id, None) is not None
        if is_known:
            self._forget(id)
        return is_known

    def _forget_unused_sessions(self) -> None:
        oldest = time.monotonic() - LIFE_S
        for name in [name for name, used_s in self._used_s.items() if used_s < oldest]:
            del self._used_s[name]
            for id in self._sessions.pop(name):
                self._forget(id)


def parse_session(id: str) -> str:
    """Returns the session of a document's id, or "" if it is the id of no session document."""
    return id.split(":")[1] if id.startswith(SESSION) else ""
