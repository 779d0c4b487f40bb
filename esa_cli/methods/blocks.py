"""Blocks of M, and numbers worked out once for each block that is whole.

M begins at the same token in every step and grows at its end, so a block that is whole stays what
it is. Its row lies in the store's memo, and is worked out again when tokens are taken back.
Knows nothing about what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.step import Step
from esa_cli.storage.growing_rows import GrowingRows

AT_ONCE = 4096
"""Tokens whose rows are worked out at a time."""


def tokens_of(blocks: Tensor, size: int, middle: int) -> Tensor:
    """Offsets (K,) of the tokens of ascending blocks (n,); the last block of M may be short."""
    tokens = blocks[:, None] * size + torch.arange(size, device=blocks.device)
    return tokens[tokens < middle]


@dataclass
class BlockRows:
    """Rows (n, width) of the first n blocks of `size` tokens from token `low` on.

    Args:
        held: tokens behind a block that have to be there before its row is settled.
    """

    low: int
    size: int
    rows: GrowingRows
    held: int = 0

    def truncate(self, length: int) -> None:
        """Keeps what `length` tokens settle."""
        self.rows.truncate((length - self.held - self.low) // self.size)


def block_rows(
    step: Step, name: str, size: int, width: int, make: Callable[[int, int], Tensor], held: int = 0
) -> GrowingRows:
    """Rows (at least M // size, width) of the whole blocks of M, in the dtype of the keys.

    Args:
        name: of the memo's entry. make: (first token, n) -> rows (n, width) of the n blocks there.
        held: see `BlockRows`.
    """
    memo = step.store.memo
    kept = memo.get(name)
    if kept is None or (kept.low, kept.size, kept.rows.width) != (step.low, size, width):
        rows = GrowingRows(width, step.queries.dtype, step.queries.device)
        kept = memo[name] = BlockRows(step.low, size, rows)
    assert isinstance(kept, BlockRows)
    kept.held = held
    whole = step.middle // size
    while kept.rows.length < whole:
        done = kept.rows.length
        count = min(whole - done, max(1, AT_ONCE // size))
        kept.rows.append(make(step.low + done * size, count))
    return kept.rows
