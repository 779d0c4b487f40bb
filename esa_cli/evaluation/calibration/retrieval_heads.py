"""Retrieval heads: the heads whose votes find what a question asks for. Only these need to vote.

    a text with needles, read once by the preset's own reading
      -> half of the questions, read one by one: each head votes alone      -> a ranking
      -> the other half: sets of the best heads against all heads together  -> the smallest set

Nothing is answered: it does not know whether answers are better with the set than without.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.window import Window
from esa_cli.errors import UsageError
from esa_cli.evaluation.calibration.head_ranking import (
    HeadRecord,
    HeadSet,
    enough,
    prefixes,
    rank_heads,
)
from esa_cli.evaluation.calibration.head_votes import (
    ALL,
    NeedleVotes,
    PrefilledText,
    prefill,
)
from esa_cli.evaluation.tasks.task_sample import TaskSample
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attach import attach
from esa_cli.qa import build_method as build
from esa_cli.qa.preset import Preset
from esa_cli.qa.prompt import PromptTokens
from esa_cli.system.progress import Progress

PASSAGE = 128
"""Tokens of a window if the preset selects no whole windows."""
FEWEST = 4
"""Fewest questions that are enough in two halves."""


@dataclass(frozen=True)
class RetrievalHeads:
    """The ranked heads and the proposed set.

    Args:
        heads: all of them, best first. chosen: the proposed set. ranked_by, held_out: questions in
            each half. hits: held-out needles that the set puts first. all_hits: the same of all
            heads together. by_size: the same of each number of the best heads. tokens: of the
            document. passage: tokens of a window. left_out: questions whose needle is always in
            view.
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

    unit: ClassVar[str] = "needles"

    @property
    def weak(self) -> bool:
        """True if the set misses more needles than it finds."""
        return 2 * self.hits < self.held_out


@dataclass(frozen=True)
class NeedleQuestion:
    """A question, and its needle's absolute positions."""

    question: str
    needle: range


def voting(preset: Preset) -> Method:
    """The preset's method with all heads voting. Raises UsageError: its settings have no use for
    chosen heads."""
    method = build.method(preset)
    if not isinstance(method.score, VoteScore):
        raise UsageError(
            f"score.name must be vote to choose heads, got {preset.score['name']}",
            "use --set score.name=vote",
        )
    if method.score.rule != "softmax":
        raise UsageError(
            f"score.rule must be softmax to compare heads, got {method.score.rule}",
            "use --set score.rule=softmax",
        )
    if not method.selector.sums_layers:
        raise UsageError(
            "the selector must sum votes over layers to use chosen heads, got "
            f"{preset.selector['name']}, by which each layer selects for itself",
            "use --set selector.name=consensus",
        )
    return replace(method, score=replace(method.score, heads=ALL))


@torch.inference_mode()
def find(
    loaded: Any,
    preset: Preset,
    sample: TaskSample,
    reading: Progress | None = None,
    asking: Progress | None = None,
) -> RetrievalHeads:
    """Prefills the sample's text and compares the heads' votes for its questions.

    Args:
        loaded: model and tokenizer. reading: progress in tokens. asking: progress in questions.

    Raises:
        UsageError: as `voting`; or fewer than `FEWEST` needles are where tokens are selected.
    """
    method = voting(preset)
    assert isinstance(method.score, VoteScore)
    # A shortlist only saves time: votes are over all of M.
    unlisted = replace(method, score=replace(method.score, shortlist=0))
    prompt = PromptTokens(loaded.tokenizer, preset.prompt)
    ids = prompt.document(sample.text)
    asked = _selectable(_needle_questions(prompt, sample), method.window, len(ids))
    size = min(method.selector.window_size or PASSAGE, method.window.selected)
    with attach(loaded.model, method) as attachment:
        cache = prefill(attachment, ids, reading)
        prefilled = PrefilledText(attachment, unlisted, cache, prompt, len(ids))
        return _compared(
            _HeadTrial(prefilled, size, len(asked), asking), asked, len(sample.questions)
        )


@dataclass
class _HeadTrial:
    """Collects the votes for one question after another. size: tokens of a window."""

    prefilled: PrefilledText
    size: int
    questions: int
    progress: Progress | None
    done: int = 0

    def votes(
        self, asked: Sequence[NeedleQuestion], sets: Sequence[HeadSet] = ()
    ) -> Iterator[NeedleVotes]:
        for one in asked:
            score = self.prefilled.method.score
            assert isinstance(score, VoteScore)
            votes = NeedleVotes(one.needle, self.size, sets, score)
            yield self.prefilled.collect(votes, one.question)
            self.done += 1
            if self.progress:
                self.progress(self.done, self.questions)


def _compared(trial: _HeadTrial, asked: Sequence[NeedleQuestion], planted: int) -> RetrievalHeads:
    """Ranks the heads by every other question, and tries sets of them on the rest."""
    first, second = asked[::2], asked[1::2]
    found, margin = totals(one.each() for one in trial.votes(first))
    sets = prefixes(rank_heads(found, found, margin))
    hits, apart = [], []
    for one in trial.votes(second, [ALL, *sets.values()]):
        hits.append(one.hits())
        apart.append(one.each())
    all_hits, *of_sets = torch.stack(hits).sum(dim=0).tolist()
    by_size = dict(zip(sets, of_sets, strict=True))
    heads = rank_heads(found, totals(apart)[0], margin)
    count = enough(heads, by_size, all_hits)
    return RetrievalHeads(
        heads=heads,
        chosen=sets[count],
        ranked_by=len(first),
        held_out=len(second),
        hits=by_size[count],
        all_hits=all_hits,
        by_size=by_size,
        tokens=trial.prefilled.tokens,
        passage=trial.size,
        left_out=planted - len(asked),
    )


def totals(judged: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Times that each head found the needle, and its mean margin: (layers, H) both."""
    found, margins = zip(*judged, strict=True)
    return torch.stack(found).sum(dim=0), torch.stack(margins).mean(dim=0)


def _selectable(
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


def _needle_questions(prompt: PromptTokens, sample: TaskSample) -> list[NeedleQuestion]:
    """The questions, in the order of their needles in the text."""
    spans, head = prompt.offsets(sample.text), len(prompt.head())
    starts, ends = [low for low, _ in spans], [high for _, high in spans]
    out = []
    for question in sample.questions:
        fact = sample.facts[question.facts[0]]
        first, last = bisect_right(ends, fact.start), bisect_left(starts, fact.end)
        out.append(NeedleQuestion(question.text, range(first + head, last + head)))
    return sorted(out, key=lambda one: one.needle.start)
