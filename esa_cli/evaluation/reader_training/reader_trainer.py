"""Trains an adapter on examples: AdamW on the answers' tokens, over a budget of time or examples.

The learning rate rises over the first steps and falls as a cosine over the budget. With a budget of
examples the result depends on the seed alone; with one of time also on the machine's speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from esa_cli.evaluation.reader_training.answer_logits import answer_losses
from esa_cli.evaluation.reader_training.example_batches import ExampleBatches, TokenExample
from esa_cli.evaluation.training.training_checkpoint import TrainingState, adapter_tensors
from esa_cli.evaluation.training.training_steps import (
    check_gradient,
    fixed_weights,
    make_trainable,
    rate_share,
    training_attention,
)
from esa_cli.models.text_passes.lora_adapter import LoraAdapter

BETAS = (0.9, 0.98)
CLIP = 1.0
"""Largest norm of the gradient of all matrices."""
SMOOTHING = 0.99
"""Of the moving averages of the loss."""


@dataclass(frozen=True)
class ReaderTrainingSettings:
    """Settings of training.

    Args:
        minutes: of training steps. examples: replaces `minutes` as the budget.
        rank: r of the adapter; its alpha is twice that. lr: the highest learning rate.
        warm_up: steps over which it rises. final: its share at the end of the budget.
        batch: examples a step. seed: of the first matrices and of the examples.
        wrong: probability of an example of a wrong window for each answered pair.
        swapped: probability of an example of a question about another name for each such pair.
        cloze: cloze questions as a share of the other examples. longest: tokens of an example.
    """

    minutes: float = 60.0
    examples: int | None = None
    rank: int = 16
    lr: float = 6e-4
    warm_up: int = 40
    final: float = 0.05
    batch: int = 16
    seed: int = 1
    wrong: float = 0.6
    swapped: float = 1.0
    cloze: float = 0.05
    longest: int = 512

    def share(self, state: TrainingState) -> float:
        """How much of the budget is spent, 0 to 1."""
        if self.examples is not None:
            return min(1.0, state.examples / max(self.examples, 1))
        return min(1.0, state.seconds / (60 * self.minutes)) if self.minutes else 1.0

    def learning_rate(self, state: TrainingState) -> float:
        return self.lr * rate_share(self.share(state), state.steps, self.warm_up, self.final)


class ReaderTrainer:
    """One adapter of one model, its optimiser, and how far the training is.

    While `prepared` is entered, the model runs with the adapter and its own weights are fixed.
    `whole` is False only while a step changes the matrices: what is saved then would be of no step.
    """

    def __init__(
        self,
        model: Any,
        batches: ExampleBatches,
        settings: ReaderTrainingSettings,
        start: LoraAdapter | None = None,
    ) -> None:
        self.model, self.batches, self.settings = model, batches, settings
        rank = settings.rank
        self.adapter = start or LoraAdapter.new(model, rank, 2 * rank, settings.seed)
        make_trainable(self.adapter, model)
        self.optimiser = torch.optim.AdamW(
            self.adapter.parameters(), lr=settings.lr, betas=BETAS, weight_decay=0.0
        )
        self.state = TrainingState()
        self.whole = True

    @contextmanager
    def prepared(self) -> Iterator[None]:
        with fixed_weights(self.model), self.adapter.active():
            yield

    def trained(self) -> dict[str, Tensor]:
        """The trained tensors by name."""
        return adapter_tensors(self.adapter)

    def train(self, after_step: Callable[[ReaderTrainer], None]) -> None:
        """Trains until the budget is spent; `after_step` is called after every step.

        Raises:
            UsageError: all examples are too long, or the loss is no number.
        """
        state = self.state
        if self.settings.share(state) >= 1:
            return
        for epoch, following, batch in self.batches.after(state.epoch, state.batch):
            started = time.monotonic()
            losses = self._step(batch)
            state.steps += 1
            state.examples += len(batch)
            state.epoch, state.batch = epoch, following
            for example, loss in zip(batch, losses, strict=True):
                state.count(example.source, loss, SMOOTHING)
            state.seconds += time.monotonic() - started
            self.whole = True
            after_step(self)
            if self.settings.share(state) >= 1:
                return

    @torch.enable_grad()
    def _step(self, batch: Sequence[TokenExample]) -> list[float]:
        """One step; returns the loss a token of each example."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.learning_rate(self.state)
        with training_attention(self.model):
            losses, rows = answer_losses(self.model, batch)
        lengths = torch.tensor([len(example.answer) for example in batch], device=losses.device)
        # Between the mean over tokens and the mean over examples: long answers count, but less.
        loss = (losses / lengths[rows].sqrt()).sum() / len(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.adapter.parameters(), CLIP)
        check_gradient(norm, self.state.steps + 1)
        self.whole = False
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        sums = torch.zeros(len(batch), device=losses.device)
        means: list[float] = (sums.index_add(0, rows, losses.detach()) / lengths).tolist()
        return means
