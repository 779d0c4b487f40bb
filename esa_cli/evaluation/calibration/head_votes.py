"""Votes for a question's needle: of each head alone, and of sets of heads together.

Votes are the preset's own score with `heads` set, so this measures what that setting does. Nothing
is selected meanwhile, as in the survey pass of `consensus`. Only sums over token windows are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.attention.step import Step
from esa_cli.evaluation.calibration.head_ranking import HeadSet, judge, window_sums
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import Attachment
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.ingestion.prefill import feed
from esa_cli.storage.row_allocation import RESERVE
from esa_cli.system.progress import Progress

ALL: HeadSet = ()
"""The set of all heads, as `score.heads` has it."""
Votes = TypeVar("Votes", bound=Selector)
"""A selector that collects votes."""


def set_sums(
    step: Step, score: VoteScore, sets: Sequence[HeadSet], sums: Callable[[Tensor], Tensor]
) -> Tensor:
    """What `sums` makes of each set's votes (M,) in the step's layer, stacked: (X, ...)."""
    made: dict[HeadSet | None, Tensor] = {}
    rows = []
    for one in sets:
        # Sets with the same heads in this layer have the same votes.
        here = None if one == ALL else tuple(pair for pair in one if pair[0] == step.layer)
        if here not in made:
            made[here] = sums(replace(score, heads=one).scores(step))
        rows.append(made[here])
    return torch.stack(rows)


def in_all_layers(judged: Mapping[int, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Whether heads find what was asked for, and their margins, both (layers, H), of a layer's
    (H,) each. Heads of layers that attend to a window have no votes: they find nothing, at margin
    0."""
    found, margins = next(iter(judged.values()))
    nothing = torch.zeros_like(found), torch.zeros_like(margins)
    rows = [judged.get(layer, nothing) for layer in range(max(judged) + 1)]
    return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


@dataclass(eq=False)
class NeedleVotes(Selector):
    """Collects all layers' votes for one question, and selects nothing.

    Of several chunks the last counts, as in selection.

    Args:
        needle: absolute positions. size: tokens of a window. sets: heads that vote together.
        score: whose votes are counted.
    """

    needle: range
    size: int
    sets: Sequence[HeadSet]
    score: VoteScore
    alone: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    together: dict[int, Tensor] = field(default_factory=dict)
    low: int = 0
    middle: int = 0

    def select(self, step: Step, budget: int) -> Tensor:
        self.low, self.middle = step.low, step.middle
        every = [((step.layer, head),) for head in range(step.queries.shape[0])]
        self.alone[step.layer] = self._judged(self._sums(step, every))
        if self.sets:
            self.together[step.layer] = self._sums(step, self.sets)
        return torch.arange(0, device=step.queries.device)

    def _sums(self, step: Step, sets: Sequence[HeadSet]) -> Tensor:
        """Each set's votes in this layer, in windows (X, 2, W)."""
        return set_sums(step, self.score, sets, lambda votes: window_sums(votes, self.size))

    def _judged(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        needle = range(self.needle.start - self.low, self.needle.stop - self.low)
        return judge(sums, needle, self.middle, self.size)

    def each(self) -> tuple[Tensor, Tensor]:
        """True where a head finds the needle, and its margin: (layers, H) both."""
        return in_all_layers(self.alone)

    def hits(self) -> Tensor:
        """True where a set finds the needle, by its votes of all layers: bool (X,)."""
        return self._judged(torch.stack([*self.together.values()]).sum(dim=0))[0]


@dataclass(frozen=True)
class PrefilledText:
    """A text of `tokens` tokens in a cache, behind which questions are processed."""

    attachment: Attachment
    method: Method
    cache: EsaCache
    prompt: PromptTokens
    tokens: int

    def collect(self, votes: Votes, question: str) -> Votes:
        """Processes a question behind the text with `votes` as selector, and crops it again."""
        first, last = self.prompt.question_span(question)
        ids = torch.tensor([self.prompt.question(question)], device=self.attachment.model.device)
        query = QueryState(Phase.QUESTION, question=(self.tokens + first, self.tokens + last))
        self.cache.begin(query, replace(self.method, selector=votes))
        try:
            self.attachment.body(input_ids=ids, past_key_values=self.cache)
        finally:
            self.cache.truncate(self.tokens)
        return votes


def prefill(attachment: Attachment, ids: Sequence[int], progress: Progress | None) -> EsaCache:
    """A new cache, prefilled with these ids by the attached method."""
    cache = attachment.new_cache()
    cache.expect(len(ids) + RESERVE)
    cache.begin(QueryState(Phase.PREFILL))
    feed(attachment.model, ids, cache, done=progress)
    return cache
