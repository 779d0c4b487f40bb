"""Asks the records of a benchmark and keeps each answer with its score.

Every row is on disk before the next record is begun (see `journal`), so a run that was stopped goes
on where it was. It knows no model: it is given a function that answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from esa_cli.bench.record import Record
from esa_cli.journal import Journal

KEY = ("method", "task", "id")
"""What tells rows apart."""


class Reply(NamedTuple):
    """What came back: the answer as it was written, and the tokens of the prompt."""

    text: str
    tokens: int


def run(
    records: Iterable[Record],
    ask: Callable[[Record], Reply],
    score: Callable[[Record, str], float],
    journal: Journal,
    *,
    method: str,
    until: float | None = None,
    heard: Callable[[dict[str, Any]], None] | None = None,
) -> bool:
    """Asks what the journal does not hold yet; False when the time was up before the end.

    Args:
        method: a name for who answers. heard: called with each new row.
        until: seconds on `time.monotonic` after which no record is begun.
    """
    for record in records:
        row: dict[str, Any] = {"method": method, "task": record.task, "id": record.id}
        if journal.done(row):
            continue
        started = time.monotonic()
        if until is not None and started >= until:
            return False
        reply = ask(record)
        row |= {
            "benchmark": record.benchmark,
            "answers": list(record.answers),
            "output": reply.text,
            "score": score(record, reply.text),
            "tokens": reply.tokens,
            "seconds": round(time.monotonic() - started, 2),
        }
        journal.add(row)
        if heard:
            heard(row)
    return True
