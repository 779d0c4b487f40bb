"""What a check found, and how one check is run. Knows nothing about methods."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from esa_cli.errors import EsaError

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Args:
        check: what was looked at. detail: what was wrong, with numbers; empty when it passed.
    """

    check: str
    passed: bool
    detail: str


def describe(error: Exception) -> str:
    """An exception as a detail: its type, its message and the line it came from."""
    if isinstance(error, EsaError):
        return error.message
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {error}{where}"


def attempt(check: str, complaint: Callable[[], str]) -> Finding:
    """Runs one check. `complaint` returns what is wrong or an empty string; raising fails too."""
    try:
        detail = complaint()
    except Exception as error:
        detail = describe(error)
    return Finding(check, not detail, detail)


def each(check: str, results: Mapping[str, T], complaint: Callable[[T], str]) -> Finding:
    """One property of every case's result; the first case without it is named."""

    def look() -> str:
        for case, result in results.items():
            detail = complaint(result)
            if detail:
                return f"{case}: {detail}"
        return "" if results else "no case gave a result to look at"

    return attempt(check, look)


def gather(
    cases: Mapping[str, Callable[[], T]],
) -> tuple[list[Finding], dict[str, T]]:
    """Runs every case: one finding each on whether it ran, and the results of those that did."""
    findings: list[Finding] = []
    results: dict[str, T] = {}
    for case, call in cases.items():
        try:
            results[case] = call()
            findings.append(Finding(f"runs: {case}", True, ""))
        except Exception as error:
            findings.append(Finding(f"runs: {case}", False, describe(error)))
    return findings, results
