r"""A selector of whole blocks of middle tokens, by the mean logit of their keys.

A block's mean logit is the logit of its mean key, so this is the block gating of Lu et al.,
"MoBA: Mixture of Block Attention", arXiv 2502.13189, without training and with one choice for all
heads. `quest` and `infllm`, which are built in, describe a block by other keys.

    esa ask book.txt "Who is Ahab?" --plugin plugins/block_top_k.py \
        --set answer.from=rows --set selector.name=block-topk
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.methods import Selector, Step, register, top_k


@register("selector", "block-topk", source="Lu et al., MoBA, arXiv 2502.13189", cost="F M")
@dataclass(frozen=True)
class BlockTopK(Selector):
    """Selects the best whole blocks of middle tokens; a budget below `block` tokens selects none.

    Args:
        block: tokens per block; the last block of M may be shorter.
        rotate: whether scores are the logits of attention at the far distance.
    """

    block: int = 64
    rotate: bool = True

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"block must be at least 1, got {self.block}")

    def select(self, step: Step, budget: int) -> Tensor:
        """Returns the offsets (K,) of the tokens of the floor(budget / block) best blocks."""
        device = step.queries.device
        if budget >= step.middle:
            return torch.arange(step.middle, device=device)
        scores = torch.empty(step.middle, device=device)
        for offset, logits in step.head_logits(self.rotate):  # (H, C, n)
            scores[offset : offset + logits.shape[2]] = logits.mean(dim=(0, 1))
        means = torch.stack([part.mean() for part in scores.split(self.block)])
        chosen = top_k(means, budget // self.block)
        tokens = chosen[:, None] * self.block + torch.arange(self.block, device=device)
        return tokens[tokens < step.middle]
