"""Trains an adapter on the tokens of examples' answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from adapter_files import new_adapter
from answer_logits import answer_losses
from example_batches import ExampleBatches, TokenExample
from torch import Tensor
from trainer import Trainer, TrainerSettings

from esa_cli.models.text_passes.text_forward import LoraAdapter


@dataclass(frozen=True, kw_only=True)
class ReaderTrainingSettings(TrainerSettings):
    """Settings of training, besides those of every training.

    Args:
        examples: replaces `minutes` as the budget.
        rank: r of the adapter; its alpha is twice that.
        wrong: probability of an example of a wrong window for each answered pair.
        swapped: probability of an example of a question about another name for each such pair.
        cloze: cloze questions as a share of the other examples. longest: tokens of an example.
    """

    minutes: float = 60.0
    examples: int | None = None
    rank: int = 16
    lr: float = 6e-4
    warm_up: int = 40
    batch: int = 16
    wrong: float = 0.6
    swapped: float = 1.0
    cloze: float = 0.05
    longest: int = 512

    budget: ClassVar = "examples"


class ReaderTrainer(Trainer):
    """One adapter of one model, its optimiser, and how far the training is.

    While `prepared` is entered, the model runs with the adapter, too.
    """

    batches: ExampleBatches
    settings: ReaderTrainingSettings
    smoothing: ClassVar = 0.99

    def __init__(
        self,
        model: Any,
        batches: ExampleBatches,
        settings: ReaderTrainingSettings,
        start: LoraAdapter | None = None,
    ) -> None:
        rank = settings.rank
        adapter = start or new_adapter(model, rank, 2 * rank, settings.seed)
        super().__init__(model, adapter, batches, settings)

    @contextmanager
    def prepared(self) -> Iterator[None]:
        with super().prepared(), self.adapter.apply():
            yield

    def _loss(self, batch: Sequence[TokenExample]) -> tuple[Tensor, Tensor]:
        """The second: the loss a token of each example."""
        losses, rows = answer_losses(self.model, batch)
        lengths = torch.tensor([len(example.answer) for example in batch], device=losses.device)
        sums = torch.zeros(len(batch), device=losses.device).index_add(0, rows, losses.detach())
        # Between the mean over tokens and the mean over examples: long answers count, but less.
        return (losses / lengths[rows].sqrt()).sum() / len(batch), sums / lengths

    def _contents(self, batch: Sequence[TokenExample]) -> tuple[int, list[str]]:
        return len(batch), [example.source for example in batch]
