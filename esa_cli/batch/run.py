"""Answers questions from a file: each set of documents is read once, whatever the order.

Questions about the same documents are asked together, sets in the order of their first question;
`Answers` puts the rows back in order. Books that a later set needs stay open, a few at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from ..errors import DocumentError, EsaError
from ..reply import Asker
from .answers import Answers
from .questions import Question
from .rows import answered, failed

HELD = 8
"""Books that stay open for later sets, besides those of the present one."""
Group = list[tuple[int, Question]]


def groups(questions: Sequence[Question], wanted: Callable[[int], bool]) -> list[Group]:
    """The questions that are wanted, with their places, by their documents."""
    found: dict[tuple[str, ...], Group] = {}
    for index, one in enumerate(questions):
        if wanted(index):
            found.setdefault(one.sources, []).append((index, one))
    return list(found.values())


def run(
    asker: Asker,
    answers: Answers,
    options: Mapping[str, Any],
    *,
    limit: int | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Answers what has no row yet, of the first `limit` questions.

    Args:
        options: keyword arguments for `asker.ask`. progress: called after each row.

    Raises:
        OSError: the answers cannot be written. What concerns one question is in its row.
    """
    end = len(answers.questions) if limit is None else limit
    books: dict[str, Any] = {}
    left = groups(answers.questions, lambda index: index < end and not answers.has(index))
    while left:
        group = left.pop(0)
        sources = group[0][1].sources
        later = (source for next_ in left for source in next_[0][1].sources if source in books)
        kept = {*sources, *islice(dict.fromkeys(later), HELD)}
        books = {source: book for source, book in books.items() if source in kept}
        fault = _ingest(asker, sources, books)
        for index, one in group:
            row: dict[str, Any]
            if one.fault:
                row = failed(DocumentError(f"line {one.line}: {one.fault}"))
            elif fault is not None:
                row = failed(fault)
            else:
                row = _ask(asker, one, [books[source] for source in sources], options)
            about = {"id": one.id, "question": one.question, "documents": list(one.documents)}
            answers.put(index, {**about, **row, "key": one.key})
            progress()


def _ingest(asker: Asker, sources: Sequence[str], books: dict[str, Any]) -> EsaError | None:
    """Adds what is missing to `books`; what kept it from that."""
    for source in sources:
        if source not in books:
            try:
                books[source] = asker.ingest(source)
            except EsaError as error:
                return error
    return None


def _ask(
    asker: Asker, one: Question, books: Sequence[Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        return answered(asker.ask(one.question, books, **options), books)
    except EsaError as error:
        return failed(error)
