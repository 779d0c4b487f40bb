"""Answers the questions of a file; questions about the same documents are asked together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.batch.batch_questions import BatchQuestion, Group, groups
from esa_cli.apps.batch.result_row import answer_row, error_row
from esa_cli.apps.open_books import OpenBooks
from esa_cli.documents.document import GatheredDocuments, SourceFiles, gather
from esa_cli.errors import DocumentError, EsaError, UsageError
from esa_cli.qa.api import Esa
from esa_cli.system.jsonl import OrderedJsonLines

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

Opened = tuple[GatheredDocuments, list[Any]] | EsaError
"""The documents of a group and their books, or why they cannot be read."""


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
    for index, row in answer_groups(asker, left, options, say):
        answers.add(index, row)
        progress()


def answer_groups(
    asker: Esa, groups: Sequence[Group], options: Mapping[str, Any], say: Callable[[str], None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each question's index and row, in the order of the groups; see `run_batch`."""
    open_books = OpenBooks(asker)
    uses = Counter(path for group in groups for path in set(group[0][1].meant.paths))
    for group in groups:
        meant = group[0][1].meant
        uses -= Counter(set(meant.paths))
        open_books.need(set(meant.paths), uses)
        yield from _rows(asker, group, open_books, options, say)


def _rows(
    asker: Esa,
    group: Group,
    open_books: OpenBooks,
    options: Mapping[str, Any],
    say: Callable[[str], None],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Only this frame and `open_books` refer to open books."""
    opened = _open(open_books, group[0][1].meant, say)
    for index, question in group:
        about = {"id": question.id, "question": question.question}
        about["documents"] = list(question.documents)
        yield index, {**about, **_row(asker, question, opened, options), "key": question.key}


def _open(open_books: OpenBooks, meant: SourceFiles, say: Callable[[str], None]) -> Opened:
    try:
        gathered = gather(meant, open_books.read).without_copies()
        books = [open_books.book(document) for document in gathered.documents]
    except EsaError as error:
        return error
    for left_out in gathered.left_out[len(meant.left_out) :]:
        say(left_out.line)
    return gathered, books


def _row(
    asker: Esa, question: BatchQuestion, opened: Opened, options: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        if question.fault:
            raise DocumentError(f"line {question.line}: {question.fault}")
        if isinstance(opened, EsaError):
            raise opened
        gathered, books = opened
        return answer_row(asker.ask(question.question, books, **options), books, gathered.left_out)
    except EsaError as error:
        return error_row(error)
