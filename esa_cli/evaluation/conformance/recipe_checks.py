"""Checks of recipes: whole methods, applied to presets of several windows and lengths.

A recipe must give valid settings, name registered parts, and keep the preset's number of tokens.
Whether they are the published method's is not checked.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from esa_cli.attention.window import Window
from esa_cli.evaluation.conformance.finding import Finding, attempt, gather
from esa_cli.qa.presets import method_presets
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import resolve

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
        made = method_presets.apply(name, base, length)
        resolve(made)
        return made

    def repeats() -> str:
        changed = [case for case, made in results.items() if laid(case) != made]
        return f"{changed[0]}: other settings the second time" if changed else ""

    findings, results = gather({case: partial(laid, case) for case in CASES})
    return [*findings, attempt("deterministic", repeats)]
