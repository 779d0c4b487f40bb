"""Questions from a file: one JSON object a line, and the row of each answer. Shows nothing.

    {"question": "Who is Ahab?", "documents": ["book.txt"], "id": "q1"}

`documents` are paths relative to the file, folders and patterns; the default are the command's.
Each list of them is expanded once. A line that is no valid question becomes a question with a
fault, so that the others are still answered. Questions about the same documents are asked together.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.open_books import OpenBooks
from esa_cli.documents.document import GatheredDocuments, LeftOut, SourceFiles, gather, source_files
from esa_cli.errors import DocumentError, EsaError, UsageError
from esa_cli.qa.answering.reply import Reply, lacking
from esa_cli.system.jsonl import OrderedJsonLines
from esa_cli.system.progress import WorkShard
from esa_cli.system.text import has_lone_surrogate, load_json, text_digest

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

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
    contents = cache(_contents)

    @cache
    def files(names: tuple[str, ...] | None) -> SourceFiles:
        return default if names is None else source_files([str(path.parent / n) for n in names])

    def question(line: int, raw: bytes, number: int) -> BatchQuestion:
        row, fault = _parse(raw, bool(default.sources))
        text, names = row.get("question"), row.get("documents")
        if fault:
            shown = text if isinstance(text, str) and not has_lone_surrogate(text) else ""
            key = _key(["fault", raw.hex()], [])
            return BatchQuestion(line, number, shown, (), SourceFiles(), key, fault)
        named = default.paths if names is None else tuple(names)
        meant = SourceFiles()
        try:
            meant = files(None if names is None else named)
        except DocumentError as error:
            fault = error.message
        asked = [text, named, row.get("id"), settings]
        key = _key(asked, [contents(name) for name in meant.paths])
        return BatchQuestion(line, row.get("id", number), str(text), named, meant, key, fault)

    numbered = [(line, raw) for line, raw in enumerate(lines, 1) if raw.strip()]
    questions = [question(line, raw, number) for number, (line, raw) in enumerate(numbered, 1)]
    if all(question.fault for question in questions):
        why = f"line {questions[0].line}: {questions[0].fault}" if questions else "it is empty"
        raise DocumentError(f"no line of {path} is a valid question; {why}", EXAMPLE)
    return questions


def _parse(raw: bytes, has_default: bool) -> tuple[dict[str, Any], str]:
    """The object of a line, and its fault."""
    try:
        row = load_json(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8 is a ValueError, too
        return {}, f"the line must be JSON in UTF-8: {error}"
    if not isinstance(row, dict):
        return {}, "the line must be a JSON object"
    text, names, fault = row.get("question"), row.get("documents"), ""
    # A misspelt key would have the question asked about the command's documents.
    slips = [key for key in row if get_close_matches(key.lower(), ("documents", "docs"), 1, 0.85)]
    if names is None and slips:
        fault = f'the key must be "documents", got "{slips[0]}"'
    elif not isinstance(text, str) or not text.strip():
        fault = '"question" must be a text that is not empty'
    elif names is None and not has_default:
        fault = "documents must be named in the line or on the command line"
    elif names is not None and not (
        isinstance(names, list) and names and all(isinstance(name, str) and name for name in names)
    ):
        fault = '"documents" must be a list of paths'
    elif names is not None and "-" in names:
        fault = "documents must be files, got standard input (-)"
    elif has_lone_surrogate(json.dumps(row, ensure_ascii=False)):
        fault = "the line must not have lone surrogates (U+D800-U+DFFF)"
    return row, fault


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


def answers_file(
    path: Path, questions: Sequence[BatchQuestion], retry: bool = False
) -> OrderedJsonLines:
    """The rows of these questions, to be opened; `retry` asks those with an error again."""
    places = [(question.key, question.id) for question in questions]
    return OrderedJsonLines(path, places, retry=retry)


def join_answers(
    answers: OrderedJsonLines, questions: Sequence[BatchQuestion], paths: Iterable[Path]
) -> None:
    """Takes the rows that `answers` lacks from answers files of other shards.

    With `retry` rows with an error are not taken, nor where there is an answer. Equal questions
    have one key, so a row gets the id of its question.

    Raises:
        UsageError: a file has other contents, or answers of other questions or settings.
    """
    asked = {question.key for question in questions}
    rows: dict[str, dict[str, Any]] = {}
    for path in paths:
        for number, row in enumerate(answers.rows_of(path), 1):
            if row.get("key") not in asked:
                raise UsageError(
                    f"{path}, row {number}: these questions and settings do not have its question",
                    "give the questions file, documents and options that it was made with",
                )
            if "error" not in row or not (answers.retry or row["key"] in rows):
                rows[row["key"]] = row
    for index, question in enumerate(questions):
        if question.key in rows and not answers.has(index):
            answers.add(index, {**rows[question.key], "id": question.id})


def run_batch(
    asker: Esa,
    questions: Sequence[BatchQuestion],
    answers: OrderedJsonLines,
    options: Mapping[str, Any],
    *,
    limit: int | None = None,
    progress: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Answers those of the first `limit` questions that have no row. An EsaError becomes its row.

    Args:
        options: keyword arguments for `Esa.ask`. progress: called after each row.
        say: called with a line for each file of a folder or pattern that cannot be read.

    Raises:
        ResourceError, DocumentError: the answers cannot be written.
    """
    end = len(questions) if limit is None else limit
    left = groups(questions, lambda index: index < end and not answers.has(index))
    open_books = OpenBooks(asker)
    uses = Counter(path for group in left for path in set(group[0][1].meant.paths))
    for group in left:
        paths = set(group[0][1].meant.paths)
        uses -= Counter(paths)
        open_books.need(paths, uses)
        for index, row in _rows(asker, group, open_books, options, say):
            answers.add(index, row)
            progress()


def _rows(
    asker: Esa,
    group: Group,
    open_books: OpenBooks,
    options: Mapping[str, Any],
    say: Callable[[str], None],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Only this frame and `open_books` refer to open books."""
    meant, refusal = group[0][1].meant, None
    gathered, books = GatheredDocuments(), list[Any]()
    try:
        gathered = gather(meant, open_books.read).without_copies()
        books = [open_books.book(document) for document in gathered.documents]
    except EsaError as error:
        refusal = error
    for left_out in gathered.left_out[len(meant.left_out) :] if refusal is None else ():
        say(left_out.line)
    for index, question in group:
        row: dict[str, Any] = {"id": question.id, "question": question.question}
        row["documents"] = list(question.documents)
        try:
            if question.fault:
                raise DocumentError(f"line {question.line}: {question.fault}")
            if refusal is not None:
                raise refusal
            reply = asker.ask(question.question, books, **options)
            row |= answer_row(reply, books, gathered.left_out)
        except EsaError as error:
            row |= error_row(error)
        yield index, {**row, "key": question.key}


def answer_row(
    reply: Reply, books: Sequence[Any], left_out: Sequence[LeftOut] = ()
) -> dict[str, Any]:
    """The reply, what the documents lack (`missing`), and which files are left out, if any."""
    more = {"missing": lacking(books), "left_out": [file.as_dict() for file in left_out]}
    return reply.as_row() | {name: value for name, value in more.items() if value}


def error_row(error: EsaError) -> dict[str, Any]:
    return {"error": error.message, **({"hint": error.hint} if error.hint else {})}
