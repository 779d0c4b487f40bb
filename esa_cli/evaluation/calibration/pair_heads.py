"""Retrieval heads by real questions: heads that prefer the answering window to the wrong ones.

    pairs -> contexts of nine windows (`pair_contexts`), each read by the preset's own reading
      -> half of them: each head's margin over the best wrong window        -> a ranking
      -> the other half: sets of the best heads                             -> the best set

Ranking heads by what tells the right passage from hard wrong ones follows CoRe (arXiv 2510.02219),
and real questions follow QRHead (arXiv 2506.09944); the score is the preset's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Step
from esa_cli.errors import UsageError
from esa_cli.evaluation.calibration.head_ranking import HeadSet, judge_windows, span_sums
from esa_cli.evaluation.calibration.head_votes import (
    PrefilledText,
    in_all_layers,
    prefill,
    set_sums,
)
from esa_cli.evaluation.calibration.needle_questions import FEWEST
from esa_cli.evaluation.calibration.pair_contexts import PairContext
from esa_cli.evaluation.calibration.retrieval_heads import (
    RetrievalHeads,
    compare_heads,
    own_heads,
    voting,
)
from esa_cli.evaluation.calibration.vote_journal import VoteJournal
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import attach
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
    score = method.score
    assert isinstance(score, VoteScore)
    lengths = [len(window) for one in contexts for window in one.windows]
    with attach(loaded.model, method) as attachment:

        def votes(one: PairContext, sets: Sequence[HeadSet]) -> PairVotes:
            rows = prefill(attachment, one.ids, None)
            text = PrefilledText(attachment, method, rows, prompt, len(one.ids))
            return text.collect(PairVotes(one, sets, score), one.question)

        return compare_heads(
            PairHeads, contexts, votes, own_heads(preset), journal, asking, by_margin=True,
            tokens=round(sum(len(one.ids) for one in contexts) / len(contexts)),
            passage=round(sum(lengths) / len(lengths)),
            left_out=drawn - len(contexts),
            lexical_hits=sum(one.lexical for one in contexts[1::2]),
        )  # fmt: skip


def _votes_for_all(method: Method, head: int) -> Method:
    """The method as for a long text, with every token behind the prompt's `head` among M."""
    window = method.window
    window = replace(
        window, dense=0, ending=0, initial=min(window.initial, head),
        selected=max(1, window.selected),
    )  # fmt: skip
    assert isinstance(method.score, VoteScore)
    return replace(method, window=window, score=replace(method.score, shortlist=0))
