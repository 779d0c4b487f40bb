"""The loop of self-tests and benchmarks: questions about documents, a row for each answer.

Every row is on disk before the next question is asked, so a stopped run can be resumed: a question
with a row is not asked again, and a document without open questions is not read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esa_cli.errors import LengthError, UsageError
from esa_cli.system.jsonl import Journal

SAME = ("record", "document", "settings", "reading")
"""Fields that a row of an earlier run must have in common with a new one."""


@dataclass(frozen=True)
class Case:
    """One question by one method: the known fields of its row; `ask` returns the other fields, and
    `check` raises LengthError where the question has no room."""

    fields: Mapping[str, Any]
    ask: Callable[[], dict[str, Any]]
    check: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class DocumentCases:
    """Questions about one document, and a function that reads the document, or returns False."""

    cases: Sequence[Case]
    read: Callable[[], bool]


def has_row(journal: Journal, fields: Mapping[str, Any]) -> bool:
    """Says whether the journal has the row of a case. Raises UsageError: the row is of another
    document or of other settings."""
    row = journal.find(fields)
    if row is None:
        return False
    for name in SAME:
        if name in fields and row.get(name) != fields[name]:
            key = ", ".join(str(fields[part]) for part in journal.key)
            raise UsageError(
                f"{journal.path} has a row of {key} with another {name}: {row.get(name)}, now "
                f"{fields[name]}",
                "give the data, methods and settings of the earlier run, or choose another --out",
            )
    return True


def write_rows(
    documents: Iterable[DocumentCases],
    journal: Journal,
    *,
    until: float | None = None,
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
    on_left_out: Callable[[Case, LengthError], None] | None = None,
) -> bool:
    """Asks the cases that have no row. Returns False if `until`, by `time.monotonic`, came first.

    Args:
        on_row: called with each new row. on_left_out: called with a case that has no room; without
            this function such a case ends the run with a LengthError.

    Raises:
        UsageError: as `has_row`.
    """

    def is_late() -> bool:
        return until is not None and time.monotonic() >= until

    for document in documents:
        cases = []
        for case in document.cases:
            if has_row(journal, case.fields):
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
        if is_late():
            return False
        if not document.read():
            continue
        for case in cases:
            if is_late():
                return False
            row = {**case.fields, **case.ask()}
            journal.add(row)
            on_row(row)
    return True
