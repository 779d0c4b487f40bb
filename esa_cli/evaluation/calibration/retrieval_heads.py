"""Retrieval heads: the attention heads whose votes find the passage that a question asks for.

A text with needles is prefilled once. For half of the questions each head votes alone, which ranks
the heads; for the other half, sets of the best heads are compared with all heads together. Wu et
al. (2024, arXiv 2404.15574) count the tokens that an answer copies; here votes are counted.
Letters: X heads or sets of heads; W token windows, one every size / 8 tokens; M middle tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Step
from esa_cli.attention.window import Phase, QueryState
from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.task_sample import TaskSample
from esa_cli.methods.consensus import centred_start, mean_scores
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import attach
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.answering.session import feed
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import build_method
from esa_cli.storage.memory_store import RESERVE
from esa_cli.system.progress import Progress

LayerHead = tuple[int, int]
"""A layer and a query head, from 0."""
HeadSet = tuple[LayerHead, ...]
ALL: HeadSet = ()
"""The set of all heads, as the setting `score.heads` has it."""
MIN_QUESTIONS = 4
MIN_HEADS, MAX_HEADS = 4, 16
"""Sizes of the sets: few heads cost little, but one odd head must not decide."""
COVER = 0.6
"""A window has a needle if it covers at least this share of the needle."""
GOOD = 0.5
"""A head is good if it finds at least this share of the needles that the best one finds."""
TINY = 1e-30
"""Smallest divisor, for heads without votes."""
PASSAGE = 128
"""Tokens of a window if the preset selects no whole windows."""


def window_stride(size: int) -> int:
    """Tokens from one window to the next."""
    return max(1, size // 8)


def window_sums(votes: Tensor, size: int) -> Tensor:
    """Sums votes (M,), and votes times places, over windows of `size` tokens: (2, W). The quotient
    is the mean place of a window's votes. Both may be added up over layers."""
    size, votes = min(size, votes.shape[0]), votes.cpu().double()
    both = torch.stack((votes, votes * torch.arange(votes.shape[0])))
    return mean_scores(both, size, window_stride(size)) * size


def judge_voters(sums: Tensor, needle: range, middle: int, size: int) -> tuple[Tensor, Tensor]:
    """Judges voters by their `window_sums` (X, 2, W) and a needle at offsets into M.

    Returns True where the best window, centred on its votes, has the needle, (X,), and margins,
    (X,): the best window with the needle over the sum of itself and the best one that does not
    touch the needle. 0.5 is a draw, 1 no vote elsewhere, 0 no vote for the needle.
    """
    size, (votes, moments) = min(size, middle), sums.unbind(dim=1)

    def overlap(starts: Tensor) -> Tensor:
        return (starts + size).clamp(max=needle.stop) - starts.clamp(min=needle.start)

    def largest(which: Tensor) -> Tensor:
        return torch.where(which, votes, 0.0).amax(dim=1)

    inside = overlap(torch.arange(votes.shape[1]) * window_stride(size))
    enough = COVER * min(len(needle), size)
    highest, top = votes.max(dim=1, keepdim=True)
    centre = (moments.gather(1, top) / highest.clamp(min=TINY))[:, 0]
    hits = (highest[:, 0] > 0) & (overlap(centred_start(centre, size, middle)) >= enough)
    best, elsewhere = largest(inside >= enough), largest(inside <= 0)
    return hits, best / (best + elsewhere).clamp(min=TINY)


