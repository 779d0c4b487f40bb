"""Top-k selection, Eq. (2), with proximity, Eq. (8); and the check of a selector's result.

Wrong offsets and selections beyond the budget are refused before any key is read: the first would
read unused memory, the second make comparisons at equal budgets worthless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.interfaces import Selection
from esa_cli.attention.parts import Selector, check_at_least
from esa_cli.attention.plugin_errors import HINT, blame_plugin, has_values
from esa_cli.attention.step import Step
from esa_cli.errors import ModelError, PluginError


def top_k(scores: Tensor, k: int) -> Tensor:
    """Ascending indices of the k largest; among equals the earliest come first.

    torch.topk leaves ties to the device; here they are the same everywhere. Raises ModelError: NaN
    is among the scores, so that they have no order.
    """
    if k >= scores.shape[0]:
        return torch.arange(scores.shape[0], device=scores.device)
    if k <= 0:
        return torch.arange(0, device=scores.device)
    largest = scores.topk(k).values  # NaN counts as larger than all numbers
    if bool(largest[0].isnan()):
        raise ModelError(
            "scores of tokens must be numbers, got NaN from the model's queries and keys",
            "use --dtype float32; in Python, dtype='float32'; or check the model's files",
        )
    threshold = largest[-1]
    above = torch.nonzero(scores > threshold)[:, 0]
    equal = torch.nonzero(scores == threshold)[: k - above.shape[0], 0]
    return torch.cat((above, equal)).sort().values


def proximity(scores: Tensor, epsilon: int) -> Tensor:
    """Eq. (8): each token's score becomes the maximum within epsilon tokens of it, inside M.

    Args:
        scores: (M,). epsilon: distance in tokens; 0 changes nothing.
    """
    if epsilon == 0 or scores.numel() == 0:
        return scores
    return functional.max_pool1d(scores[None], 2 * epsilon + 1, stride=1, padding=epsilon)[0]


@dataclass(frozen=True)
class TopK(Selector):
    """The k middle tokens with the highest score, one selection for all heads of the layer.

    Args:
        proximity: epsilon of Eq. (8). The paper's main tables use 3.
    """

    proximity: int = 1

    def __post_init__(self) -> None:
        check_at_least(0, proximity=self.proximity)

    def select(self, step: Step, budget: int) -> Tensor:
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        return top_k(proximity(step.scores(), self.proximity), budget)


def checked_selection(selector: Selector, step: Step, budget: int) -> Selection:
    """The selector's offsets into M: (K,), or one such tensor for each of H query heads.

    Raises:
        PluginError: the selector fails, or returns something else.
    """
    name = type(selector).__name__
    with blame_plugin("selector", selector):
        picked = selector.select(step, budget)
    heads = step.queries.shape[0]
    rows: Sequence[Tensor] = [picked] if isinstance(picked, Tensor) else picked
    most = min(budget, step.middle)
    if not isinstance(picked, Tensor | Sequence) or len(rows) != (
        1 if isinstance(picked, Tensor) else heads
    ):
        raise _wrong_result(name, f"one selection, or {heads}, one for each query head")
    if any(
        not isinstance(row, Tensor) or row.dim() != 1 or row.dtype != torch.int64 for row in rows
    ):
        raise _wrong_result(name, "int64 offsets in one dimension")
    if not all(map(has_values, rows)):
        raise _wrong_result(name, "offsets on a device with values, not on the meta device")
    if any(row.numel() > most for row in rows) or _wrong(rows, step.middle):
        raise _wrong_result(name, f"ascending offsets below {step.middle}, at most {most} of them")
    return picked


def _wrong(rows: Sequence[Tensor], middle: int) -> bool:
    """Whether offsets do not ascend, or are not in M. Synchronises with a GPU."""
    wrong = [
        torch.stack((row[0] < 0, row[-1] >= middle, (row[1:] <= row[:-1]).any())).any()
        for row in rows
        if row.numel()
    ]
    return bool(wrong) and bool(torch.stack(wrong).any())


def _wrong_result(name: str, wanted: str) -> PluginError:
    return PluginError(f"selector {name} must return {wanted}", HINT)
