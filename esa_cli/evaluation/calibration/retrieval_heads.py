"""Finds retrieval heads, which are attention heads that attend most to the passage with the answer.

The model is asked about needles, which are facts hidden in a text. Half of the questions rank the
heads by how often a head alone finds the needle. The other half of the questions compare sets of
the best heads with all heads. In shapes, X is the number of heads or sets of heads, W the number of
overlapping windows, and M the number of middle tokens. A head's votes are its attention weights to
these. Wu and others (2024, arXiv 2404.15574) rank heads by the tokens that an answer copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Step
from esa_cli.attention.window import Phase, QueryState
from esa_cli.errors import UsageError
from esa_cli.evaluation.selftest.selftest_run import find_token_positions
from esa_cli.evaluation.tasks.task_sample import TaskDocument
from esa_cli.methods.consensus import find_centred_window_start
from esa_cli.methods.voting import VoteScore
from esa_cli.models import LoadedModel
from esa_cli.qa.answering.prompt import PromptEncoder
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import ResolvedPreset, build_attention_method
from esa_cli.system.progress import Progress

LayerHead = tuple[int, int]
"""A layer and a query head, from 0."""
HeadSet = tuple[LayerHead, ...]
ALL: HeadSet = ()
"""The set of all heads, in the form of the setting `score.heads`."""
NeedleQuestion = tuple[str, range]
"""A question, and the absolute token positions of the needle that answers it."""
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
    return max(1, window_size // 8)


def sum_votes_by_window(votes: Tensor, window_size: int) -> Tensor:
    """Returns the sums of votes (M,), and of votes times offsets, in W windows of tokens (2, W)."""
    window_size, votes = min(window_size, votes.shape[0]), votes.cpu().double()
    both = torch.stack((votes, votes * torch.arange(votes.shape[0])))
    means = avg_pool1d(both, window_size, stride=choose_window_stride(window_size))
    return means * window_size


def find_needle_hits_and_margins(
    vote_sums: Tensor, needle: range, middle_tokens: int, window_size: int
) -> tuple[Tensor, Tensor]:
    """Returns for each head or set of heads (X,) if the votes find the needle, and by which margin.
    A head finds the needle if the window with the head's most votes, once the window is centred on
    these votes, contains the needle. A head's margin is a / (a + b), where a are the most votes for
    a window that contains the needle, and b the most votes for a window without the needle."""
    window_size, (votes, moments) = min(window_size, middle_tokens), vote_sums.unbind(dim=1)

    def count_needle_tokens_in_windows(window_starts: Tensor) -> Tensor:
        ends = window_starts + window_size
        return ends.clamp(max=needle.stop) - window_starts.clamp(min=needle.start)

    def find_highest_vote_sum(window_mask: Tensor) -> Tensor:
        return torch.where(window_mask, votes, 0.0).amax(dim=1)

    starts = torch.arange(votes.shape[1]) * choose_window_stride(window_size)
    inside = count_needle_tokens_in_windows(starts)
    enough = COVER * min(len(needle), window_size)
    highest, top = votes.max(dim=1, keepdim=True)
    centre = (moments.gather(1, top) / highest.clamp(min=TINY))[:, 0]
    centred = find_centred_window_start(centre, window_size, middle_tokens)
    hits = (highest[:, 0] > 0) & (count_needle_tokens_in_windows(centred) >= enough)
    best, elsewhere = find_highest_vote_sum(inside >= enough), find_highest_vote_sum(inside <= 0)
    return hits, best / (best + elsewhere).clamp(min=TINY)


@dataclass(eq=False)
class HeadVoteCollector(Selector):
    """Selects no token, but collects which heads and sets of heads attend to a needle."""

    needle: range  # the absolute positions of the needle's tokens
    window_tokens: int
    sets: Sequence[HeadSet]
    score: VoteScore
    alone: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    together: dict[int, Tensor] = field(default_factory=dict)
    low: int = 0
    middle: int = 0

    def select(self, step: Step, budget: int) -> Tensor:
        self.low, self.middle = step.low, step.middle
        singles = [((step.layer, head),) for head in range(step.queries.shape[0])]
        self.alone[step.layer] = self._find_needle_hits(self._sum_votes_by_head_set(step, singles))
        if self.sets:
            self.together[step.layer] = self._sum_votes_by_head_set(step, self.sets)
        return torch.arange(0, device=step.queries.device)

    def _sum_votes_by_head_set(self, step: Step, sets: Sequence[HeadSet]) -> Tensor:
        """Returns the sums (X, 2, W) of each head set's votes in one layer, by window of tokens."""

        @cache  # sets with the same heads in this layer have the same votes
        def sum_votes_of_head_set(head_set: HeadSet | None) -> Tensor:
            if head_set is None:
                return sum_votes_by_window(torch.zeros(step.middle), self.window_tokens)
            votes = replace(self.score, heads=head_set).scores(step)
            return sum_votes_by_window(votes, self.window_tokens)

        here = (s if s == ALL else tuple(p for p in s if p[0] == step.layer) or None for s in sets)
        return torch.stack([sum_votes_of_head_set(heads) for heads in here])

    def _find_needle_hits(self, vote_sums: Tensor) -> tuple[Tensor, Tensor]:
        needle = range(self.needle.start - self.low, self.needle.stop - self.low)
        return find_needle_hits_and_margins(vote_sums, needle, self.middle, self.window_tokens)

    def find_heads_hitting_needle(self) -> tuple[Tensor, Tensor]:
        """Returns hits and margins of all heads, (layers, H); 0 in layers with a sliding window."""
        nothing = tuple(map(torch.zeros_like, next(iter(self.alone.values()))))
        rows = [self.alone.get(layer, nothing) for layer in range(max(self.alone) + 1)]
        return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])

    def find_head_sets_hitting_needle(self) -> Tensor:
        """Returns which sets of heads find the needle by the votes of all layers, as bool (X,)."""
        return self._find_needle_hits(torch.stack([*self.together.values()]).sum(dim=0))[0]


