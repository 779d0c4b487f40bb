"""Retrieval heads by real questions: heads that prefer the answering window to the wrong ones.

    pairs -> contexts of nine windows (`pair_contexts`), each read by the preset's own reading
      -> half of them: each head's margin over the best wrong window        -> a ranking
      -> the other half: sets of the best heads                             -> the best set

Ranking heads by what tells the right passage from hard wrong ones follows CoRe (arXiv 2510.02219),
and real questions follow QRHead (arXiv 2506.09944); the score is the preset's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Step
from esa_cli.errors import UsageError
from esa_cli.evaluation.calibration.head_ranking import (
    HeadSet,
    enough,
    judge_windows,
    prefixes,
    rank_heads,
    span_sums,
)
from esa_cli.evaluation.calibration.head_votes import (
    ALL,
    PrefilledText,
    in_all_layers,
    prefill,
    set_sums,
)
from esa_cli.evaluation.calibration.needle_questions import FEWEST
from esa_cli.evaluation.calibration.pair_contexts import PairContext
from esa_cli.evaluation.calibration.retrieval_heads import (
    RetrievalHeads,
    own_heads,
    voting,
)
from esa_cli.evaluation.calibration.vote_journal import (
    HELD_OUT,
    RANKED,
    VoteJournal,
    VoteRecord,
    set_hits,
    totals,
)
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import Attachment, attach
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.progress import Progress


@dataclass(frozen=True)
class PairHeads(RetrievalHeads):
    """As `RetrievalHeads`, with pairs for needles; `tokens` and `passage` are means.

    Args:
        lexical_hits: held-out pairs whose answering window BM25 puts first.
    """

    lexical_hits: int = 0

    unit: ClassVar[str] = "pairs"

    @property
    def weak(self) -> bool:
        """True if the set puts the answering window first in less than a third of the pairs; of
        nine windows, chance does in a ninth."""
        return 3 * self.hits < self.held_out


@dataclass(eq=False)
class PairVotes(Selector):
    """Collects all layers' votes for the windows of one context, and selects nothing.

    Args:
        context: with the windows' positions. sets: heads that vote together. score: whose votes
            are counted.
    """

    context: PairContext
    sets: Sequence[HeadSet]
    score: VoteScore
    alone: dict[int, Tensor] = field(default_factory=dict)
    together: dict[int, Tensor] = field(default_factory=dict)

    def select(self, step: Step, budget: int) -> Tensor:
        spans = [range(one.start - step.low, one.stop - step.low) for one in self.context.windows]

        def sums(votes: Tensor) -> Tensor:
            return span_sums(votes, spans)

        every = [((step.layer, head),) for head in range(step.queries.shape[0])]
        self.alone[step.layer] = set_sums(step, self.score, every, sums)
        if self.sets:
            self.together[step.layer] = set_sums(step, self.score, self.sets, sums)
        return torch.arange(0, device=step.queries.device)

    def each(self) -> tuple[Tensor, Tensor]:
        """True where a head puts the answering window first, and its margin: (layers, H) both."""
        right = self.context.right
        return in_all_layers({i: judge_windows(votes, right) for i, votes in self.alone.items()})

    def hits(self) -> Tensor:
        """True where a set puts the answering window first, by its votes of all layers: (X,)."""
        rows = torch.stack([*self.together.values()]).sum(dim=0)
        return judge_windows(rows, self.context.right)[0]


@torch.inference_mode()
def find_by_pairs(
    loaded: Any,
    preset: Preset,
    contexts: Sequence[PairContext],
    drawn: int,
    asking: Progress | None = None,
    journal: VoteJournal | None = None,
) -> PairHeads:
    """Compares the heads' votes for the windows of each context.

    Args:
        loaded: model and tokenizer. drawn: pairs of which the contexts were made. asking: progress
            in pairs. journal: of an earlier search with the same settings, which is continued.

    Raises:
        UsageError: as `voting`; or there are fewer than `FEWEST` contexts.
    """
    method = voting(preset)
    if len(contexts) < FEWEST:
        raise UsageError(
            f"at least {FEWEST} pairs must have nine windows, got {len(contexts)} of {drawn}",
            "use more pairs, longer texts, or a larger --set context",
        )
    prompt = PromptTokens(loaded.tokenizer, preset.prompt)
    method = _votes_for_all(method, len(prompt.head()))
    with attach(loaded.model, method) as attachment:
        kept = journal or VoteJournal()
        trial = _PairTrial(attachment, method, prompt, len(contexts), kept, asking)
        return _compared(trial, contexts, own_heads(preset), drawn)


def _votes_for_all(method: Method, head: int) -> Method:
    """The method as for a long text, with every token behind the prompt's `head` among M."""
    window = method.window
    window = replace(
        window, dense=0, ending=0, initial=min(window.initial, head),
        selected=max(1, window.selected),
    )  # fmt: skip
    assert isinstance(method.score, VoteScore)
    return replace(method, window=window, score=replace(method.score, shortlist=0))


@dataclass
class _PairTrial:
    """Collects the votes in one context after another."""

    attachment: Attachment
    method: Method
    prompt: PromptTokens
    pairs: int
    journal: VoteJournal
    progress: Progress | None
    done: int = 0

    def records(
        self, half: str, contexts: Sequence[PairContext], sets: Sequence[HeadSet] = ()
    ) -> Iterator[VoteRecord]:
        for number, context in enumerate(contexts):
            measure = partial(self._collect, context, sets)
            yield self.journal.record(half, number, context.question, measure)
            self.done += 1
            if self.progress:
                self.progress(self.done, self.pairs)

    def _collect(self, context: PairContext, sets: Sequence[HeadSet]) -> PairVotes:
        cache = prefill(self.attachment, context.ids, None)
        text = PrefilledText(self.attachment, self.method, cache, self.prompt, len(context.ids))
        assert isinstance(self.method.score, VoteScore)
        return text.collect(PairVotes(context, sets, self.method.score), context.question)


def _compared(
    trial: _PairTrial, contexts: Sequence[PairContext], own: HeadSet, drawn: int
) -> PairHeads:
    """Ranks the heads by every other pair, and tries sets of them on the rest."""
    first, second = contexts[::2], contexts[1::2]
    found, margin = totals(trial.records(RANKED, first))
    sets = prefixes(rank_heads(found, found, margin, by_margin=True))
    held_out = list(trial.records(HELD_OUT, second, [ALL, own, *sets.values()]))
    all_hits, own_hits, *of_sets = set_hits(held_out)
    by_size = dict(zip(sets, of_sets, strict=True))
    heads = rank_heads(found, totals(held_out)[0], margin, by_margin=True)
    count = enough(heads, by_size, max(of_sets))
    lengths = [len(window) for one in contexts for window in one.windows]
    return PairHeads(
        heads=heads,
        chosen=sets[count],
        ranked_by=len(first),
        held_out=len(second),
        hits=by_size[count],
        all_hits=all_hits,
        by_size=by_size,
        tokens=round(sum(len(one.ids) for one in contexts) / len(contexts)),
        passage=round(sum(lengths) / len(lengths)),
        left_out=drawn - len(contexts),
        preset_hits=own_hits if own else None,
        lexical_hits=sum(one.lexical for one in second),
    )
