"""Findings of checks, and how checks run: an exception is a finding, too."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from esa_cli.attention.window import Window
from esa_cli.errors import NOT_BLAMED, EsaError
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import resolve

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Args:
        check: its name. detail: what is wrong, with numbers; empty if it passed.
    """

    check: str
    passed: bool
    detail: str


def describe(error: BaseException) -> str:
    """An exception as a detail: type, message and line."""
    if isinstance(error, EsaError):
        return error.message
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {error}{where}"


def whole_number(name: str, value: object, least: int) -> str:
    """Complains unless a member's value is a whole number from `least`."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
    return "" if whole else f"{name} is {value!r}, not a whole number from {least}"


def attempt(check: str, complaint: Callable[[], str]) -> Finding:
    """Runs one check. complaint: returns what is wrong, or an empty string; may raise."""
    try:
        detail = complaint()
    except NOT_BLAMED:
        raise
    except BaseException as error:
        detail = describe(error)
    return Finding(check, not detail, detail)


def each(check: str, results: Mapping[str, T], complaint: Callable[[T], str]) -> Finding:
    """Checks one property of every case's result; the detail names the first case without it."""

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
    """Runs every case: a finding on each, and the results of those that did not raise."""
    findings: list[Finding] = []
    results: dict[str, T] = {}
    for case, call in cases.items():
        try:
            results[case] = call()
            findings.append(Finding(f"runs: {case}", True, ""))
        except NOT_BLAMED:
            raise
        except BaseException as error:
            findings.append(Finding(f"runs: {case}", False, describe(error)))
    return findings, results


USUAL = Window(initial=64, selected=1024, local=1024, chunk=512)
SMALL = Window(initial=4, selected=64, local=64, chunk=32)
LENGTH = 100_000
CASES: dict[str, tuple[int, Window, int]] = {
    "usual": (8192, USUAL, LENGTH),
    "a small window": (512, SMALL, LENGTH),
    "I = 0": (512, replace(SMALL, initial=0), LENGTH),
    "k = 0": (512, replace(SMALL, selected=0), LENGTH),
    "L = 0": (512, replace(SMALL, local=0), LENGTH),
    "a short document": (8192, USUAL, 100),
    "an unknown length": (8192, USUAL, 0),
}
"""The model's trained window, the preset's windows, and the tokens of the document."""


def check_recipe(name: str) -> list[Finding]:
    """Every check of a recipe."""

    def laid(case: str) -> Preset:
        context, window, length = CASES[case]
        position = {"name": "esa", "distance": context // 2}
        base = Preset(name="base", model="any", context=context, window=window, position=position)
        made = resolved_preset.apply(name, base, length)
        resolve(made)
        return made

    def repeats() -> str:
        changed = [case for case, made in results.items() if laid(case) != made]
        return f"{changed[0]}: other settings the second time" if changed else ""

    findings, results = gather({case: partial(laid, case) for case in CASES})
    return [*findings, attempt("deterministic", repeats)]
