"""The heads that vote for passages (`score.heads`), and the key heads whose keys they score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from esa_cli.qa.finding.reduced_keys import voting_layout
from esa_cli.qa.planning.model_shape import Shape
from esa_cli.storage.library import Layout


class VotingHeads(NamedTuple):
    """Query heads, (layer, head) each, of which there is at least one."""

    pairs: tuple[tuple[int, int], ...]

    @property
    def bare(self) -> bool:
        """Whether nothing is attached to the model that computes the index."""
        return False

    @property
    def layers(self) -> int:
        """The model's layers that run for them."""
        return 1 + max(layer for layer, _ in self.pairs)

    def key_heads(self, heads: int, groups: int) -> Sequence[tuple[int, int]]:
        """(layer, key head) each, ascending, of a model with so many query and key heads."""
        each = heads // groups
        return sorted({(layer, head // each) for layer, head in self.pairs})

    def layout(self, shape: Shape) -> Layout:
        """The layout of the index of their keys."""
        return voting_layout(len(self.key_heads(shape.heads, shape.groups)), shape.dim)
