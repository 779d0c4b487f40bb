"""Runs the records of a benchmark through a function that answers them, and writes scored rows.

Every row is on disk before the next record starts (see `system/jsonl.py`), so a stopped run can be
resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from esa_cli.errors import LengthError, UsageError
from esa_cli.evaluation.bench.bench_record import BenchRecord
from esa_cli.evaluation.report.result_rows import is_share
from esa_cli.system.jsonl import Journal

KEY = ("method", "task", "id")
"""Fields that identify a row."""


class BenchReply(NamedTuple):
    """The answer as generated, and the number of the prompt's tokens."""

    text: str
    tokens: int


def wrong(row: Mapping[str, Any]) -> str:
    """Says what is wrong with a row of an earlier run; empty for a valid one."""
    score, tokens = row.get("score"), row.get("tokens")
    if not is_share(score):
        return f"'score' must be a number from 0 to 1, got {score!r}"
    if not isinstance(tokens, int):
        return f"'tokens' must be a number of tokens, got {tokens!r}"
    return ""


def has_answer(record: BenchRecord, method: str, settings: str, journal: Journal) -> bool:
    """True if the journal has the method's answer to this record.

    Args:
        settings: the hash of the method's settings.

    Raises:
        UsageError: the journal's record of that name has another prompt or other right answers, or
            its row comes from other settings.
    """
    row = journal.find({"method": method, "task": record.task, "id": record.id})
    if row is not None and row.get("record") != record.digest:
        raise UsageError(
            f"{journal.path} has another record as {record.task}, {record.id}: its rows come "
            "from other data",
            "give the --data it was begun with, or choose another --out",
        )
    if row is not None and row.get("settings") != settings:
        raise UsageError(
            f"{journal.path} has results by other settings of {method}, or by another version of "
            "its plugin",
            "they would be mixed: choose another --out",
        )
    return row is not None


def lacks_answers(
    records: Iterable[BenchRecord], settings: Mapping[str, str], journal: Journal
) -> bool:
    """True if a record has no answer by one of the methods.

    Args:
        settings: the hash of each method's settings.
    """
    return any(
        not has_answer(record, method, made, journal)
        for record in records
        for method, made in settings.items()
    )


def run(
    records: Iterable[BenchRecord],
    ask: Callable[[BenchRecord], BenchReply],
    score: Callable[[BenchRecord, str], float],
    journal: Journal,
    *,
    method: str,
    settings: str = "",
    until: float | None = None,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    on_left_out: Callable[[BenchRecord, LengthError], None] | None = None,
) -> bool:
    """Asks the records that the journal lacks; False when the time limit came first.

    Args:
        method: the name of the method. settings: the hash of its settings.
        until: seconds on `time.monotonic` after which no record starts.
        on_row: called with each new row.
        on_left_out: called with a record whose question does not fit in the window; the run
            continues. Without it such a record ends the run.

    Raises:
        UsageError: the journal's rows come from other data. LengthError: see `on_left_out`.
    """
    for record in records:
        if has_answer(record, method, settings, journal):
            continue
        started = time.monotonic()
        if until is not None and started >= until:
            return False
        try:
            reply = ask(record)
        except LengthError as error:
            if on_left_out is None:
                raise
            on_left_out(record, error)
            continue
        row = {
            "method": method, "task": record.task, "id": record.id, "settings": settings,
            "benchmark": record.benchmark, "record": record.digest,
            "answers": list(record.answers),
            "output": reply.text,
            "score": score(record, reply.text),
            "tokens": reply.tokens,
            "seconds": round(time.monotonic() - started, 2),
        }  # fmt: skip
        journal.add(row)
        if on_row:
            on_row(row)
    return True
