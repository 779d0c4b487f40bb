"""The main loop of self-tests and benchmarks, which writes a row with each answer to a journal.

Every row is on disk before the next question is asked, so a stopped run can be resumed: a question
with a row is not asked again, and a document is only ingested if one of its questions has no row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esa_cli.errors import LengthError, UsageError
from esa_cli.system.jsonl import Journal

SAME_FIELDS = ("record", "document", "settings", "reading")
"""Fields in which a row of an earlier run must be equal to a new row."""


@dataclass(frozen=True)
class QuestionCase:
    """A question for one method. `fields` are fields of the question's row, and `ask` returns the
    row's other fields. `check` raises LengthError if the question is too long."""

    fields: Mapping[str, Any]
    ask: Callable[[], dict[str, Any]]
    check: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class DocumentQuestions:
    """The questions about one document. The function `ingest` ingests the document, or returns
    False if the questions are to be skipped."""

    cases: Sequence[QuestionCase]
    ingest: Callable[[], bool]


def has_result_row(journal: Journal, fields: Mapping[str, Any]) -> bool:
    """Says whether the journal has the row of a question. Raises UsageError: the row belongs to
    another document or to other settings."""
    row = journal.find_row(fields)
    if row is None:
        return False
    for name in SAME_FIELDS:
        if name in fields and row.get(name) != fields[name]:
            key = ", ".join(str(fields[part]) for part in journal.key_fields)
            raise UsageError(
                f"{journal.path} has a row of {key} with another {name}: {row.get(name)}, now "
                f"{fields[name]}",
                "use the data, methods and settings of the earlier run, or choose another --out",
            )
    return True


def answer_missing_rows(
    documents: Iterable[DocumentQuestions], journal: Journal, *, until: float | None = None, on_row:
    Callable[[dict[str, Any]], None] = lambda row: None, on_left_out: Callable[[QuestionCase,
    LengthError], None] | None = None,
) -> bool:  # fmt: skip
    """Asks the questions without a row in the journal, and writes a row with each answer. Returns
    False if the time `until`, by `time.monotonic`, came before the end.

    Args:
        on_row: a function that is called with each new row.
        on_left_out: a function that is called with each question that is too long; without the
            function, such a question ends the run with a LengthError.

    Raises:
        UsageError: a row of the journal belongs to another document or to other settings."""

    def is_past_deadline() -> bool:
        return until is not None and time.monotonic() >= until

    for document in documents:
        cases = []
        for case in document.cases:
            if has_result_row(journal, case.fields):
                continue
            try:
                case.check()
                cases.append(case)
            except LengthError as error:
                if on_left_out is None:
                    raise
                on_left_out(case, error)
        if not cases:
            continue
        if is_past_deadline():
            return False
        if not document.ingest():
            continue
        for case in cases:
            if is_past_deadline():
                return False
            row = {**case.fields, **case.ask()}
            journal.add_row(row)
            on_row(row)
    return True
