"""Asks a selector for its tokens, and checks what it says before memory is read by it.

A wrong offset would read rows that hold nothing; a selection beyond the budget would make a
comparison at equal budgets worthless. Both name the selector.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esa_cli.attention.interfaces import Selection, Selector
from esa_cli.attention.plugin_errors import HINT, plugged
from esa_cli.attention.step import Step
from esa_cli.errors import PluginError


def allowance(selector: Selector, step: Step, budget: int) -> int:
    """How many middle tokens this step may take: the budget, or what the method asks for."""
    own = getattr(selector, "allowance", None)
    return budget if own is None else int(own(step, budget))


def choose(selector: Selector, step: Step, budget: int) -> Selection:
    """The selector's offsets into M: (K,), or one such tensor for each of H query heads.

    Raises:
        PluginError: the selector fails, or breaks its protocol.
    """
    name = type(selector).__name__
    with plugged("selector", selector):
        budget = allowance(selector, step, budget)
        picked = selector.select(step, budget)
    heads = step.queries.shape[0]
    rows: Sequence[Tensor] = [picked] if isinstance(picked, Tensor) else picked
    most = min(budget, step.middle)
    if not isinstance(picked, Tensor | Sequence) or len(rows) != (
        1 if isinstance(picked, Tensor) else heads
    ):
        raise _broken(name, f"one selection, or {heads}, one for each query head")
    if any(
        not isinstance(row, Tensor) or row.dim() != 1 or row.dtype != torch.int64 for row in rows
    ):
        raise _broken(name, "int64 offsets in one dimension")
    if any(_wrong(row, most, step.middle) for row in rows):
        raise _broken(name, f"ascending offsets below {step.middle}, at most {most} of them")
    return picked


def _wrong(row: Tensor, most: int, middle: int) -> bool:
    count = row.numel()
    if count > most:
        return True
    if not count:
        return False
    inside = int(row[0]) >= 0 and int(row[-1]) < middle
    return not inside or bool((row[1:] <= row[:-1]).any())


def _broken(name: str, wanted: str) -> PluginError:
    return PluginError(f"selector {name} does not return {wanted}", HINT)


def look_on(selector: Selector, step: Step) -> None:
    """Tells the selector, if it observes, what was attended to.

    Raises:
        PluginError: it fails.
    """
    observe = getattr(selector, "observe", None)
    if observe is not None:
        with plugged("selector", selector):
            observe(step)
