"""The share of a fact in view of each layer at the question's last chunk, or among the passages
of an answer from text.

Where each head selects for itself there are two figures: the mean over heads, and the best head's,
since one head with the fact in view is enough. If all heads share a selection they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from esa_cli.attention.step import ChunkTrace
from esa_cli.evaluation.tasks.task_sample import Fact
from esa_cli.qa.finding.passage import Passage

IN_VIEW = 0.5
"""Least share of a fact's tokens with which a layer has the fact in view."""
LAYERS = 0.25
"""Least share of layers with a fact in view to call it selected. Ours: about a quarter of the
default model's layers pass a found passage on (benchmarks/NOTES.md)."""
SHOWN = 3
"""First passages that count as evidence: as many as `esa ask` shows."""


class NeedleShare(NamedTuple):
    """A layer's share of a fact in view: the mean over its heads, and its best head's."""

    mean: float
    best: float


@dataclass
class NeedleRecall:
    """The last chunk of the question in each layer; a `trace` of `Session.ask`."""

    last: dict[int, ChunkTrace] = field(default_factory=dict)

    def __call__(self, seen: ChunkTrace) -> None:
        if not seen.decoding:
            self.last[seen.layer] = seen

    def shares(self, facts: Sequence[range]) -> list[NeedleShare]:
        """For each layer, the share of the facts' tokens in view, the mean over facts. facts:
        absolute positions of each fact's tokens."""
        out = []
        for layer in sorted(self.last):
            pairs = [_share(self.last[layer], fact) for fact in facts]
            mean, best = (sum(column) / len(facts) for column in zip(*pairs, strict=True))
            out.append(NeedleShare(mean, best))
        return out

    def in_view(self) -> int:
        """Cached tokens that a head attended to beside the question's last chunk; the most of all
        layers and heads."""
        counts = [
            seen.local + max(row.shape[0] for row in seen.far_rows) for seen in self.last.values()
        ]
        return max(counts, default=0)


def _share(seen: ChunkTrace, fact: range) -> NeedleShare:
    """Share of the fact's tokens among I, the selected and L."""
    near = seen.start - seen.local
    inside = sum(1 for at in fact if at >= near)
    selected = [
        int(((row >= fact.start) & (row < min(fact.stop, near))).sum()) for row in seen.far_rows
    ]
    size = max(1, len(fact))
    mean = sum(selected) / len(selected)
    return NeedleShare((inside + mean) / size, (inside + max(selected)) / size)


def selects_facts(shares: Sequence[float]) -> bool:
    """True if enough layers have the facts in view. shares: of each layer's best head."""
    return sum(share >= IN_VIEW for share in shares) >= LAYERS * len(shares)


def _why(score: float, is_selected: bool) -> str:
    """The reason why a question was missed: the selection, or the model with the fact in view."""
    if score >= 1:
        return "answered"
    return "selected, not used" if is_selected else "not selected"


def recall_fields(score: float, shares: Sequence[NeedleShare]) -> dict[str, Any]:
    """The fields `recall` and `why` of a question's row, from each layer's share."""
    if not shares:
        return {"recall": None, "why": None}
    layers, best = ([round(share, 4) for share in column] for column in zip(*shares, strict=True))
    recall: dict[str, Any] = {"mean": round(sum(layers) / len(layers), 4), "layers": layers}
    if best != layers:
        recall["best_head"] = best
    return {"recall": recall, "why": _why(score, selects_facts(best))}


def positions(spans: Sequence[tuple[int, int]], start: int, end: int, head: int) -> range:
    """Absolute positions of the tokens that cover characters [start, end). spans: the characters of
    each token of the document, which begins after `head` tokens."""
    inside = [at for at, (low, high) in enumerate(spans) if high > start and low < end]
    return range(inside[0] + head, inside[-1] + 1 + head) if inside else range(0)


def covered_share(fact: Fact, passages: Sequence[Passage]) -> float:
    """The share of the fact's characters in the passages, which may overlap."""
    inside = {
        at
        for passage in passages
        for at in range(max(fact.start, passage.start), min(fact.end, passage.end))
    }
    return len(inside) / max(1, fact.end - fact.start)


def evidence_recall_fields(
    score: float, facts: Sequence[Fact], passages: Sequence[Passage]
) -> dict[str, Any]:
    """The fields `recall` and `why` of a question's row, from the passages of its answer.

    `mean` is over facts, among the first passages; `read` among all that were read again. A missed
    question whose facts are less than half among the latter is not selected.
    """
    if not facts:
        return {"recall": None, "why": None}
    shown, read = (
        round(sum(covered_share(fact, some) for fact in facts) / len(facts), 4)
        for some in (passages[:SHOWN], passages)
    )
    return {"recall": {"mean": shown, "read": read}, "why": _why(score, read >= IN_VIEW)}
