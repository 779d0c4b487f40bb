"""Asks the records of a benchmark and keeps each answer with its score.

Every row is on disk before the next record is begun (see `journal`), so a run that was stopped goes
on where it was. It knows no model: it is given a function that answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from esa_cli.errors import LengthError, UsageError
from esa_cli.evaluation.bench.bench_record import BenchRecord
from esa_cli.evaluation.metrics import is_share
from esa_cli.system.jsonl import Journal

KEY = ("method", "task", "id")
"""What tells rows apart."""


class BenchReply(NamedTuple):
    """What came back: the answer as it was written, and the tokens of the prompt."""

    text: str
    tokens: int


def wrong(row: Mapping[str, Any]) -> str:
    """What is wrong with a row that `run` is said to have kept; empty when nothing is."""
    score, tokens = row.get("score"), row.get("tokens")
    if not is_share(score):
        return f"'score' is {score!r}, not a number from 0 to 1"
    if not isinstance(tokens, int):
        return f"'tokens' is {tokens!r}, not a number of tokens"
    return ""


def kept(record: BenchRecord, method: str, settings: str, journal: Journal) -> bool:
    """Whether the journal has the method's answer to this very record.

    Args:
        settings: the hash of what the method stands for.

    Raises:
        UsageError: it has the answer to another one of that name: the prompt, or what is right,
            is not the same; or by other settings of that name.
    """
    row = journal.find({"method": method, "task": record.task, "id": record.id})
    if row is not None and row.get("record") != record.digest:
        raise UsageError(
            f"{journal.path} holds another record as {record.task}, {record.id}: its rows come "
            "from other data",
            "give the --data it was begun with, or choose another --out",
        )
    if row is not None and row.get("settings") != settings:
        raise UsageError(
            f"{journal.path} holds results by other settings of {method}, or by another version of "
            "its plugin",
            "they would be mixed: choose another --out",
        )
    return row is not None


def run(
    records: Iterable[BenchRecord],
    ask: Callable[[BenchRecord], BenchReply],
    score: Callable[[BenchRecord, str], float],
    journal: Journal,
    *,
    method: str,
    settings: str = "",
    until: float | None = None,
    heard: Callable[[dict[str, Any]], None] | None = None,
    left_out: Callable[[BenchRecord, LengthError], None] | None = None,
) -> bool:
    """Asks what the journal does not hold yet; False when the time was up before the end.

    Args:
        method: a name for who answers. settings: the hash of what it stands for.
        heard: called with each new row.
        left_out: called with a record whose question the window has no room for; the others are
            asked. Without it such a record ends the run.
        until: seconds on `time.monotonic` after which no record is begun.

    Raises:
        UsageError: the journal's rows come from other data. LengthError: see `left_out`.
    """
    for record in records:
        if kept(record, method, settings, journal):
            continue
        started = time.monotonic()
        if until is not None and started >= until:
            return False
        try:
            reply = ask(record)
        except LengthError as error:
            if left_out is None:
                raise
            left_out(record, error)
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
        if heard:
            heard(row)
    return True
