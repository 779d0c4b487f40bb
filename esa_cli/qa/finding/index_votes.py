"""Votes of a model's retrieval heads for the tokens of documents, from their keys alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.attention.step import Step
from esa_cli.methods.voting import VoteScore
from esa_cli.qa.finding.head_encoder import HeadEncoder
from esa_cli.qa.finding.reduced_keys import ReducedKeys

TILE = 1 << 16
"""Most tokens whose keys are decoded at once."""


class LayerKeys:
    """The keys of one layer's voting heads of several documents, one after the other: what a
    `Step` needs of a `KVStore`.

    Args:
        heads: key heads of the layer. places: of those that are kept, in the records.
    """

    def __init__(
        self,
        heads: int,
        places: dict[int, int],
        documents: Sequence[ReducedKeys],
        device: torch.device,
    ) -> None:
        self.heads, self._places, self._device = heads, places, device
        self._documents = documents

    def key_blocks(
        self, start: int, stop: int, most: int, groups: Sequence[int]
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (first token, keys (len(groups), n, D)) of all tokens."""
        first, most = 0, min(most, TILE)
        for keys in self._documents:
            count, dim = keys.shape[0], keys.layout.dim
            wanted = [self._places[group] for group in groups]
            for at in range(0, count, most):
                rows = keys.rows(at, min(at + most, count), wanted, self._device)
                yield first + at, rows.view(rows.shape[0], -1, dim).transpose(0, 1)
            first += count


class HeadVotes:
    """The votes of an encoder's heads.

    Args:
        method: whose score combines the votes of heads and queries, and whose distance of far
            tokens is that of a document's from the question.
    """

    def __init__(self, encoder: HeadEncoder, method: Method) -> None:
        assert isinstance(method.score, VoteScore), "the heads are of this score"
        self._encoder, self._score = encoder, method.score
        self._distance = method.position.distance

    @torch.inference_mode()
    def __call__(self, question: str, documents: Sequence[ReducedKeys]) -> list[Tensor]:
        """The votes (n,) for each document's tokens, float32, on the processor: each head's weights
        are normalised over the tokens of all documents, and the layers' scores are added.

        Raises:
            UsageError: the question is empty.
        """
        asked = self._encoder.question(question)
        sizes = [keys.shape[0] for keys in documents]
        total = torch.zeros(sum(sizes))
        for trace in asked.traces:
            queries = trace.queries[:, asked.start :]
            kept = enumerate(self._encoder.key_heads)
            places = {head: at for at, (layer, head) in kept if layer == trace.layer}
            store: Any = LayerKeys(trace.store.heads, places, documents, queries.device)
            step = Step(
                layer=trace.layer, start=asked.start, queries=queries, store=store, low=0,
                high=total.shape[0], local=0, distance=self._distance, scale=trace.scale,
                rope=trace.rope, score=self._score, cap=trace.cap,
                query=QueryState(Phase.QUESTION, question=asked.question),
            )  # fmt: skip
            total += self._score.scores(step).float().cpu()
        return list(torch.split(total, sizes))
