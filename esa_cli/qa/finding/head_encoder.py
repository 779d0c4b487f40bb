"""Encodes tokens for votes: the keys of a model's voting heads, of a document's tokens, and the
queries of a question's.

The model runs up to the last layer with a voting head. What is kept of a document is a fraction of
its rows: the keys of a few heads, without values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.query_state import Phase, QueryState, SurveyComplete
from esa_cli.attention.step import ChunkTrace
from esa_cli.attention.window import Window
from esa_cli.methods.voting import VoteScore
from esa_cli.qa.answering.lazy_session import LazySession
from esa_cli.qa.answering.question import EncodedQuestion
from esa_cli.qa.finding.segments import CONTEXT_TOKENS, SEGMENT_TOKENS
from esa_cli.qa.finding.voting_heads import VotingHeads
from esa_cli.qa.planning.model_shape import shape_of
from esa_cli.storage.library import Layout

WHOLE = Window(initial=0, selected=0, local=0, chunk=1 << 30, dense=1 << 30)
"""Full attention, in one chunk."""


@dataclass(frozen=True)
class VotingQueries:
    """A question's queries in the layers that vote.

    Args:
        traces: of the layers, whose queries (H, C, D) are those of the prompt's head, too.
        start: the first token behind the head. question: positions [first, last) of the question's
            text.
    """

    traces: Sequence[ChunkTrace]
    start: int
    question: tuple[int, int]


class HeadEncoder:
    """The layers of an attached model up to the last one with a voting head.

    Args:
        lazy: the model; its session is made with the first text.
    """

    bare = False
    """Whether nothing may be attached to the model while it encodes."""

    def __init__(self, lazy: LazySession, heads: VotingHeads) -> None:
        self._lazy, self.heads = lazy, heads
        config = lazy.text_model.config
        self._shape = shape_of(config.to_dict())

    @property
    def layout(self) -> Layout:
        """Of the index."""
        return self.heads.layout(self._shape)

    @cached_property
    def key_heads(self) -> Sequence[tuple[int, int]]:
        """(layer, key head) of the keys that are kept, in their order."""
        return self.heads.key_heads(self._shape.heads, self._shape.groups)

    @property
    def digest(self) -> str:
        """SHA-256 of everything that shapes the keys, beside the model."""
        facts = {"heads": self.key_heads, "head": self._head}
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @cached_property
    def _head(self) -> list[int]:
        """What is before every text: the prompt's head. Attention rests on its first token where it
        finds nothing."""
        return self._lazy.prompt.head()

    @torch.inference_mode()
    def encode(self, ids: Sequence[int], first: int, last: int) -> Tensor:
        """Unrotated keys (last - first, R) of the tokens [first, last) of a document, float32, on
        the processor; R is the key heads' numbers, one head after the other.

        The same for every way of dividing a document: each segment of `SEGMENT_TOKENS` sees the
        prompt's head and the `CONTEXT_TOKENS` before it. `first` must be a segment's beginning.
        """
        assert first % SEGMENT_TOKENS == 0, "first must be the beginning of a segment"
        pieces: list[Tensor] = []
        for at in range(first, last, SEGMENT_TOKENS):
            begin, end = max(0, at - CONTEXT_TOKENS), min(last, at + SEGMENT_TOKENS)
            pieces.append(self._keys([*self._head, *ids[begin:end]], end - at))
        return torch.cat(pieces) if pieces else torch.zeros(0, self.layout.width)

    def _keys(self, ids: Sequence[int], count: int) -> Tensor:
        """Keys (count, R) of the last `count` tokens."""
        found: list[Tensor] = []

        def keep(trace: ChunkTrace) -> None:
            own = [head for layer, head in self.key_heads if layer == trace.layer]
            keys, _ = trace.store.span(len(ids) - count, len(ids))
            found.append(keys[own].transpose(0, 1).flatten(1).float().cpu())

        self._run(ids, keep)
        return torch.cat(found, dim=1)

    @torch.inference_mode()
    def question(self, text: str) -> VotingQueries:
        """Raises UsageError: the question is empty."""
        head, traces = self._head, list[ChunkTrace]()
        asked = EncodedQuestion.of(self._lazy.prompt, text, "", (), len(head))
        self._run([*head, *asked.ids], traces.append)
        return VotingQueries(traces, len(head), asked.span)

    def _run(self, ids: Sequence[int], see: Callable[[ChunkTrace], None]) -> None:
        """Runs the layers over a text with full attention, and calls `see` in each that votes."""
        voting = {layer for layer, _ in self.key_heads}

        def trace(found: ChunkTrace) -> None:
            if found.layer in voting:
                see(found)
            if found.layer == self.heads.layers - 1:
                raise SurveyComplete

        session = self._lazy.session
        method = Method(
            window=WHOLE, score=VoteScore(), reading="local", kernel=self._lazy.method.kernel
        )
        cache = session.attachment.new_cache()
        cache.begin(QueryState(Phase.PREFILL, trace=trace), method)
        model: Any = session.model
        with suppress(SurveyComplete):
            batch = torch.tensor([list(ids)], device=model.device)
            model.base_model(input_ids=batch, past_key_values=cache)
