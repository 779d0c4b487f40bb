"""Retrieval heads: the attention heads whose votes find what a question asks for. Only these need
to vote.

    a text with needles, prefilled once by the preset's own method
      -> half of the questions, one by one: each head votes alone           -> a ranking
      -> the other half: sets of the best heads against all heads together  -> the smallest set

Wu et al. (2024, arXiv 2404.15574) count what an answer copies; here a head's votes are counted,
and nothing is answered: whether answers are better with the set is for `esa selftest`.

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
from esa_cli.attention.window import Phase, QueryState, Window
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
FEWEST = 4
"""Fewest questions that are enough in two halves."""
LEAST, MOST = 4, 16
"""Fewest and most heads in a set: few cost little, but one odd head must not decide."""
COVER = 0.6
"""A window has a needle if it covers at least this share of it."""
GOOD = 0.5
"""A head is good if it finds at least this share of the needles that the best one finds."""
TINY = 1e-30
"""Smallest divisor, for heads without votes."""
PASSAGE = 128
"""Tokens of a window if the preset selects no whole windows."""


def _stride(size: int) -> int:
    """Tokens from one window to the next."""
    return max(1, size // 8)


def window_sums(votes: Tensor, size: int) -> Tensor:
    """Votes (M,) and votes times places, summed over windows of `size` tokens, at most M: (2, W).

    Their quotient is the mean place of a window's votes. Both may be added up over layers."""
    size, votes = min(size, votes.shape[0]), votes.cpu().double()
    both = torch.stack((votes, votes * torch.arange(votes.shape[0])))
    return mean_scores(both, size, _stride(size)) * size


def judge(sums: Tensor, needle: range, middle: int, size: int) -> tuple[Tensor, Tensor]:
    """True where the best window, centred on its votes, has the needle; and margins: (X,) both.

    The margin is the best window with the needle over the sum of itself and the best one that does
    not touch it: 0.5 is a draw, 1 no vote elsewhere, 0 no vote for the needle.

    Args:
        sums: (X, 2, W) of `window_sums` with this `size`. needle: offsets into M. middle: M.
    """
    size, (votes, moments) = min(size, middle), sums.unbind(dim=1)
    inside = _overlap(torch.arange(votes.shape[1]) * _stride(size), needle, size)
    least = COVER * min(len(needle), size)
    most, top = votes.max(dim=1, keepdim=True)
    centre = (moments.gather(1, top) / most.clamp(min=TINY))[:, 0]
    starts = centred_start(centre, size, middle)
    hits = (most[:, 0] > 0) & (_overlap(starts, needle, size) >= least)
    best, elsewhere = _most(votes, inside >= least), _most(votes, inside <= 0)
    return hits, best / (best + elsewhere).clamp(min=TINY)


def _overlap(starts: Tensor, needle: range, size: int) -> Tensor:
    """The number of the needle's tokens in each window; zero or less where it has none."""
    return (starts + size).clamp(max=needle.stop) - starts.clamp(min=needle.start)


def _most(votes: Tensor, which: Tensor) -> Tensor:
    """The largest of each row's chosen windows (X,); 0 where there is none."""
    return torch.where(which, votes, 0.0).amax(dim=1)


@dataclass(eq=False)
class NeedleVotes(Selector):
    """A selector that collects all layers' votes for one question, and selects nothing. Of several
    chunks the last counts, as in selection.

    Args:
        needle: absolute positions. size: tokens of a window. sets: heads that vote together.
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
        singles = [((step.layer, head),) for head in range(step.queries.shape[0])]
        self.alone[step.layer] = self._judge(self._sums(step, singles))
        if self.sets:
            self.together[step.layer] = self._sums(step, self.sets)
        return torch.arange(0, device=step.queries.device)

    def _sums(self, step: Step, sets: Sequence[HeadSet]) -> Tensor:
        """Each set's votes in this layer, in windows (X, 2, W)."""

        @cache  # sets with the same heads in this layer have the same votes
        def sums(here: HeadSet | None) -> Tensor:
            if here is None:
                return window_sums(torch.zeros(step.middle), self.size)
            return window_sums(replace(self.score, heads=here).scores(step), self.size)

        here = (s if s == ALL else tuple(p for p in s if p[0] == step.layer) or None for s in sets)
        return torch.stack([sums(heads) for heads in here])

    def _judge(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        needle = range(self.needle.start - self.low, self.needle.stop - self.low)
        return judge(sums, needle, self.middle, self.size)

    def each(self) -> tuple[Tensor, Tensor]:
        """True where a head finds the needle, and its margin: (layers, H) both. Heads of layers
        that attend to a window have no votes: they find nothing, at margin 0."""
        nothing = tuple(map(torch.zeros_like, next(iter(self.alone.values()))))
        rows = [self.alone.get(layer, nothing) for layer in range(max(self.alone) + 1)]
        return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])

    def hits(self) -> Tensor:
        """True where a set finds the needle, by its votes of all layers: bool (X,)."""
        return self._judge(torch.stack([*self.together.values()]).sum(dim=0))[0]


