"""Finds retrieval heads, which are attention heads whose votes find the answer's passage.

A text with needles (hidden facts) is prefilled once. Half of the questions rank the heads by how
often each head finds the needle alone; the other half compare sets of the best heads with all
heads. Wu et al. (2024, arXiv 2404.15574) count the tokens that an answer copies; this module counts
votes. Letters: X heads or sets of heads, W token windows, one every size / 8 tokens, and M middle
tokens."""

from __future__ import annotations

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
from esa_cli.evaluation.selftest.selftest_run import find_token_positions
from esa_cli.evaluation.tasks.task_sample import TaskSample
from esa_cli.methods.consensus import average_window_scores, find_centred_window_start
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import attach
from esa_cli.qa.answering.prompt import PromptEncoder
from esa_cli.qa.answering.session import prefill_tokens
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import build_method
from esa_cli.storage.memory_store import RESERVE
from esa_cli.system.progress import Progress

LayerHead = tuple[int, int]
"""A layer and a query head, from 0."""
HeadSet = tuple[LayerHead, ...]
ALL: HeadSet = ()
"""The set of all heads, in the form of the setting `score.heads`."""
MIN_QUESTIONS = 4
MIN_HEADS, MAX_HEADS = 4, 16
"""The sizes of compared sets of heads. Few heads cost little, but one head must not decide."""
COVER = 0.6
"""A window contains a needle if the window covers at least this share of the needle."""
GOOD = 0.5
"""A head is good if it finds at least this share of the needles that the best head finds."""
TINY = 1e-30
"""The smallest divisor, which avoids division by zero for heads without votes."""
PASSAGE = 128
"""Number of tokens in a window if the preset does not select whole windows."""


def choose_window_stride(window_size: int) -> int:
    """Returns the number of tokens from the start of one window to the start of the next."""
    return max(1, window_size // 8)


def sum_votes_by_window(votes: Tensor, window_size: int) -> Tensor:
    """Sums votes (M,), and votes times offsets, over windows of `window_size` tokens. Returns both
    sums (2, W), whose quotient is the mean offset of a window's votes. Layers' sums can be
    added."""
    window_size, votes = min(window_size, votes.shape[0]), votes.cpu().double()
    both = torch.stack((votes, votes * torch.arange(votes.shape[0])))
    return average_window_scores(both, window_size, choose_window_stride(window_size)) * window_size


def judge_head_votes(
    sums: Tensor, needle: range, middle: int, window_size: int
) -> tuple[Tensor, Tensor]:
    """Judges which heads or sets of heads find a needle, by sums of votes by window (X, 2, W).

    Returns hits and margins, both (X,). A hit is True if the best window, centred on its votes,
    contains the needle. With a the votes of the best window that contains the needle, and b those
    of the best window that does not touch it, the margin is a / (a + b), so 0.5 is a draw."""
    window_size, (votes, moments) = min(window_size, middle), sums.unbind(dim=1)

    def measure_needle_overlap(starts: Tensor) -> Tensor:
        return (starts + window_size).clamp(max=needle.stop) - starts.clamp(min=needle.start)

    def find_most_votes(is_window: Tensor) -> Tensor:
        return torch.where(is_window, votes, 0.0).amax(dim=1)

    starts = torch.arange(votes.shape[1]) * choose_window_stride(window_size)
    inside = measure_needle_overlap(starts)
    enough = COVER * min(len(needle), window_size)
    highest, top = votes.max(dim=1, keepdim=True)
    centre = (moments.gather(1, top) / highest.clamp(min=TINY))[:, 0]
    centred = find_centred_window_start(centre, window_size, middle)
    hits = (highest[:, 0] > 0) & (measure_needle_overlap(centred) >= enough)
    best, elsewhere = find_most_votes(inside >= enough), find_most_votes(inside <= 0)
    return hits, best / (best + elsewhere).clamp(min=TINY)


@dataclass(eq=False)
class VoteCollector(Selector):
    """A selector that collects each head's and each set's votes for one question, in all layers,
    and selects no token. `needle` has absolute positions. Only the question's last chunk counts."""

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
        self.alone[step.layer] = self._judge_vote_sums(self._sum_votes(step, singles))
        if self.sets:
            self.together[step.layer] = self._sum_votes(step, self.sets)
        return torch.arange(0, device=step.queries.device)

    def _sum_votes(self, step: Step, sets: Sequence[HeadSet]) -> Tensor:
        """Returns the sums by window (X, 2, W) of the votes of each set of heads in one layer."""

        @cache  # sets with the same heads in this layer have the same votes
        def sum_votes_of_set(heads: HeadSet | None) -> Tensor:
            if heads is None:
                return sum_votes_by_window(torch.zeros(step.middle), self.size)
            return sum_votes_by_window(replace(self.score, heads=heads).scores(step), self.size)

        here = (s if s == ALL else tuple(p for p in s if p[0] == step.layer) or None for s in sets)
        return torch.stack([sum_votes_of_set(heads) for heads in here])

    def _judge_vote_sums(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        needle = range(self.needle.start - self.low, self.needle.stop - self.low)
        return judge_head_votes(sums, needle, self.middle, self.size)

    def judge_single_heads(self) -> tuple[Tensor, Tensor]:
        """Returns the hits and margins of each head, both (layers, H). A head in a layer with
        sliding windows has no votes, and its margin is 0."""
        nothing = tuple(map(torch.zeros_like, next(iter(self.alone.values()))))
        rows = [self.alone.get(layer, nothing) for layer in range(max(self.alone) + 1)]
        return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])

    def judge_head_sets(self) -> Tensor:
        """Returns which sets of heads find the needle by votes of all layers, as bool (X,)."""
        return self._judge_vote_sums(torch.stack([*self.together.values()]).sum(dim=0))[0]


