"""Ranks attention heads by how often their best window covers the needle, and picks the smallest
set of heads that does as well as all of them.

Letters: X heads or sets of heads; W token windows, one every size / 8 tokens; M middle tokens.

"Retrieval heads" are Wu et al.'s (2024, arXiv 2404.15574), who count what an answer copies; here a
head's votes are counted, before anything is answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.methods.token_windows import centred_start, mean_scores

LEAST, MOST = 4, 16
"""Fewest and most heads in a set: few cost little, but one odd head must not decide."""
COVER = 0.6
"""A window has a needle if it covers at least this share of it."""
GOOD = 0.5
"""A head is good if it finds at least this share of the needles that the best one finds."""
TINY = 1e-30
"""Smallest divisor, for heads without votes."""

LayerHead = tuple[int, int]
"""A layer and a query head, from 0."""
HeadSet = tuple[LayerHead, ...]


@dataclass(frozen=True)
class HeadRecord:
    """One head's results.

    Args:
        found: needles (or pairs) whose window it put first, of those that heads are ranked by.
            held_out: the same of the others. margin: mean of `judge` (of pairs: `judge_windows`),
            over those that heads are ranked by.
    """

    layer: int
    head: int
    found: int
    held_out: int
    margin: float

    @property
    def pair(self) -> LayerHead:
        return self.layer, self.head


def stride_of(size: int) -> int:
    """Tokens from one window to the next."""
    return max(1, size // 8)


def window_sums(votes: Tensor, size: int) -> Tensor:
    """Votes (M,) and votes times places, summed over windows of `size` tokens, at most M: (2, W).

    Their quotient is the mean place of a window's votes. Both may be added up over layers."""
    size, votes = min(size, votes.shape[0]), votes.cpu().double()
    both = torch.stack((votes, votes * torch.arange(votes.shape[0])))
    return mean_scores(both, size, stride_of(size)) * size


def judge(sums: Tensor, needle: range, middle: int, size: int) -> tuple[Tensor, Tensor]:
    """True where the best window, centred on its votes, has the needle; and margins: (X,) both.

    The margin is the best window with the needle over the sum of itself and the best one that does
    not touch it: 0.5 is a draw, 1 no vote elsewhere, 0 no vote for the needle.

    Args:
        sums: (X, 2, W) of `window_sums` with this `size`. needle: offsets into M. middle: M.
    """
    size, (votes, moments) = min(size, middle), sums.unbind(dim=1)
    inside = _inside(torch.arange(votes.shape[1]) * stride_of(size), needle, size)
    least = COVER * min(len(needle), size)
    top = votes.argmax(dim=1, keepdim=True)
    most = votes.gather(1, top)[:, 0]
    centre = moments.gather(1, top)[:, 0] / most.clamp(min=TINY)
    starts = centred_start(centre, size, middle)
    found = (most > 0) & (_inside(starts, needle, size) >= least)
    best, elsewhere = _most(votes, inside >= least), _most(votes, inside <= 0)
    return found, best / (best + elsewhere).clamp(min=TINY)


def _inside(starts: Tensor, needle: range, size: int) -> Tensor:
    """The number of the needle's tokens in each window; zero or less where it has none."""
    return (starts + size).clamp(max=needle.stop) - starts.clamp(min=needle.start)


def _most(votes: Tensor, which: Tensor) -> Tensor:
    """The largest of each row's chosen windows (X,); 0 where there is none."""
    if not bool(which.any()):
        return votes.new_zeros(votes.shape[0])
    return votes[:, which].amax(dim=1)


def span_sums(votes: Tensor, spans: Sequence[range]) -> Tensor:
    """Votes (M,) summed over each span of offsets into M: (W,)."""
    votes = votes.cpu().double()
    return torch.stack([votes[one.start : one.stop].sum() for one in spans])


def judge_windows(sums: Tensor, right: int) -> tuple[Tensor, Tensor]:
    """True where the window number `right` has most votes, and margins: (X,) both.

    The margin is that window's votes less those of the best other one, in standard deviations of
    all W: 0 is a draw, and W ** 0.5 is no vote elsewhere.

    Args:
        sums: (X, W), votes of each window.
    """
    wrong = torch.cat((sums[:, :right], sums[:, right + 1 :]), dim=1).amax(dim=1)
    margins = (sums[:, right] - wrong) / sums.std(dim=1).clamp(min=TINY)
    return margins > 0, margins


def rank_heads(
    found: Tensor, held_out: Tensor, margin: Tensor, by_margin: bool = False
) -> list[HeadRecord]:
    """All heads, best first: by needles found, then by margin, then by layer and head.

    Args:
        found, held_out: counts (layers, H). margin: means (layers, H). by_margin: margin comes
            before what is found.
    """
    heads = [
        HeadRecord(layer, head, int(found[layer, head]), int(held_out[layer, head]), float(mean))
        for layer, row in enumerate(margin)
        for head, mean in enumerate(row)
    ]
    if by_margin:
        return sorted(heads, key=lambda one: (-one.margin, one.pair))
    return sorted(heads, key=lambda one: (-one.found, -one.margin, one.pair))


def prefixes(best: Sequence[HeadRecord]) -> dict[int, HeadSet]:
    """The sets to try, by their number of heads: the best 4, 5, ... 16."""
    pairs = tuple(one.pair for one in best[:MOST])
    return {n: pairs[:n] for n in range(min(LEAST, len(pairs)), len(pairs) + 1)}


def enough(best: Sequence[HeadRecord], hits: Mapping[int, int], wanted: int) -> int:
    """The fewest of the best heads with as many hits as all heads; if no number has as many, the
    fewest of those with most. Where several layers have good heads, the set has heads of two.

    Args:
        hits: held-out hits of each number of heads in `prefixes`. wanted: hits of all heads.
    """
    least = GOOD * best[0].found
    spread = len({one.layer for one in best[:MOST] if one.found >= least}) > 1
    fit = [n for n in hits if not spread or len({one.layer for one in best[:n]}) > 1]
    return min(fit, key=lambda n: (-min(hits[n], wanted), n))
