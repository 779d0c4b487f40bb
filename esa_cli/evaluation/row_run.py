"""Asks questions of self-tests and benchmarks, and adds a row for each answer to a JSON Lines file.

A stopped run can be resumed, since questions that have a row in the file are not asked again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esa_cli.errors import LengthError, UsageError
from esa_cli.system.jsonl import ResultsFile
from esa_cli.system.progress import Progress

SAME_FIELDS = ("record", "document", "settings", "reading")
"""Fields in which a row of an earlier run must be equal to a new row."""


@dataclass(frozen=True)
class QuestionToAsk:
    """A question to be answered by one method of attention."""

    fields: Mapping[str, Any]  # the result row's fields that are known before asking
    ask: Callable[[], dict[str, Any]]  # answers, and returns the result row's other fields
    check: Callable[[], object] = lambda: None  # raises LengthError if the question is too long


@dataclass(frozen=True)
class DocumentQuestions:
    """The questions about one document, and a function that prefills or indexes the document."""

    questions: Sequence[QuestionToAsk]
    ingest: Callable[[], bool]  # returns False if the document's questions are to be skipped
    progress: Progress = lambda done, total: None  # called with the numbers of answers


def has_result_row(journal: ResultsFile, question_fields: Mapping[str, Any]) -> bool:
    """Says whether a question has a result row. Raises UsageError: the row has other settings."""
    row = journal.find_row_with_same_key(question_fields)
    if row is None:
        return False
    for name in SAME_FIELDS:
        if name in question_fields and row.get(name) != question_fields[name]:
            key = ", ".join(str(question_fields[part]) for part in journal.key_fields)
            raise UsageError(
                f"{journal.path} has a result row for {key} whose {name} is {row.get(name)}, but "
                f"this run's {name} is {question_fields[name]}",
                "use the earlier run's data, methods and settings, or give --out another file",
            )
    return True


def ask_unanswered_questions(
    documents: Iterable[DocumentQuestions], journal: ResultsFile, *, deadline: float | None = None,
    on_left_out: Callable[[QuestionToAsk, LengthError], None] | None = None,
) -> bool:  # fmt: skip
    """Asks the questions that have no row in the result file, and appends their rows. Returns False
    if the deadline, a time of `time.monotonic`, passed before. Raises UsageError, as
    `has_result_row`. LengthError: a question is too long, without `on_left_out`."""
    deadline = math.inf if deadline is None else deadline
    for document in documents:
        unanswered = []
        for question in document.questions:
            if has_result_row(journal, question.fields):
                continue
            try:
                question.check()
                unanswered.append(question)
            except LengthError as error:
                if on_left_out is None:
                    raise
                on_left_out(question, error)
        if not unanswered:
            continue
        if time.monotonic() >= deadline:
            return False
        if not document.ingest():
            continue
        for number, question in enumerate(unanswered):
            if time.monotonic() >= deadline:
                return False
            document.progress(number, len(unanswered))
            journal.add_row({**question.fields, **question.ask()})
    return True
