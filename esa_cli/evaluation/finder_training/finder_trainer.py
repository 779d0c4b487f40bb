"""Trains a finder on passages that compete: AdamW on adapter and maps, over a budget of time or
steps.

The loss is the cross-entropy of the right passage among those of the step. The learning rate rises
over the first steps and falls as a cosine over the budget. With a budget of steps the result
depends on the seed alone; with one of time also on the machine's speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esa_cli.evaluation.finder_training.finder_batches import FinderBatch, FinderBatches
from esa_cli.evaluation.finder_training.passage_scores import crop_keys, late_interaction
from esa_cli.evaluation.training.training_checkpoint import TrainingState, adapter_tensors
from esa_cli.evaluation.training.training_steps import (
    check_gradient,
    fixed_weights,
    make_trainable,
    rate_share,
    training_attention,
)
from esa_cli.qa.finding.token_encoder import TokenEncoder

BETAS = (0.9, 0.98)
CLIP = 1.0
"""Largest norm of the gradient of the adapter's matrices."""
MAPS_RATE = 2.0
"""Learning rate of the maps, in that of the adapter."""
SMOOTHING = 0.999
"""Of the moving averages of the loss a question."""


@dataclass(frozen=True)
class FinderTrainingSettings:
    """Settings of training.

    Args:
        minutes: of training steps. steps: replaces `minutes` as the budget.
        layers: of the model that run. first: of them that the adapter changes.
        rank: of the adapter; its alpha is twice that. dim: R, numbers of a reduced key.
        lr: the highest learning rate of the adapter. warm_up: steps over which it rises.
        final: its share at the end of the budget.
        batch: passages a step. seed: of the first weights and of the batches.
    """

    minutes: float = 45.0
    steps: int | None = None
    layers: int = 14
    first: int = 8
    rank: int = 32
    dim: int = 128
    lr: float = 5e-4
    warm_up: int = 30
    final: float = 0.05
    batch: int = 40
    seed: int = 1

    def share(self, state: TrainingState) -> float:
        """How much of the budget is spent, 0 to 1."""
        if self.steps is not None:
            return min(1.0, state.steps / max(self.steps, 1))
        return min(1.0, state.seconds / (60 * self.minutes)) if self.minutes else 1.0

    def learning_rate(self, state: TrainingState) -> float:
        return self.lr * rate_share(self.share(state), state.steps, self.warm_up, self.final)


class FinderTrainer:
    """One encoder, the optimiser of its weights, and how far the training is.

    `state.examples` are passages; losses are counted by kinds of questions. `whole` is False only
    while a step changes the weights: what is saved then would be of no step.
    """

    def __init__(
        self, encoder: TokenEncoder, batches: FinderBatches, settings: FinderTrainingSettings
    ) -> None:
        self.encoder, self.batches, self.settings = encoder, batches, settings
        make_trainable(encoder.adapter, encoder.model)
        encoder.maps = {
            name: nn.Parameter(one.detach().to(encoder.model.device, torch.float32))
            for name, one in encoder.maps.items()
        }
        groups = [
            {"params": encoder.adapter.parameters(), "share": 1.0},
            {"params": list(encoder.maps.values()), "share": MAPS_RATE},
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS, weight_decay=0.0)
        self.state = TrainingState()
        self.whole = True

    def prepared(self) -> AbstractContextManager[None]:
        """The model's own weights are fixed until the block ends."""
        return fixed_weights(self.encoder.model)

    def trained(self) -> dict[str, Tensor]:
        """The trained tensors by name."""
        return {**adapter_tensors(self.encoder.adapter), **self.encoder.maps}

    def train(self, after_step: Callable[[FinderTrainer], None]) -> None:
        """Trains until the budget is spent; `after_step` is called after every step.

        Raises:
            UsageError: the loss is no number.
        """
        state = self.state
        if self.settings.share(state) >= 1:
            return
        for epoch, following, batch in self.batches.after(state.epoch, state.batch):
            started = time.monotonic()
            losses = self._step(batch)
            state.steps += 1
            state.examples += len(batch.crops)
            state.epoch, state.batch = epoch, following
            for kind, loss in zip(batch.kinds, losses, strict=True):
                state.count(kind, loss, SMOOTHING)
            state.seconds += time.monotonic() - started
            self.whole = True
            after_step(self)
            if self.settings.share(state) >= 1:
                return

    @torch.enable_grad()
    def _step(self, batch: FinderBatch) -> list[float]:
        """One step; returns the loss of each question."""
        rate = self.settings.learning_rate(self.state)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["share"]
        with training_attention(self.encoder.model):
            losses = self._losses(batch)
        losses.mean().backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.encoder.adapter.parameters(), CLIP)
        check_gradient(norm, self.state.steps + 1)
        self.whole = False
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        found: list[float] = losses.detach().tolist()
        return found

    def _losses(self, batch: FinderBatch) -> Tensor:
        """Cross-entropy of each question's passage among those of the batch, (questions,)."""
        keys, within = crop_keys(self.encoder, batch.crops)
        queries, weights = self.encoder.questions(batch.questions)
        scores = late_interaction(queries, weights, keys, within)
        right = torch.tensor(batch.right, device=scores.device)
        factor = self.encoder.maps["scale"].exp()
        return nn.functional.cross_entropy(factor * scores, right, reduction="none")
