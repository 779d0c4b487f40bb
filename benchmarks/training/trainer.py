"""Trains an adapter, and what goes with it: AdamW over a budget of time, or of steps or examples.

The learning rate rises over the first steps and falls as a cosine over the budget. With a budget of
steps or examples the result depends on the seed alone; with one of time also on the machine's
speed.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from adapter_files import adapter_matrices
from torch import Tensor, nn
from training_checkpoint import TrainingState, adapter_tensors
from training_steps import (
    check_gradient,
    fixed_weights,
    make_trainable,
    rate_share,
    training_attention,
)

from esa_cli.models.text_passes.text_forward import LoraAdapter

BETAS = (0.9, 0.98)
CLIP = 1.0
"""Largest norm of the gradient of the adapter's matrices."""


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Settings of every training.

    Args:
        minutes: of training steps. lr: the highest learning rate of the adapter.
        warm_up: steps over which it rises. final: its share at the end of the budget.
        batch: examples a step. seed: of the first weights and of the batches.
    """

    minutes: float
    lr: float
    warm_up: int
    final: float = 0.05
    batch: int
    seed: int = 1

    budget: ClassVar[str]
    """The setting, a number of these in the state, that replaces minutes as the budget."""

    def share(self, state: TrainingState) -> float:
        """How much of the budget is spent, 0 to 1."""
        budget: int | None = getattr(self, self.budget)
        if budget is not None:
            spent: int = getattr(state, self.budget)
            return min(1.0, spent / max(budget, 1))
        return min(1.0, state.seconds / (60 * self.minutes)) if self.minutes else 1.0

    def learning_rate(self, state: TrainingState) -> float:
        return self.lr * rate_share(self.share(state), state.steps, self.warm_up, self.final)


class Trainer(ABC):
    """An adapter of a model, the optimiser of what is trained, and how far the training is.

    While `prepared` is entered, the model's own weights are fixed. `whole` is False only while a
    step changes the trained tensors: what is saved then would be of no step.

    Args:
        batches: has `after`, the batches from one on. more: groups of other tensors for the
            optimiser, each with its `share` of the adapter's learning rate.
    """

    smoothing: ClassVar[float]
    """Of the moving averages of the loss."""

    def __init__(
        self, model: Any, adapter: LoraAdapter, batches: Any, settings: TrainerSettings,
        more: Sequence[dict[str, Any]] = (),
    ) -> None:  # fmt: skip
        self.model, self.adapter, self.batches, self.settings = model, adapter, batches, settings
        make_trainable(adapter, model)
        groups = [{"params": adapter_matrices(adapter), "share": 1.0}, *more]
        self.optimiser = torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS, weight_decay=0.0)
        self.state = TrainingState()
        self.whole = True

    def prepared(self) -> AbstractContextManager[None]:
        return fixed_weights(self.model)

    def trained(self) -> dict[str, Tensor]:
        """The trained tensors by name."""
        return adapter_tensors(self.adapter)

    @abstractmethod
    def _loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss of a step, and for its record that of each example or question."""

    @abstractmethod
    def _contents(self, batch: Any) -> tuple[int, list[str]]:
        """How many examples a batch has, and what each loss of the record is counted as."""

    def train(self, after_step: Callable[[Any], None]) -> None:
        """Trains until the budget is spent; `after_step` is called after every step.

        Raises:
            UsageError: no batch can be made, or the loss is no number.
        """
        state = self.state
        if self.settings.share(state) >= 1:
            return
        for epoch, following, batch in self.batches.after(state.epoch, state.batch):
            started = time.monotonic()
            losses = self._step(batch)
            count, kinds = self._contents(batch)
            state.steps += 1
            state.examples += count
            state.epoch, state.batch = epoch, following
            for kind, loss in zip(kinds, losses, strict=True):
                state.count(kind, loss, self.smoothing)
            state.seconds += time.monotonic() - started
            self.whole = True
            after_step(self)
            if self.settings.share(state) >= 1:
                return

    @torch.enable_grad()
    def _step(self, batch: Any) -> list[float]:
        """One step; returns the losses for its record."""
        rate = self.settings.learning_rate(self.state)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["share"]
        with training_attention(self.model):
            loss, losses = self._loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(adapter_matrices(self.adapter), CLIP)
        check_gradient(norm, self.state.steps + 1)
        self.whole = False
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        found: list[float] = losses.detach().tolist()
        return found