@dataclass(frozen=True)
class HeadRecord:
    """One head's results: the needles that it finds among those that heads are ranked by and among
    the held-out ones, and its mean margin of `judge` in the former."""

    layer: int
    head: int
    found: int
    held_out: int
    margin: float

    @property
    def pair(self) -> LayerHead:
        return self.layer, self.head


def rank_heads(found: Tensor, held_out: Tensor, margin: Tensor) -> list[HeadRecord]:
    """All heads, best first: by needles found, then by margin, then by layer and head. All tensors
    are (layers, H)."""
    heads = [
        HeadRecord(layer, head, int(found[layer, head]), int(held_out[layer, head]), float(mean))
        for layer, row in enumerate(margin)
        for head, mean in enumerate(row)
    ]
    return sorted(heads, key=lambda head: (-head.found, -head.margin, head.pair))


def prefixes(best: Sequence[HeadRecord]) -> dict[int, HeadSet]:
    """The sets to try, by their number of heads: the best 4, 5, ... 16."""
    pairs = tuple(head.pair for head in best[:MOST])
    return {n: pairs[:n] for n in range(min(LEAST, len(pairs)), len(pairs) + 1)}


def enough(best: Sequence[HeadRecord], hits: Mapping[int, int], wanted: int) -> int:
    """The fewest of the best heads with as many held-out hits as all heads (`wanted`); if no number
    has as many, the fewest of those with most. Where several layers have good heads, the set has
    heads of two."""
    least = GOOD * best[0].found
    spread = len({head.layer for head in best[:MOST] if head.found >= least}) > 1
    fit = [n for n in hits if not spread or len({head.layer for head in best[:n]}) > 1]
    return min(fit, key=lambda n: (-min(hits[n], wanted), n))


class NeedleQuestion(NamedTuple):
    """A question, and its needle's absolute positions."""

    question: str
    needle: range


def selectable(
    asked: Sequence[NeedleQuestion], window: Window, tokens: int
) -> list[NeedleQuestion]:
    """Questions whose needle is in view only if it is selected. Raises UsageError."""
    near = window.local if window.ending is None else window.ending
    middle = range(window.initial, tokens - near)
    if tokens <= window.dense_below or window.selected == 0:
        middle = range(0)
    out = [q for q in asked if middle.start <= q.needle.start < q.needle.stop <= middle.stop]
    if len(out) < FEWEST:
        raise UsageError(
            f"at least {FEWEST} needles must be where tokens are selected, got {len(out)} of "
            f"{len(asked)}",
            f"use a longer text: up to {window.dense_below:,} tokens all are in view",
        )
    return out


def needle_questions(prompt: PromptTokens, sample: TaskSample) -> list[NeedleQuestion]:
    """The questions, in the order of their needles in the text."""
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
    """The heads, best first, and the proposed set.

    Args:
        ranked_by, held_out: questions in each half. hits, all_hits, by_size, preset_hits: held-out
            needles that are put first by the set, by all heads together, by each number of the best
            heads, and by the preset's own heads if it names any. passage: tokens of a window.
        left_out: questions whose needle is always in view.
    """

    heads: list[HeadRecord]
    chosen: HeadSet
    ranked_by: int
    held_out: int
    hits: int
    all_hits: int
    by_size: dict[int, int]
    tokens: int
    passage: int
    left_out: int
    preset_hits: int | None = None

    @property
    def weak(self) -> bool:
        """True if the set misses more needles than it finds."""
        return 2 * self.hits < self.held_out


