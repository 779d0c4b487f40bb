"""Trains a finder on passages that compete: its adapter, and the maps to reduced keys.

The loss is the cross-entropy of the right passage among those of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from finder_batches import FinderBatch, FinderBatches
from passage_scores import crop_keys, late_interaction
from torch import Tensor, nn
from trainer import Trainer, TrainerSettings

from esa_cli.qa.finding.finder import TokenEncoder

MAPS_RATE = 2.0
"""Learning rate of the maps, in that of the adapter."""


@dataclass(frozen=True, kw_only=True)
class FinderTrainingSettings(TrainerSettings):
    """Settings of training, besides those of every training.

    Args:
        steps: replaces `minutes` as the budget.
        layers: of the model that run. first: of them that the adapter changes.
        rank: of the adapter; its alpha is twice that. dim: R, numbers of a reduced key.
        batch: passages a step.
    """

    minutes: float = 45.0
    steps: int | None = None
    layers: int = 14
    first: int = 8
    rank: int = 32
    dim: int = 128
    lr: float = 5e-4
    warm_up: int = 30
    batch: int = 40

    budget: ClassVar = "steps"


class FinderTrainer(Trainer):
    """One encoder, the optimiser of its weights, and how far the training is.

    `state.examples` are passages; losses are counted by kinds of questions.
    """

    batches: FinderBatches
    smoothing: ClassVar = 0.999

    def __init__(
        self, encoder: TokenEncoder, batches: FinderBatches, settings: FinderTrainingSettings
    ) -> None:
        self.encoder = encoder
        encoder.maps = {
            name: nn.Parameter(one.detach().to(encoder.model.device, torch.float32))
            for name, one in encoder.maps.items()
        }
        maps = {"params": list(encoder.maps.values()), "share": MAPS_RATE}
        super().__init__(encoder.model, encoder.adapter, batches, settings, [maps])

    def trained(self) -> dict[str, Tensor]:
        """The trained tensors by name."""
        return {**super().trained(), **self.encoder.maps}

    def _loss(self, batch: FinderBatch) -> tuple[Tensor, Tensor]:
        losses = self._losses(batch)
        return losses.mean(), losses

    def _contents(self, batch: FinderBatch) -> tuple[int, list[str]]:
        return len(batch.crops), batch.kinds

    def _losses(self, batch: FinderBatch) -> Tensor:
        """Cross-entropy of each question's passage among those of the batch, (questions,)."""
        keys, within = crop_keys(self.encoder, batch.crops)
        queries, weights = self.encoder.encode_questions(batch.questions)
        scores = late_interaction(queries, weights, keys, within)
        right = torch.tensor(batch.right, device=scores.device)
        factor = self.encoder.maps["scale"].exp()
        return nn.functional.cross_entropy(factor * scores, right, reduction="none")