@dataclass(frozen=True)
class HeadHits:
    """The numbers of needles that one attention head found in the search for retrieval heads."""

    layer: int
    head: int
    found: int  # the number of needles found for the questions that rank the heads
    held_out: int  # the number of needles found for the held-out questions
    margin: float  # the mean margin for the questions that rank the heads


def rank_heads(needle_hits: Tensor, held_out_hits: Tensor, margins: Tensor) -> list[HeadHits]:
    """Sorts all heads by hits and then by margin, which are given as tensors (layers, H)."""
    found, held_out = needle_hits.tolist(), held_out_hits.tolist()
    heads = [
        HeadHits(layer, head, found[layer][head], held_out[layer][head], float(mean))
        for layer, row in enumerate(margins)
        for head, mean in enumerate(row)
    ]
    return sorted(heads, key=lambda head: (-head.found, -head.margin, head.layer, head.head))


def choose_smallest_head_set_size(
    ranked_heads: Sequence[HeadHits], hits_by_size: Mapping[int, int], all_heads_hits: int
) -> int:
    """Returns the size of the smallest set of best heads that finds as many held-out needles as all
    heads together or, if no set does, of the smallest set that finds the most needles."""
    enough = GOOD * ranked_heads[0].found
    spread = len({head.layer for head in ranked_heads[:MAX_HEADS] if head.found >= enough}) > 1
    # If several layers have good heads, the set must have heads of at least two layers.
    fit = [n for n in hits_by_size if not spread or len({h.layer for h in ranked_heads[:n]}) > 1]
    return min(fit, key=lambda n: (-min(hits_by_size[n], all_heads_hits), n))


def locate_question_needles(encoder: PromptEncoder, sample: TaskDocument) -> list[NeedleQuestion]:
    """Returns the questions with the needles' token positions, sorted by position."""
    spans, head = encoder.find_token_offsets(sample.text), len(encoder.encode_prompt_start())
    out = list[NeedleQuestion]()
    for question in sample.questions:
        fact = sample.facts[question.facts[0]]
        out.append((question.text, find_token_positions(spans, fact.start, fact.end, head)))
    return sorted(out, key=lambda pair: pair[1].start)


@dataclass(frozen=True)
class HeadSearchResult:
    """The result of a search for retrieval heads, with all heads and the best set of heads."""

    heads: list[HeadHits]
    chosen: HeadSet
    ranked_by: int  # the number of questions that rank the heads
    held_out: int  # the number of held-out questions, each about one needle
    hits: int  # the number of held-out needles that the chosen set of heads finds
    all_hits: int  # the number of held-out needles that all heads together find
    tokens: int
    passage: int  # the number of tokens in a window

    @property
    def misses_most_needles(self) -> bool:
        return 2 * self.hits < self.held_out


def build_voting_method(preset: Preset) -> Method:
    """Builds the preset's method, with a score that sums the votes of all attention heads. Raises
    UsageError: the preset's method does not select tokens by votes of chosen heads."""
    method = build_attention_method(preset)
    score = method.score
    if isinstance(score, VoteScore) and score.rule == "softmax" and method.selector.sums_layers:
        return replace(method, score=replace(score, heads=ALL))
    raise UsageError(
        "a search for retrieval heads needs the score vote with the rule softmax, and a selector "
        f"that sums votes over layers, got {preset.score} and {preset.selector['name']}",
        "run esa heads with "
        "--set score.name=vote --set score.rule=softmax --set selector.name=consensus",
    )


