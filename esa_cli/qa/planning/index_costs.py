"""The cost of a token index: bytes of its keys, and operations of the layers that run."""

from __future__ import annotations

from dataclasses import dataclass

from esa_cli.models.text_passes.fused_forward import MOST_BYTES
from esa_cli.qa.finding.late_interaction import CONTEXT_TOKENS, PIECE, SEGMENT_TOKENS
from esa_cli.qa.finding.load_encoder import FinderSizes
from esa_cli.qa.planning.costs import LIBRARIES, TOKEN_BYTES, Costs
from esa_cli.storage.library import Layout

SEQUENCE = SEGMENT_TOKENS + CONTEXT_TOKENS
"""Tokens that pass the model for each segment."""


@dataclass(frozen=True)
class IndexCosts(Costs):
    """The cost of an index of these sizes; the method reads nothing."""

    sizes: FinderSizes

    @property
    def layout(self) -> Layout:
        """Of the index."""
        return self.sizes.layout

    def keys_values(self, tokens: int, size: int) -> int:
        return 0

    def reduced_keys(self, tokens: int, size: int) -> int:
        """As they are stored, whatever the model's type."""
        return tokens * self.layout.row_bytes

    def working(self, tokens: int, size: int) -> int:
        shape, together = self.shape, PIECE // SEGMENT_TOKENS
        rows = together * SEQUENCE
        projections = (shape.heads + 2 * shape.groups) * shape.dim
        activations = rows * (6 * shape.hidden + 3 * shape.inner + 3 * projections) * size
        scores = rows * SEQUENCE * shape.heads * size
        tokenised = tokens * TOKEN_BYTES
        return activations + scores + tokenised + self.fused_weights(size) + LIBRARIES

    def fused_weights(self, size: int) -> int:
        """Copies of the layers for the finder and for reading passages, on the processor."""
        copied = self.shape.body * size
        if self.on_gpu or copied > MOST_BYTES:
            return 0
        finder = copied * self.sizes.layers // self.shape.layers
        return copied + finder

    def operations(self, tokens: int) -> float:
        shape = self.shape
        attention = shape.layers * 4 * shape.heads * shape.dim * SEQUENCE / 2
        share = self.sizes.layers / shape.layers * SEQUENCE / SEGMENT_TOKENS
        return tokens * (
            share * (2 * shape.body + attention) + 2 * shape.hidden * self.layout.width
        )
