"""What a training reports, for tests of readers' and of finders'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer import Trainer


class Events:
    """Keeps what a training reports; ends it like Ctrl-C after step `until`."""

    def __init__(self, until: int | None = None) -> None:
        self.until = until
        self.losses: list[float] = []
        """Of the plain questions of finders, and of the pairs of readers."""
        self.prepared = (0, 0)

    def preparing(self, done: int, total: int) -> None:
        self.prepared = done, total

    def step(self, trainer: Trainer) -> None:
        losses = trainer.state.losses
        self.losses.append(losses.get("plain", losses.get("pair", 0.0)))
        if trainer.state.steps == self.until:
            raise KeyboardInterrupt

    def scoring(self, text: str, done: int, total: int) -> None:
        """Nothing."""

    def scored(self, scores: Sequence[Any], count: int) -> None:
        """Nothing."""