def voting(preset: Preset) -> Method:
    """The preset's method with all heads voting. Raises UsageError: its settings have no use for
    chosen heads."""
    method = build_method(preset)
    score = method.score
    if isinstance(score, VoteScore) and score.rule == "softmax" and method.selector.sums_layers:
        return replace(method, score=replace(score, heads=ALL))
    raise UsageError(
        "to choose heads, score.name must be vote, score.rule softmax, and the selector must sum "
        f"votes over layers, got {preset.score} and {preset.selector['name']}",
        "use --set score.name=vote --set score.rule=softmax --set selector.name=consensus",
    )


def check_needles(tokenizer: Any, preset: Preset, sample: TaskSample) -> None:
    """Raises UsageError as `find` does, without the model."""
    prompt = PromptTokens(tokenizer, preset.prompt)
    tokens = len(prompt.document(sample.text))
    selectable(needle_questions(prompt, sample), voting(preset).window, tokens)


@torch.inference_mode()
def find(
    loaded: Any,
    preset: Preset,
    sample: TaskSample,
    prefilling: Progress | None = None,
    asking: Progress | None = None,
) -> RetrievalHeads:
    """Prefills the sample's text and compares the heads' votes for its questions; progress in
    tokens and in questions. Raises UsageError: as `voting`; or fewer than `FEWEST` needles are
    where tokens are selected."""
    method = voting(preset)
    assert isinstance(method.score, VoteScore)
    # A shortlist only saves time: votes are over all of M.
    score = replace(method.score, shortlist=0)
    own = tuple((layer, head) for layer, head in preset.score.get("heads", ()))
    prompt = PromptTokens(loaded.tokenizer, preset.prompt)
    ids = prompt.document(sample.text)
    asked = selectable(needle_questions(prompt, sample), method.window, len(ids))
    size = min(method.selector.window_size or PASSAGE, method.window.selected)
    first, second = asked[::2], asked[1::2]
    with attach(loaded.model, method) as attachment:
        cache = attachment.new_cache()
        cache.expect(len(ids) + RESERVE)
        cache.begin(QueryState(Phase.PREFILL))
        feed(attachment.model, ids, cache, done=prefilling)

        def votes(done: int, question: NeedleQuestion, *sets: HeadSet) -> NeedleVotes:
            """Processes a question after the text, and crops the cache again."""
            collected = NeedleVotes(question.needle, size, sets, score)
            first, last = prompt.question_span(question.question)
            state = QueryState(Phase.QUESTION, question=(len(ids) + first, len(ids) + last))
            tokens = torch.tensor([prompt.question(question.question)], device=loaded.model.device)
            cache.begin(state, replace(method, selector=collected, score=score))
            try:
                attachment.body(input_ids=tokens, past_key_values=cache)
            finally:
                cache.truncate(len(ids))
            if asking:
                asking(done + 1, len(asked))
            return collected

        ranked = [votes(number, question).each() for number, question in enumerate(first)]
        found = torch.stack([hits for hits, _ in ranked]).sum(dim=0)
        margin = torch.stack([margins.double() for _, margins in ranked]).mean(dim=0)
        sets = prefixes(rank_heads(found, found, margin))
        held_out = [
            votes(number, question, ALL, own, *sets.values())
            for number, question in enumerate(second, len(first))
        ]
    held_out_hits = torch.stack([one.each()[0] for one in held_out]).sum(dim=0)
    all_hits, own_hits, *of_sets = torch.stack([v.hits() for v in held_out]).sum(dim=0).tolist()
    by_size = dict(zip(sets, of_sets, strict=True))
    heads = rank_heads(found, held_out_hits, margin)
    count = enough(heads, by_size, all_hits)
    return RetrievalHeads(
        heads, sets[count], len(first), len(second), by_size[count], all_hits, by_size, len(ids),
        size, len(sample.questions) - len(asked), own_hits if own else None,
    )  # fmt: skip