@dataclass(frozen=True)
class HeadResult:
    """How many needles a head found, for the questions that rank the heads and for the held-out
    questions, and the head's mean margin (see `judge_head_votes`) for the ranking questions."""

    layer: int
    head: int
    found: int
    held_out: int
    margin: float

    @property
    def layer_and_head(self) -> LayerHead:
        return self.layer, self.head


def rank_heads(found: Tensor, held_out: Tensor, margin: Tensor) -> list[HeadResult]:
    """Sorts all heads by the number of needles found, then by margin, then by layer and head. All
    arguments have the shape (layers, H)."""
    heads = [
        HeadResult(layer, head, int(found[layer, head]), int(held_out[layer, head]), float(mean))
        for layer, row in enumerate(margin)
        for head, mean in enumerate(row)
    ]
    return sorted(heads, key=lambda head: (-head.found, -head.margin, head.layer_and_head))


def choose_smallest_set_size(
    best: Sequence[HeadResult], hits: Mapping[int, int], all_heads_hits: int
) -> int:
    """Returns the size of the smallest set of best heads that has as many held-out hits as all
    heads (`all_heads_hits`), or else of the smallest set with the most hits. `hits` is by size. If
    several layers have good heads, the set has heads of at least two layers."""
    enough = GOOD * best[0].found
    spread = len({head.layer for head in best[:MAX_HEADS] if head.found >= enough}) > 1
    fit = [n for n in hits if not spread or len({head.layer for head in best[:n]}) > 1]
    return min(fit, key=lambda n: (-min(hits[n], all_heads_hits), n))


class NeedleQuestion(NamedTuple):
    """A question, and the absolute positions of the tokens of the answering needle."""

    question: str
    needle: range


def locate_needle_questions(prompt: PromptEncoder, sample: TaskSample) -> list[NeedleQuestion]:
    """Returns a sample's questions in the order in which the text has the answering needles."""
    spans, head = prompt.find_token_offsets(sample.text), len(prompt.encode_prompt_start())
    out = []
    for question in sample.questions:
        fact = sample.facts[question.facts[0]]
        needle = find_token_positions(spans, fact.start, fact.end, head)
        out.append(NeedleQuestion(question.text, needle))
    return sorted(out, key=lambda question: question.needle.start)


@dataclass(frozen=True)
class HeadSearchResult:
    """The result of a search for retrieval heads: all heads, best first, and the chosen set. The
    set finds `hits` of `held_out` needles, and all heads together find `all_hits`. `ranked_by`
    questions rank the heads. `tokens` and `passage` are the lengths of the text and of a window."""

    heads: list[HeadResult]
    chosen: HeadSet
    ranked_by: int
    held_out: int
    hits: int
    all_hits: int
    tokens: int
    passage: int

    @property
    def misses_most_needles(self) -> bool:
        """Whether the chosen set of heads misses more needles than the set finds."""
        return 2 * self.hits < self.held_out


def build_voting_method(preset: Preset) -> Method:
    """Returns the preset's method, in which all heads vote. Raises UsageError: the preset's method
    cannot use chosen heads."""
    method = build_method(preset)
    score = method.score
    if isinstance(score, VoteScore) and score.rule == "softmax" and method.selector.sums_layers:
        return replace(method, score=replace(score, heads=ALL))
    raise UsageError(
        "to choose heads, score.name must be vote, score.rule softmax, and the selector must "
        f"sum votes over layers, got {preset.score} and {preset.selector['name']}",
        "use --set score.name=vote --set score.rule=softmax --set selector.name=consensus",
    )


