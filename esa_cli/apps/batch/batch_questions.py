"""The questions file: one JSON object a line.

    {"question": "Who is Ahab?", "documents": ["book.txt"], "id": "q1"}

`documents` are relative to the file, folders and patterns among them; without them the command's
own hold. What folders and patterns mean is looked up once, for all questions. A line that cannot be
asked becomes a question with a fault, so that the others go on. Reads no document.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esa_cli.documents.document import Meant, meant
from esa_cli.errors import DocumentError
from esa_cli.system.digest import text_digest
from esa_cli.system.surrogates import has_lone_surrogate

_LIKELY = ("documents", "docs")
"""Other keys may stand there and mean nothing; but one like these is a slip, and the question would
be asked of the command's documents."""


@dataclass(frozen=True)
class Question:
    """One line of the file.

    Args:
        line: its number in the file. id: as given, else the question's own number.
        documents: as written. meant: the files they are, from here.
        key: tells it from every other question, and from itself under other settings.
        fault: why it cannot be asked; empty when it can.
    """

    line: int
    id: Any
    question: str
    documents: tuple[str, ...]
    meant: Meant
    key: str
    fault: str = ""


def read(path: Path, documents: Sequence[str], settings: Mapping[str, Any]) -> list[Question]:
    """All questions of the file, in order.

    Args:
        documents: what a question without documents is about; folders and patterns among them.
        settings: what an answer depends on besides; part of every key.

    Raises:
        DocumentError: the file cannot be read, or no line of it is a question; or one of
            `documents` is a folder or pattern that means nothing.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror}", "check the path") from error
    found: list[Question] = []
    sources = _Sources(path.parent, meant(documents))
    for number, raw in enumerate(lines, 1):
        if raw.strip():
            found.append(_question(raw, number, len(found) + 1, sources, settings))
    if not found:
        raise DocumentError(f"{path} holds no question", "one JSON object a line")
    if all(one.fault for one in found):
        first = found[0]
        raise DocumentError(
            f"no line of {path} is a question; line {first.line}: {first.fault}",
            'one JSON object a line: {"question": "...", "documents": ["book.txt"]}',
        )
    return found


class _Sources:
    """Documents as written -> the files they mean; each list is looked up once."""

    def __init__(self, folder: Path, default: Meant) -> None:
        self.folder, self.default = folder, default
        self._known: dict[tuple[str, ...], Meant] = {}

    def find(self, own: tuple[str, ...] | None) -> Meant:
        """Raises DocumentError: a folder or pattern means nothing."""
        if own is None:
            return self.default
        if own not in self._known:
            self._known[own] = meant([str(self.folder / name) for name in own])
        return self._known[own]


def _question(
    raw: bytes, line: int, number: int, sources: _Sources, settings: Mapping[str, Any]
) -> Question:
    row, fault = _object(raw)
    text, own = row.get("question"), row.get("documents")
    fault = fault or _fault(row, bool(sources.default.sources))
    if fault:
        shown = text if isinstance(text, str) and not has_lone_surrogate(text) else ""
        return Question(line, number, shown, (), Meant(), _key(["fault", raw.hex()]), fault)
    assert isinstance(text, str)
    named = sources.default.paths if own is None else tuple(own)
    found = Meant()
    try:
        found = sources.find(None if own is None else named)
    except DocumentError as error:
        fault = error.message
    key = _key([text, named, row.get("id"), settings])
    return Question(line, row.get("id", number), text, named, found, key, fault)


def _object(raw: bytes) -> tuple[dict[str, Any], str]:
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return {}, "not UTF-8"
    except (ValueError, RecursionError) as error:
        return {}, f"not JSON: {error}"
    return (row, "") if isinstance(row, dict) else ({}, "not a JSON object")


def _fault(row: Mapping[str, Any], has_default: bool) -> str:
    text, own = row.get("question"), row.get("documents")
    slips = [key for key in row if difflib.get_close_matches(key.lower(), _LIKELY, 1, 0.85)]
    if own is None and slips:
        return f'"{slips[0]}" means nothing here; did you mean "documents"?'
    if not isinstance(text, str) or not text.strip():
        return '"question" is missing, or no text'
    if own is None and not has_default:
        return "no documents, neither here nor on the command line"
    if own is not None and not (
        isinstance(own, list) and own and all(isinstance(name, str) and name for name in own)
    ):
        return '"documents" is not a list of paths'
    if own is not None and "-" in own:
        return "standard input (-) cannot be a document here"
    if has_lone_surrogate(json.dumps(row, ensure_ascii=False)):
        return "half a surrogate pair, which is no character"
    return ""


def _key(parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, default=str)
    return text_digest(text)[:16]
