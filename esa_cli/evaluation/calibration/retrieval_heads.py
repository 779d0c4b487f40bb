"""Retrieval heads: the heads whose votes find what a question asks for. Only these need to vote.

    a text with needles, read once by the preset's own reading
      -> half of the questions, read one by one: each head votes alone      -> a ranking
      -> the other half: sets of the best heads against all heads together  -> the smallest set

Nothing is answered: it does not know whether answers are better with the set than without.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from esa_cli.attention.method import Method
from esa_cli.attention.window import Window
from esa_cli.errors import UsageError
from esa_cli.evaluation.calibration.head_ranking import (
    ALL,
    HELD_OUT,
    RANKED,
    CollectedVotes,
    HeadRecord,
    HeadSet,
    NeedleVotes,
    PrefilledText,
    VoteJournal,
    VoteRecord,
    enough,
    prefill,
    prefixes,
    rank_heads,
    set_hits,
    totals,
)
from esa_cli.evaluation.tasks.task_sample import TaskSample
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import attach
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import build_method
from esa_cli.system.progress import Progress

FEWEST = 4
"""Fewest questions that are enough in two halves."""


@dataclass(frozen=True)
class NeedleQuestion:
    """A question, and its needle's absolute positions."""

    question: str
    needle: range


def selectable(
    asked: Sequence[NeedleQuestion], window: Window, tokens: int
) -> list[NeedleQuestion]:
    """Questions whose needle is in view only if it is selected. Raises UsageError."""
    near = window.local if window.ending is None else window.ending
    there = range(window.initial, tokens - near)
    if tokens <= window.dense_below or window.selected == 0:
        there = range(0)
    out = [one for one in asked if there.start <= one.needle.start < one.needle.stop <= there.stop]
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
    return sorted(out, key=lambda one: one.needle.start)


PASSAGE = 128
"""Tokens of a window if the preset selects no whole windows."""


