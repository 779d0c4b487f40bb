"""The log of the questions that a user has asked, with their answers: an SQLite file of this user.

`ESA_LOG` is another path, or `off`. In a conversation a row has the number of the row `before`."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.errors import DiskError, HistoryError, UsageError
from esa_cli.qa.answering.reply import Reply, Turn
from esa_cli.qa.api import Esa
from esa_cli.system.machine import expand_home_folder

OFF = ("off", "0", "no")
MAX_TURNS = 8
"""The maximum number of earlier turns with which a conversation goes on."""
_TABLE = """CREATE TABLE IF NOT EXISTS questions (id INTEGER PRIMARY KEY, time TEXT, documents TEXT,
library INTEGER, question TEXT, answer TEXT, certainty TEXT, model TEXT, before INTEGER)"""
_HINT = "set ESA_LOG=off to keep no log, or ESA_LOG to another path"


class LoggedQuestion(NamedTuple):
    """A row of the log. `documents` are absolute paths as named in the command; `library` says
    whether the library was asked, too; `before` is the row of the question before, if any."""

    id: int
    time: str
    documents: list[str]
    library: bool
    question: str
    answer: str
    certainty: str | None
    model: str
    before: int | None


def find_log_path() -> Path | None:
    """Returns the path of the user's log, or None if the user keeps no log. Raises UsageError."""
    given = os.environ.get("ESA_LOG", "")
    if given.lower() in OFF:
        return None
    if given:
        return expand_home_folder(given, "ESA_LOG", UsageError)
    import platformdirs

    return Path(platformdirs.user_state_dir("esa")) / "log.sqlite"


@contextmanager
def _open_log(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens the log, and makes it with rights for its user alone. Raises DiskError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(_TABLE)
            yield db
    except (OSError, sqlite3.Error) as error:
        raise DiskError(f"the log of questions {path} cannot be used: {error}", _HINT) from error


def list_logged_questions(path: Path, count: int = -1) -> list[LoggedQuestion]:
    """Lists the last `count` questions of a log, oldest first; -1 means all. Raises DiskError."""
    if not path.exists():
        return []
    with _open_log(path) as db:
        rows = db.execute("SELECT * FROM questions ORDER BY id DESC LIMIT ?", (count,)).fetchall()
    return [
        LoggedQuestion(id, time, json.loads(documents), bool(library), *rest)
        for id, time, documents, library, *rest in reversed(rows)
    ]


class LoggedConversation:
    """A conversation about documents (their names as in the command) and maybe the library, which
    goes on from `earlier` turns, oldest first. Turns are appended to the user's log, if any."""

    def __init__(
        self,
        documents: Sequence[str],
        library: bool = False,
        earlier: Sequence[LoggedQuestion] = (),
    ) -> None:
        self.documents, self.library, self._path = list(documents), library, find_log_path()
        self.turns = [Turn(one.question, one.answer) for one in earlier]
        self.forgotten = 0
        """How many of the oldest turns no longer fit into the model's window."""
        self._before = earlier[-1].id if earlier else None

    @classmethod
    def resume(cls, documents: Sequence[str], library: bool) -> LoggedConversation:
        """Returns the last conversation about the documents or, without documents, the last one.
        Raises DiskError. UsageError: there is no such conversation, or no log."""
        path, paths = find_log_path(), _make_absolute(documents)
        if path is None:
            raise UsageError("ESA_LOG=off keeps no log with which to go on", "unset ESA_LOG")
        rows = {row.id: row for row in list_logged_questions(path)}
        is_named, asked = bool(documents or library), (paths, library)
        found = [r for r in rows.values() if not is_named or (r.documents, r.library) == asked]
        if not found:
            about = " about these documents" if is_named else ""
            raise UsageError(f"no earlier question{about} is in the log", "leave out --continue")
        last, chain = found[-1], found[-1:]
        while len(chain) < MAX_TURNS and (before := rows.get(chain[0].before or 0)) is not None:
            chain.insert(0, before)
        here = Path.cwd()
        near = [os.path.relpath(p) if Path(p).is_relative_to(here) else p for p in last.documents]
        return cls(documents if is_named else near, last.library, chain)

    def ask(self, esa: Esa, question: str, books: Sequence[Any], **arguments: Any) -> Reply:
        """Answers a question with the earlier turns as its history, without the oldest if they do
        not fit into the model's window. `arguments` are those of `Esa.ask`. Raises EsaError."""
        while True:
            history = self.turns[self.forgotten :]
            try:
                return esa.ask(question, books, history=history, **arguments)
            except HistoryError:
                if not history:
                    raise
                self.forgotten += 1

    def append(self, question: str, reply: Reply, esa: Esa, warn: Callable[[str], None]) -> None:
        """Appends a turn, also to the log; warns if the log cannot be written."""
        self.turns.append(Turn(question, reply.text))
        if self._path is None:
            return
        row = (
            None, datetime.now().astimezone().isoformat(timespec="seconds"),
            json.dumps(_make_absolute(self.documents)), self.library, question, reply.text,
            reply.certainty, (esa.reader or esa).name, self._before,
        )  # fmt: skip
        try:
            with _open_log(self._path) as db:
                done = db.execute("INSERT INTO questions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
                self._before = done.lastrowid
        except DiskError as error:
            self._path = None
            warn(f"esa: {error.message}; {error.hint}")


def _make_absolute(document_names: Sequence[str]) -> list[str]:
    return [name if name == "-" else os.path.abspath(name) for name in document_names]