def select_needle_questions(
    tokenizer: Any, preset: Preset, sample: TaskSample
) -> list[NeedleQuestion]:
    """Returns the questions whose needle is in view only if the needle is selected. Raises
    UsageError: there are too few such questions, or the method cannot use chosen heads."""
    prompt, window = PromptEncoder(tokenizer, preset.prompt), build_voting_method(preset).window
    tokens, limit = len(prompt.encode_document(sample.text)), window.full_attention_limit
    near = window.local if window.ending is None else window.ending
    has_middle = tokens > limit and window.selected != 0
    middle = range(window.initial, tokens - near) if has_middle else range(0)
    asked = locate_needle_questions(prompt, sample)
    out = [q for q in asked if middle.start <= q.needle.start < q.needle.stop <= middle.stop]
    if len(out) < MIN_QUESTIONS:
        raise UsageError(
            f"at least {MIN_QUESTIONS} needles must be among the middle tokens, got {len(out)} "
            f"of {len(asked)}",
            f"use a longer text: with up to {limit:,} tokens attention is full",
        )
    return out


@torch.inference_mode()
def find_retrieval_heads(
    loaded: Any, preset: Preset, sample: TaskSample, prefill_progress: Progress | None = None,
    question_progress: Progress | None = None,
) -> HeadSearchResult:  # fmt: skip
    """Finds retrieval heads: prefills the sample's text, and compares the heads' votes for the
    sample's questions. `prefill_progress` gets progress in tokens, and `question_progress` progress
    in questions. Raises UsageError, as `select_needle_questions`."""
    method = build_voting_method(preset)
    assert isinstance(method.score, VoteScore)
    # A shortlist only saves time, so heads vote over all middle tokens.
    score = replace(method.score, shortlist=0)
    asked = select_needle_questions(loaded.tokenizer, preset, sample)
    prompt = PromptEncoder(loaded.tokenizer, preset.prompt)
    ids = prompt.encode_document(sample.text)
    size = min(method.selector.window_size or PASSAGE, method.window.selected)
    first, second = asked[::2], asked[1::2]
    with attach(loaded.model, method) as attachment:
        cache = attachment.new_cache()
        cache.announce_token_count(len(ids) + RESERVE)
        cache.begin_query(QueryState(Phase.PREFILL))
        prefill_tokens(attachment.model, ids, cache, progress=prefill_progress)

        def collect_votes(done: int, question: NeedleQuestion, *sets: HeadSet) -> VoteCollector:
            """Asks a question after the text, and then crops the KV cache to the text."""
            votes = VoteCollector(question.needle, size, sets, score)
            start, stop = prompt.find_question_tokens(question.question)
            state = QueryState(Phase.QUESTION, question=(len(ids) + start, len(ids) + stop))
            asked_ids = prompt.encode_question(question.question)
            tokens = torch.tensor([asked_ids], device=loaded.model.device)
            cache.begin_query(state, replace(method, selector=votes, score=score))
            try:
                attachment.body(input_ids=tokens, past_key_values=cache)
            finally:
                cache.truncate(len(ids))
            if question_progress:
                question_progress(done + 1, len(asked))
            return votes

        ranked = [collect_votes(at, one).judge_single_heads() for at, one in enumerate(first)]
        found = torch.stack([hits for hits, _ in ranked]).sum(dim=0)
        margin = torch.stack([margins.double() for _, margins in ranked]).mean(dim=0)
        pairs = tuple(head.layer_and_head for head in rank_heads(found, found, margin)[:MAX_HEADS])
        sets = {n: pairs[:n] for n in range(min(MIN_HEADS, len(pairs)), len(pairs) + 1)}
        held_out = [
            collect_votes(number, question, ALL, *sets.values())
            for number, question in enumerate(second, len(first))
        ]
    held_out_hits = torch.stack([votes.judge_single_heads()[0] for votes in held_out]).sum(dim=0)
    all_hits, *of_sets = torch.stack([v.judge_head_sets() for v in held_out]).sum(dim=0).tolist()
    by_size = dict(zip(sets, of_sets, strict=True))
    heads = rank_heads(found, held_out_hits, margin)
    count = choose_smallest_set_size(heads, by_size, all_hits)
    return HeadSearchResult(
        heads, sets[count], len(first), len(second), by_size[count], all_hits, len(ids), size
    )
