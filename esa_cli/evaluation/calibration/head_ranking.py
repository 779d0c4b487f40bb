"""Who finds: votes judged by where a needle stands, heads ranked, and the few that are enough.

Numbers only: it knows no model and no text. Letters besides those of `protocols.py`: X voters,
which are heads or sets of them, and W windows of tokens, one every size / 8 tokens.

"Retrieval heads" are Wu et al.'s (2024, arXiv 2404.15574), who count what an answer copies; here a
head's votes are counted, before anything is answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.methods.token_windows import centred_start, mean_votes

LEAST, MOST = 4, 16
"""Heads in a set: so few that they cost little, and so many that one odd head does not decide."""
COVER = 0.6
"""A window has a needle when it covers at least this share of it."""
GOOD = 0.5
"""A head is good when it finds at least this share of what the best one finds."""
TINY = 1e-30
"""In place of a sum of no votes, which is divided by."""

LayerHead = tuple[int, int]
"""A layer and a query head, from 0."""
HeadSet = tuple[LayerHead, ...]


@dataclass(frozen=True)
class HeadRecord:
    """One head's record.

    Args:
        found: needles whose window it put first, of those that heads are ranked by. held_out: of
            the others. margin: mean of best / (best + strongest elsewhere), over the first.
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
    """Votes (M,) summed over windows of `size` tokens, at most M; and so are votes times places, so
    that it can be told where in a window they stand: (2, W). Both may be added up over layers."""
    size, votes = min(size, votes.shape[0]), votes.cpu().double()
    both = torch.stack((votes, votes * torch.arange(votes.shape[0])))
    return mean_votes(both, size, stride_of(size)) * size


def judge(sums: Tensor, needle: range, middle: int, size: int) -> tuple[Tensor, Tensor]:
    """Whether each voter's best window has the needle, and by how much: bool (X,), float (X,).

    The best window is moved to where its votes are in its middle, as the selector does. The margin
    is the best window with the needle over itself and the best one that does not touch it: 0.5 is
    a draw, 1 nothing elsewhere, 0 no vote for the needle.

    Args:
        sums: (X, 2, W) of `window_sums`. needle: offsets into M. middle: M. size: as asked for.
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
    """How many of the needle's tokens each window has; not above zero where it has none."""
    return (starts + size).clamp(max=needle.stop) - starts.clamp(min=needle.start)


def _most(votes: Tensor, which: Tensor) -> Tensor:
    """The largest of each row's chosen windows (X,); 0 where there is none."""
    if not bool(which.any()):
        return votes.new_zeros(votes.shape[0])
    return votes[:, which].amax(dim=1)


def ranked(found: Tensor, held_out: Tensor, margin: Tensor) -> list[HeadRecord]:
    """All heads, best first: by what they find, then by margin, then as they stand in the model.

    Args:
        found, held_out: counts (layers, H). margin: means (layers, H).
    """
    heads = [
        HeadRecord(layer, head, int(found[layer, head]), int(held_out[layer, head]), float(mean))
        for layer, row in enumerate(margin)
        for head, mean in enumerate(row)
    ]
    return sorted(heads, key=lambda one: (-one.found, -one.margin, one.pair))


def prefixes(best: Sequence[HeadRecord]) -> dict[int, HeadSet]:
    """The sets that are tried, by how many heads they have: always the best ones."""
    pairs = tuple(one.pair for one in best[:MOST])
    return {n: pairs[:n] for n in range(min(LEAST, len(pairs)), len(pairs) + 1)}


def enough(best: Sequence[HeadRecord], hits: Mapping[int, int], wanted: int) -> int:
    """How many of the best heads are enough: the fewest that hit as often as wanted; where no
    number does, the fewest of those that hit most often.

    Where good heads stand in several layers, the set has heads of two at least.

    Args:
        hits: held-out hits of each number of heads in `prefixes`. wanted: hits of all heads.
    """
    least = GOOD * best[0].found
    spread = len({one.layer for one in best[:MOST] if one.found >= least}) > 1
    fit = [n for n in hits if not spread or len({one.layer for one in best[:n]}) > 1]
    return min(fit, key=lambda n: (-min(hits[n], wanted), n))