@dataclass(frozen=True)
class RetrievalHeads:
    """The ranked heads and the proposed set.

    Args:
        heads: all of them, best first. chosen: the proposed set. ranked_by, held_out: questions in
            each half. hits: held-out needles that the set puts first. all_hits: the same of all
            heads together. by_size: the same of each number of the best heads. tokens: of the
            document. passage: tokens of a window. left_out: questions whose needle is always in
            view. preset_hits: held-out needles that the preset's own heads put first; None: it
            names none.
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

    unit: ClassVar[str] = "needles"

    @property
    def weak(self) -> bool:
        """True if the set misses more needles than it finds."""
        return 2 * self.hits < self.held_out


class _Question(Protocol):
    @property
    def question(self) -> str: ...


Found = TypeVar("Found", bound=RetrievalHeads)
Asked = TypeVar("Asked", bound=_Question)


def own_heads(preset: Preset) -> HeadSet:
    """The heads that the preset names; () for all."""
    score = build_method(preset).score
    assert isinstance(score, VoteScore)
    return tuple((layer, head) for layer, head in score.heads)


def voting(preset: Preset) -> Method:
    """The preset's method with all heads voting. Raises UsageError: its settings have no use for
    chosen heads."""
    method = build_method(preset)
    score, selector = method.score, preset.selector["name"]
    wrong = dict[str, str]()
    if not isinstance(score, VoteScore):
        wrong["score.name=vote"] = f"score.name must be vote, got {preset.score['name']}"
    elif score.rule != "softmax":
        wrong["score.rule=softmax"] = f"score.rule must be softmax, got {score.rule}"
    if not method.selector.sums_layers:
        needed = "the selector must sum votes over layers"
        wrong["selector.name=consensus"] = f"{needed}, got {selector}, which selects in each layer"
    if wrong:
        given = " ".join(f"--set {setting}" for setting in wrong)
        raise UsageError(f"to choose heads, {'; and '.join(wrong.values())}", f"use {given}")
    assert isinstance(score, VoteScore)
    return replace(method, score=replace(score, heads=ALL))


def check_needles(tokenizer: Any, preset: Preset, sample: TaskSample) -> None:
    """Raises UsageError as `find` does, without the model."""
    prompt = PromptTokens(tokenizer, preset.prompt)
    _asked(prompt, sample, voting(preset), len(prompt.document(sample.text)))


def _asked(
    prompt: PromptTokens, sample: TaskSample, method: Method, tokens: int
) -> list[NeedleQuestion]:
    return selectable(needle_questions(prompt, sample), method.window, tokens)


@torch.inference_mode()
def find(
    loaded: Any,
    preset: Preset,
    sample: TaskSample,
    reading: Progress | None = None,
    asking: Progress | None = None,
    journal: VoteJournal | None = None,
) -> RetrievalHeads:
    """Prefills the sample's text and compares the heads' votes for its questions.

    Args:
        loaded: model and tokenizer. reading: progress in tokens. asking: progress in questions.
        journal: of an earlier search with the same settings, which is continued.

    Raises:
        UsageError: as `voting`; or fewer than `FEWEST` needles are where tokens are selected.
    """
    method = voting(preset)
    assert isinstance(method.score, VoteScore)
    # A shortlist only saves time: votes are over all of M.
    score = replace(method.score, shortlist=0)
    unlisted = replace(method, score=score)
    prompt = PromptTokens(loaded.tokenizer, preset.prompt)
    ids = prompt.document(sample.text)
    asked = _asked(prompt, sample, method, len(ids))
    size = min(method.selector.window_size or PASSAGE, method.window.selected)
    with attach(loaded.model, method) as attachment:

        @cache
        def text() -> PrefilledText:
            rows = prefill(attachment, ids, reading)
            return PrefilledText(attachment, unlisted, rows, prompt, len(ids))

        def votes(one: NeedleQuestion, sets: Sequence[HeadSet]) -> NeedleVotes:
            return text().collect(NeedleVotes(one.needle, size, sets, score), one.question)

        return compare_heads(
            RetrievalHeads, asked, votes, own_heads(preset), journal, asking,
            tokens=len(ids), passage=size, left_out=len(sample.questions) - len(asked),
        )  # fmt: skip


def compare_heads(
    kind: type[Found],
    asked: Sequence[Asked],
    votes: Callable[[Asked, Sequence[HeadSet]], CollectedVotes],
    own: HeadSet,
    journal: VoteJournal | None,
    progress: Progress | None,
    *,
    by_margin: bool = False,
    **facts: int,
) -> Found:
    """Ranks the heads by every other question, and tries sets of them on the rest.

    Args:
        kind: of the results. asked: have the text `question`. votes: collects those for one, of
            every head and of sets. own: heads of the preset. progress: in questions.
        by_margin: heads are ranked by their margins first, and the set is to find as many as any
            set, not as all heads. facts: the other fields of the results.
    """
    kept, done = journal or VoteJournal(), 0

    def records(half: str, some: Sequence[Asked], *sets: HeadSet) -> Iterator[VoteRecord]:
        nonlocal done
        for number, one in enumerate(some):
            yield kept.record(half, number, one.question, partial(votes, one, sets))
            done += 1
            if progress:
                progress(done, len(asked))

    first, second = asked[::2], asked[1::2]
    found, margin = totals(records(RANKED, first))
    sets = prefixes(rank_heads(found, found, margin, by_margin))
    held_out = list(records(HELD_OUT, second, ALL, own, *sets.values()))
    all_hits, own_hits, *of_sets = set_hits(held_out)
    by_size = dict(zip(sets, of_sets, strict=True))
    heads = rank_heads(found, totals(held_out)[0], margin, by_margin)
    count = enough(heads, by_size, max(of_sets) if by_margin else all_hits)
    return kind(
        heads=heads,
        chosen=sets[count],
        ranked_by=len(first),
        held_out=len(second),
        hits=by_size[count],
        all_hits=all_hits,
        by_size=by_size,
        preset_hits=own_hits if own else None,
        **facts,
    )