def choose_questions_with_middle_needles(
    tokenizer: Any, preset: Preset, sample: TaskDocument
) -> list[NeedleQuestion]:
    """Returns the questions whose needle is among the middle tokens, which attention sees only if
    selected. Raises UsageError: there are too few such questions, or the method has no votes."""
    prompt, window = PromptEncoder(tokenizer, preset.prompt), build_voting_method(preset).window
    tokens, limit = len(prompt.encode_document(sample.text)), window.full_attention_limit
    near = window.local if window.ending is None else window.ending
    has_middle = tokens > limit and window.selected != 0
    middle = range(window.initial, tokens - near) if has_middle else range(0)
    asked = locate_question_needles(prompt, sample)
    out = [(one, at) for one, at in asked if middle.start <= at.start < at.stop <= middle.stop]
    if len(out) < MIN_QUESTIONS:
        raise UsageError(
            f"esa heads needs at least {MIN_QUESTIONS} needles among the middle tokens, but only "
            f"{len(out)} of {len(asked)} needles are among the middle tokens",
            f"search in a longer text, since attention is full up to {limit:,} tokens",
        )
    return out


@torch.inference_mode()
def find_retrieval_heads(
    loaded: LoadedModel, preset: Preset, sample: TaskDocument, prefill_progress: Progress | None =
    None, question_progress: Progress | None = None,
) -> HeadSearchResult:  # fmt: skip
    """Finds retrieval heads by the heads' votes for questions about needles. Raises UsageError."""
    method = build_voting_method(preset)
    assert isinstance(method.score, VoteScore)
    # A shortlist only saves time, so heads vote over all middle tokens.
    score = replace(method.score, shortlist=0)
    asked = choose_questions_with_middle_needles(loaded.tokenizer, preset, sample)
    size = min(method.selector.window_size or PASSAGE, method.window.selected)
    first, second = asked[::2], asked[1::2]
    resolved = ResolvedPreset(preset, method)
    with Session(loaded.model, loaded.tokenizer, resolved, loaded.cache) as session:
        session.read(sample.text, prefill_progress)
        cache, prompt, length = session.cache, session.prompt, session.document_tokens

        def collect_head_votes(
            question_index: int, question: str, needle: range, *head_sets: HeadSet
        ) -> HeadVoteCollector:
            """Collects the heads' votes for a question, which is then cropped from the cache."""
            votes = HeadVoteCollector(needle, size, head_sets, score)
            start, stop = prompt.find_question_tokens(question)
            state = QueryState(Phase.QUESTION, question=(length + start, length + stop))
            asked_ids = prompt.encode_question(question)
            tokens = torch.tensor([asked_ids], device=loaded.model.device)
            cache.begin_query(state, replace(method, selector=votes, score=score))
            try:
                session.attachment.body(input_ids=tokens, past_key_values=cache)
            finally:
                cache.truncate(length)
            if question_progress:
                question_progress(question_index + 1, len(asked))
            return votes

        ranking = [collect_head_votes(at, *pair) for at, pair in enumerate(first)]
        ranked = [votes.find_heads_hitting_needle() for votes in ranking]
        found = torch.stack([hits for hits, _ in ranked]).sum(dim=0)
        margin = torch.stack([margins.double() for _, margins in ranked]).mean(dim=0)
        best = rank_heads(found, found, margin)[:MAX_HEADS]
        pairs = tuple((head.layer, head.head) for head in best)
        sets = {n: pairs[:n] for n in range(min(MIN_HEADS, len(pairs)), len(pairs) + 1)}
        held_out = [
            collect_head_votes(number, *pair, ALL, *sets.values())
            for number, pair in enumerate(second, len(first))
        ]
    head_hits = torch.stack([votes.find_heads_hitting_needle()[0] for votes in held_out])
    set_hits = torch.stack([votes.find_head_sets_hitting_needle() for votes in held_out])
    all_hits, *of_sets = set_hits.sum(dim=0).tolist()
    by_size = dict(zip(sets, of_sets, strict=True))
    heads = rank_heads(found, head_hits.sum(dim=0), margin)
    count = choose_smallest_head_set_size(heads, by_size, all_hits)
    return HeadSearchResult(
        heads, sets[count], len(first), len(second), by_size[count], all_hits, length, size
    )