@dataclass(eq=False)
class NeedleVotes(Selector):
    """A selector that collects all layers' votes for one question, alone and in `sets`, about a
    needle at absolute positions, and selects nothing. Of several chunks the last counts."""

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
        singles = [((step.layer, head),) for head in range(step.queries.shape[0])]
        self.alone[step.layer] = self._judge(self._sums(step, singles))
        if self.sets:
            self.together[step.layer] = self._sums(step, self.sets)
        return torch.arange(0, device=step.queries.device)

    def _sums(self, step: Step, sets: Sequence[HeadSet]) -> Tensor:
        """Sums each set's votes in this layer over windows, (X, 2, W)."""

        @cache  # sets with the same heads in this layer have the same votes
        def sums(heads: HeadSet | None) -> Tensor:
            if heads is None:
                return window_sums(torch.zeros(step.middle), self.size)
            return window_sums(replace(self.score, heads=heads).scores(step), self.size)

        here = (s if s == ALL else tuple(p for p in s if p[0] == step.layer) or None for s in sets)
        return torch.stack([sums(heads) for heads in here])

    def _judge(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        needle = range(self.needle.start - self.low, self.needle.stop - self.low)
        return judge_voters(sums, needle, self.middle, self.size)

    def judge_heads(self) -> tuple[Tensor, Tensor]:
        """Returns hits and margins of each head, (layers, H) both. A head in a layer with windowed
        attention has no votes and margin 0."""
        nothing = tuple(map(torch.zeros_like, next(iter(self.alone.values()))))
        rows = [self.alone.get(layer, nothing) for layer in range(max(self.alone) + 1)]
        return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])

    def judge_sets(self) -> Tensor:
        """True where a set finds the needle by its votes of all layers: bool (X,)."""
        return self._judge(torch.stack([*self.together.values()]).sum(dim=0))[0]


@dataclass(frozen=True)
class HeadRecord:
    """One head's results: the needles found of those that rank the heads and of the held-out ones,
    and the mean margin of `judge_voters` in the former."""

    layer: int
    head: int
    found: int
    held_out: int
    margin: float

    @property
    def pair(self) -> LayerHead:
        return self.layer, self.head


def rank_heads(found: Tensor, held_out: Tensor, margin: Tensor) -> list[HeadRecord]:
    """Sorts all heads by needles found, then by margin, then by layer and head. All tensors are
    (layers, H)."""
    heads = [
        HeadRecord(layer, head, int(found[layer, head]), int(held_out[layer, head]), float(mean))
        for layer, row in enumerate(margin)
        for head, mean in enumerate(row)
    ]
    return sorted(heads, key=lambda head: (-head.found, -head.margin, head.pair))


def smallest_set(best: Sequence[HeadRecord], hits: Mapping[int, int], wanted: int) -> int:
    """Returns the fewest of the best heads with as many held-out hits as all heads (`wanted`), else
    the fewest of those with most hits. Where several layers have good heads, the set has heads of
    two layers."""
    enough = GOOD * best[0].found
    spread = len({head.layer for head in best[:MAX_HEADS] if head.found >= enough}) > 1
    fit = [n for n in hits if not spread or len({head.layer for head in best[:n]}) > 1]
    return min(fit, key=lambda n: (-min(hits[n], wanted), n))


class NeedleQuestion(NamedTuple):
    """A question, and its needle's absolute positions."""

    question: str
    needle: range


def needle_questions(prompt: PromptTokens, sample: TaskSample) -> list[NeedleQuestion]:
    """Returns the questions in the order of their needles in the text."""
    spans, head = prompt.offsets(sample.text), len(prompt.head())
    starts, ends = [low for low, _ in spans], [high for _, high in spans]
    out = []
    for question in sample.questions:
        fact = sample.facts[question.facts[0]]
        first, last = bisect_right(ends, fact.start), bisect_left(starts, fact.end)
        out.append(NeedleQuestion(question.text, range(first + head, last + head)))
    return sorted(out, key=lambda question: question.needle.start)


@dataclass(frozen=True)
class RetrievalHeads:
    """The heads, best first, and the proposed set; questions in each half, held-out needles that
    the set and all heads together put first, and tokens of the text and of a window."""

    heads: list[HeadRecord]
    chosen: HeadSet
    ranked_by: int
    held_out: int
    hits: int
    all_hits: int
    tokens: int
    passage: int

    @property
    def weak(self) -> bool:
        """True if the set misses more needles than it finds."""
        return 2 * self.hits < self.held_out


def voting(preset: Preset) -> Method:
    """Returns the preset's method with all heads voting. Raises UsageError: the preset's settings
    have no use for chosen heads."""
    method = build_method(preset)
    score = method.score
    if isinstance(score, VoteScore) and score.rule == "softmax" and method.selector.sums_layers:
        return replace(method, score=replace(score, heads=ALL))
    raise UsageError(
        "to choose heads, score.name must be vote, score.rule softmax, and the selector must sum "
        f"votes over layers, got {preset.score} and {preset.selector['name']}",
        "use --set score.name=vote --set score.rule=softmax --set selector.name=consensus",
    )


