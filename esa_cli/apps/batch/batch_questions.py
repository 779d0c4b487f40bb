"""The questions file: one JSON object a line.

    {"question": "Who is Ahab?", "documents": ["book.txt"], "id": "q1"}

`documents` are paths relative to the file, folders and patterns; the default are the command's.
Each list of them is expanded once, for all questions. A line that is no valid question becomes a
question with a fault, so that the others are still answered. Documents are not read here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from esa_cli.documents.document import SourceFiles, source_files
from esa_cli.errors import DocumentError
from esa_cli.system.text import has_lone_surrogate, load_json, text_digest
from esa_cli.system.work_shard import WorkShard

EXAMPLE = 'write one JSON object a line: {"question": "...", "documents": ["book.txt"]}'


@dataclass(frozen=True)
class BatchQuestion:
    """One line of the file.

    Args:
        line: its number in the file. id: as given; by default the question's number.
        documents: as written. meant: the files they stand for.
        key: digests of the question with the settings of its answer, and of its files' contents.
        fault: why it cannot be asked; empty when it can.
    """

    line: int
    id: Any
    question: str
    documents: tuple[str, ...]
    meant: SourceFiles
    key: str
    fault: str = ""


def read_questions(
    path: Path, documents: Sequence[str], settings: Mapping[str, Any]
) -> list[BatchQuestion]:
    """All questions of the file, in order.

    Args:
        documents: paths, folders and patterns for the questions without documents.
        settings: whatever else an answer depends on; part of every key.

    Raises:
        DocumentError: the file cannot be read, or has no valid question; or one of `documents` is
            a folder or pattern without files.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    default = source_files(documents)

    @cache
    def files(own: tuple[str, ...] | None) -> SourceFiles:
        return default if own is None else source_files([str(path.parent / name) for name in own])

    contents = cache(_contents)
    questions: list[BatchQuestion] = []
    for number, raw in enumerate(lines, 1):
        if raw.strip():
            questions.append(_question(raw, number, len(questions) + 1, files, contents, settings))
    if all(question.fault for question in questions):
        why = f"line {questions[0].line}: {questions[0].fault}" if questions else "it is empty"
        raise DocumentError(f"no line of {path} is a valid question; {why}", EXAMPLE)
    return questions


def _question(
    raw: bytes,
    line: int,
    number: int,
    files: Callable[[tuple[str, ...] | None], SourceFiles],
    contents: Callable[[str], str],
    settings: Mapping[str, Any],
) -> BatchQuestion:
    """The question of a line, `number` among the questions. `files` may raise DocumentError;
    `contents` gives the digest of a file."""
    row, fault = _object(raw)
    text, own = row.get("question"), row.get("documents")
    fault = fault or _fault(row, bool(files(None).sources))
    if fault:
        shown = text if isinstance(text, str) and not has_lone_surrogate(text) else ""
        key = _key(["fault", raw.hex()], [])
        return BatchQuestion(line, number, shown, (), SourceFiles(), key, fault)
    named = files(None).paths if own is None else tuple(own)
    meant = SourceFiles()
    try:
        meant = files(None if own is None else named)
    except DocumentError as error:
        fault = error.message
    key = _key([text, named, row.get("id"), settings], [contents(path) for path in meant.paths])
    return BatchQuestion(line, row.get("id", number), str(text), named, meant, key, fault)


def _object(raw: bytes) -> tuple[dict[str, Any], str]:
    try:
        row = load_json(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8 is a ValueError, too
        return {}, f"the line must be JSON in UTF-8: {error}"
    return (row, "") if isinstance(row, dict) else ({}, "the line must be a JSON object")


def _fault(row: Mapping[str, Any], has_default: bool) -> str:
    text, own = row.get("question"), row.get("documents")
    # Else the question would be asked about the command's documents.
    slips = [key for key in row if get_close_matches(key.lower(), ("documents", "docs"), 1, 0.85)]
    if own is None and slips:
        return f'the key must be "documents", got "{slips[0]}"'
    if not isinstance(text, str) or not text.strip():
        return '"question" must be a text that is not empty'
    if own is None and not has_default:
        return "documents must be named in the line or on the command line"
    if own is not None and not (
        isinstance(own, list) and own and all(isinstance(name, str) and name for name in own)
    ):
        return '"documents" must be a list of paths'
    if own is not None and "-" in own:
        return "documents must be files, got standard input (-)"
    if has_lone_surrogate(json.dumps(row, ensure_ascii=False)):
        return "the line must not have lone surrogates (U+D800-U+DFFF)"
    return ""


def _key(asked: Any, contents: Sequence[str]) -> str:
    """In two parts, as of `OrderedJsonLines`: answers from former contents are out of date."""
    parts = [json.dumps(part, sort_keys=True, default=str) for part in (asked, contents)]
    return ".".join(text_digest(part)[:16] for part in parts)


def _contents(path: str) -> str:
    """The SHA-256 of a file; empty where it is none or cannot be read."""
    try:
        if not os.path.isfile(path):
            return ""
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return ""


Group = list[tuple[int, BatchQuestion]]
"""Questions about the same documents, with their indices."""


def groups(questions: Sequence[BatchQuestion], wanted: Callable[[int], bool]) -> list[Group]:
    """The wanted questions by their documents, in the order of their first questions."""
    by_documents: dict[SourceFiles, Group] = {}
    for index, question in enumerate(questions):
        if wanted(index):
            by_documents.setdefault(question.meant, []).append((index, question))
    return list(by_documents.values())


def shard_of_questions(questions: Sequence[BatchQuestion], shard: WorkShard) -> list[BatchQuestion]:
    """The questions of a shard, in the order of the file: a stretch of the order in which they are
    asked, so that few documents are in two shards."""
    if shard.whole:
        return list(questions)
    asked = [index for group in groups(questions, lambda index: True) for index, _ in group]
    return [questions[index] for index in sorted(shard.block(asked))]
