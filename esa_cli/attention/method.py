"""A whole method: window sizes and one of each pluggable part. Immutable; made from a preset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from esa_cli.attention.compression import ClosedForm
from esa_cli.attention.parts import Compressor, PositionEncoding, Score, Selector
from esa_cli.attention.positions import FixedDistance
from esa_cli.attention.scoring import SumScore
from esa_cli.attention.selection import TopK


@dataclass(frozen=True)
class Window:
    """How many tokens of each kind take part in a step (Section 3.1), in tokens.

    Args:
        initial: l_I, the document's first tokens; always attended to.
        selected: k, middle tokens chosen in each step.
        local: l_L, the tokens right before the current ones; always attended to.
        chunk: l_C, current tokens that share one selection; longer inputs are cut into chunks.
        ending: tokens at the document's end that stay in view while a question about it is read and
            answered; question and answer themselves always do. None: the paper's rule, the l_L
            tokens before the current ones, whatever they are.
        dense: while at most this many tokens are cached, attention is plain and causal at true
            positions. None: l_I + k + l_L, that is, while everything fits.
    """

    initial: int = 64
    selected: int = 1024
    local: int = 1024
    chunk: int = 512
    dense: int | None = None
    ending: int | None = None

    def __post_init__(self) -> None:
        if min(self.initial, self.selected, self.local) < 0 or self.chunk < 1:
            raise ValueError("window sizes must not be negative, and chunk must be at least 1")
        if min(self.dense or 0, self.ending or 0) < 0:
            raise ValueError("window.dense and window.ending must not be negative")

    @property
    def budget(self) -> int:
        """Cached tokens attended to in a step: l_I + k + l_L."""
        return self.initial + self.selected + self.local

    @property
    def dense_below(self) -> int:
        return self.budget if self.dense is None else self.dense


@dataclass(frozen=True)
class Method:
    """Selective attention, fully specified.

    Args:
        reading: what a chunk that is only being read attends to: `select`, the paper's (selection
            in every chunk), or `local`, only I and L. Questions and decode steps always select.
        kernel: see `kernels.dispatch`.
    """

    window: Window = field(default_factory=Window)
    selector: Selector = field(default_factory=TopK)
    score: Score = field(default_factory=SumScore)
    compressor: Compressor = field(default_factory=ClosedForm)
    position: PositionEncoding = field(default_factory=FixedDistance)
    reading: Literal["select", "local"] = "select"
    kernel: str = "auto"

    @property
    def fitting(self) -> tuple[Compressor, int | None]:
        """What decides the reduced keys of a reading: the compressor and, where it is fitted to
        rotated queries, how far they are rotated."""
        rotated = self.compressor.fit_tokens > 0 and self.score.rotates
        return self.compressor, self.position.distance if rotated else None
