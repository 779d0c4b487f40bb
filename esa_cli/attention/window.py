"""Window sizes of a method; without torch, so that presets are checked quickly."""

from __future__ import annotations

from dataclasses import dataclass


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
        dense: while at most this many tokens are cached, attention is full and causal at true
            positions. None: l_I + k + l_L, that is, while everything fits.
    """

    initial: int = 64
    selected: int = 1024
    local: int = 1024
    chunk: int = 512
    dense: int | None = None
    ending: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 1 if name == "chunk" else 0
            if value is not None and value < least:
                raise ValueError(f"window.{name} must be at least {least}, got {value}")

    @property
    def budget(self) -> int:
        """Cached tokens attended to in a step: l_I + k + l_L."""
        return self.initial + self.selected + self.local

    @property
    def dense_below(self) -> int:
        return self.budget if self.dense is None else self.dense
