"""Answers the questions of a file, and ingests each set of documents once.

Questions about the same documents are asked together, see `schedule`; `answers_file` has the rows
in the order of the questions. A few books that later questions need stay open, see `open_books`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from esa_cli.apps.batch.batch_questions import BatchQuestion, Group, groups
from esa_cli.apps.batch.result_row import answer_row, error_row
from esa_cli.apps.open_books import ScheduledBooks
from esa_cli.documents.document import GatheredDocuments, SourceFiles, gather
from esa_cli.errors import DocumentError, EsaError, UsageError
from esa_cli.qa.api import Esa
from esa_cli.system.jsonl import OrderedJsonLines

Opened = tuple[GatheredDocuments, list[Any]] | EsaError
"""The documents of a group and their books, or why they cannot be read."""


def answers_file(
    path: Path, questions: Sequence[BatchQuestion], retry: bool = False
) -> OrderedJsonLines:
    """The rows of these questions, to be opened; `retry` asks those with an error again."""

    def another(index: int, row: Mapping[str, Any]) -> str:
        asked = questions[index]
        same = row.get("question"), row.get("documents")
        settings = same == (asked.question, list(asked.documents))
        same_question = "the same question under other settings or of documents before a change"
        what = same_question if settings else "another question"
        return f"answers {what} than line {asked.line} asks"

    return OrderedJsonLines(path, [one.key for one in questions], another, retry=retry)


def join_answers(
    answers: OrderedJsonLines, questions: Sequence[BatchQuestion], paths: Iterable[Path]
) -> None:
    """Takes the rows that `answers` lacks from answers files of other shards.

    With `retry` rows with an error are not taken, nor where there is an answer. Equal questions
    have one key, so a row gets the id of its question.

    Raises:
        UsageError: a file has other contents, or answers of other questions or settings.
    """
    asked = {one.key for one in questions}
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        for number, row in enumerate(answers.rows_of(path), 1):
            if row.get("key") not in asked:
                raise UsageError(
                    f"{path}, row {number}: these questions and settings do not have its question",
                    "give the questions file, documents and options that it was made with",
                )
            if "error" not in row or not (answers.retry or row["key"] in found):
                found[row["key"]] = row
    for index, one in enumerate(questions):
        if one.key in found and not answers.has(index):
            answers.add(index, {**found[one.key], "id": one.id})


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
        options: keyword arguments for `asker.ask`. progress: called after each row.
        say: called with a line for each file of a folder or pattern that cannot be read.

    Raises:
        ResourceError, DocumentError: the answers cannot be written.
    """
    end = len(questions) if limit is None else limit
    left = groups(questions, lambda index: index < end and not answers.has(index))
    for index, row in answer_groups(asker, left, options, say):
        answers.add(index, row)
        progress()


def answer_groups(
    asker: Esa, groups: Sequence[Group], options: Mapping[str, Any], say: Callable[[str], None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each question's index and row, in the order of the groups; see `run_batch`."""
    open_books = ScheduledBooks(asker, [group[0][1].meant.paths for group in groups])
    for group in groups:
        open_books.next()
        asked = dict(group)
        for index, row in _rows(asker, group, open_books, options, say):
            one = asked[index]
            about = {"id": one.id, "question": one.question, "documents": list(one.documents)}
            yield index, {**about, **row, "key": one.key}


def _rows(
    asker: Esa,
    group: Group,
    open_books: ScheduledBooks,
    options: Mapping[str, Any],
    say: Callable[[str], None],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each question's index and row. Only this frame and `open_books` refer to open books."""
    opened = _open(open_books, group[0][1].meant, say)
    for index, one in group:
        yield index, _row(asker, one, opened, options)


def _open(open_books: ScheduledBooks, meant: SourceFiles, say: Callable[[str], None]) -> Opened:
    try:
        found = gather(meant, open_books.read).without_copies()
        books = [open_books.book(document) for document in found.documents]
    except EsaError as error:
        return error
    for left_out in found.left_out[len(meant.left_out) :]:
        say(left_out.line)
    return found, books


def _row(
    asker: Esa, one: BatchQuestion, opened: Opened, options: Mapping[str, Any]
) -> dict[str, Any]:
    if one.fault:
        return error_row(DocumentError(f"line {one.line}: {one.fault}"))
    if isinstance(opened, EsaError):
        return error_row(opened)
    found, books = opened
    try:
        return answer_row(asker.ask(one.question, books, **options), books, found.left_out)
    except EsaError as error:
        return error_row(error)
