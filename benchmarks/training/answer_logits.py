"""A model's logits where answers are, for a batch of examples, without those of the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from example_batches import TokenExample
from torch import Tensor


def answer_logits(model: Any, batch: Sequence[TokenExample]) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (A, V) float32 of all A answer tokens, these tokens (A,), and their examples (A,).

    Examples are padded at their end, which no token before it attends to.
    """
    longest = max(len(example) for example in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    rows, columns, targets = list[int](), list[int](), list[int]()
    for row, example in enumerate(batch):
        ids[row, : len(example)] = torch.tensor(example.prompt + example.answer)
        rows += [row] * len(example.answer)
        columns += range(len(example.prompt) - 1, len(example) - 1)
        targets += example.answer
    hidden = model.base_model(input_ids=ids.to(model.device), use_cache=False).last_hidden_state
    chosen = hidden[rows, columns]
    logits = model.get_output_embeddings()(chosen).float()
    return logits, torch.tensor(targets, device=logits.device), torch.tensor(rows)


def answer_losses(model: Any, batch: Sequence[TokenExample]) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each answer token (A,), and its example (A,)."""
    logits, targets, rows = answer_logits(model, batch)
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return losses, rows.to(losses.device)