def check_needles(tokenizer: Any, preset: Preset, sample: TaskSample) -> list[NeedleQuestion]:
    """Returns the questions whose needle is in view only if it is selected. Raises UsageError: the
    questions are fewer than MIN_QUESTIONS; or as `voting`."""
    prompt, window = PromptTokens(tokenizer, preset.prompt), voting(preset).window
    asked, tokens = needle_questions(prompt, sample), len(prompt.document(sample.text))
    near = window.local if window.ending is None else window.ending
    middle = range(window.initial, tokens - near)
    if tokens <= window.dense_below or window.selected == 0:
        middle = range(0)
    out = [q for q in asked if middle.start <= q.needle.start < q.needle.stop <= middle.stop]
    if len(out) < MIN_QUESTIONS:
        raise UsageError(
            f"at least {MIN_QUESTIONS} needles must be where tokens are selected, got {len(out)} "
            f"of {len(asked)}",
            f"use a longer text: up to {window.dense_below:,} tokens all are in view",
        )
    return out


@torch.inference_mode()
def find(
    loaded: Any,
    preset: Preset,
    sample: TaskSample,
    prefilling: Progress | None = None,
    asking: Progress | None = None,
) -> RetrievalHeads:
    """Prefills the sample's text and compares the heads' votes for its questions; progress in
    tokens and in questions. Raises UsageError as `check_needles`."""
    method = voting(preset)
    assert isinstance(method.score, VoteScore)
    # A shortlist only saves time: votes are over all of M.
    score = replace(method.score, shortlist=0)
    asked = check_needles(loaded.tokenizer, preset, sample)
    prompt = PromptTokens(loaded.tokenizer, preset.prompt)
    ids = prompt.document(sample.text)
    size = min(method.selector.window_size or PASSAGE, method.window.selected)
    first, second = asked[::2], asked[1::2]
    with attach(loaded.model, method) as attachment:
        cache = attachment.new_cache()
        cache.expect(len(ids) + RESERVE)
        cache.begin(QueryState(Phase.PREFILL))
        feed(attachment.model, ids, cache, done=prefilling)

        def collect_votes(done: int, question: NeedleQuestion, *sets: HeadSet) -> NeedleVotes:
            """Processes a question after the text, and crops the cache again."""
            votes = NeedleVotes(question.needle, size, sets, score)
            start, stop = prompt.question_span(question.question)
            state = QueryState(Phase.QUESTION, question=(len(ids) + start, len(ids) + stop))
            tokens = torch.tensor([prompt.question(question.question)], device=loaded.model.device)
            cache.begin(state, replace(method, selector=votes, score=score))
            try:
                attachment.body(input_ids=tokens, past_key_values=cache)
            finally:
                cache.truncate(len(ids))
            if asking:
                asking(done + 1, len(asked))
            return votes

        ranked = [
            collect_votes(number, question).judge_heads() for number, question in enumerate(first)
        ]
        found = torch.stack([hits for hits, _ in ranked]).sum(dim=0)
        margin = torch.stack([margins.double() for _, margins in ranked]).mean(dim=0)
        pairs = tuple(head.pair for head in rank_heads(found, found, margin)[:MAX_HEADS])
        sets = {n: pairs[:n] for n in range(min(MIN_HEADS, len(pairs)), len(pairs) + 1)}
        held_out = [
            collect_votes(number, question, ALL, *sets.values())
            for number, question in enumerate(second, len(first))
        ]
    held_out_hits = torch.stack([votes.judge_heads()[0] for votes in held_out]).sum(dim=0)
    all_hits, *of_sets = torch.stack([v.judge_sets() for v in held_out]).sum(dim=0).tolist()
    by_size = dict(zip(sets, of_sets, strict=True))
    heads = rank_heads(found, held_out_hits, margin)
    count = smallest_set(heads, by_size, all_hits)
    return RetrievalHeads(
        heads, sets[count], len(first), len(second), by_size[count], all_hits, len(ids), size
    )
