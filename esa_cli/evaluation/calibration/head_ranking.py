"""Ranks attention heads by how often their best window covers the needle, and picks the smallest
set of heads that does as well as all of them.

Letters: X heads or sets of heads; W token windows, one every size / 8 tokens; M middle tokens.

"Retrieval heads" are Wu et al.'s (2024, arXiv 2404.15574), who count what an answer copies; here a
head's votes are counted, before anything is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.attention.step import Step
from esa_cli.methods.consensus import centred_start, mean_scores
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import Attachment
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.answering.session import feed
from esa_cli.storage.memory_store import RESERVE
from esa_cli.system.jsonl import Journal
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


RANKED, HELD_OUT = "ranked", "held out"
"""The halves of the questions: heads are ranked by the first, sets are tried on the second."""
KEY = ("half", "number", "question")


class CollectedVotes(Protocol):
    """The votes for one question: of every head, and of sets of heads."""

    def each(self) -> tuple[Tensor, Tensor]: ...
    def hits(self) -> Tensor: ...


@dataclass(frozen=True)
class VoteRecord:
    """What is kept of the votes for one question.

    Args:
        found: (layers, H), true where a head finds the needle. margin: (layers, H), float64.
        hits: (X,), true where a set of heads finds it; empty where none was tried.
    """

    found: Tensor
    margin: Tensor
    hits: Tensor

    @classmethod
    def of_votes(cls, votes: CollectedVotes, half: str) -> VoteRecord:
        found, margin = votes.each()
        hits = votes.hits() if half == HELD_OUT else torch.zeros(0, dtype=torch.bool)
        return cls(found.cpu(), margin.cpu().double(), hits.cpu())

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> VoteRecord:
        return cls(
            torch.tensor(row["found"], dtype=torch.bool),
            torch.tensor(row["margin"], dtype=torch.float64),
            torch.tensor(row["hits"], dtype=torch.bool),
        )

    def as_row(self) -> dict[str, Any]:
        """JSON values, which give the same numbers again bit for bit."""
        return {
            "found": self.found.int().tolist(),
            "margin": self.margin.tolist(),
            "hits": self.hits.int().tolist(),
        }


def totals(records: Iterable[VoteRecord]) -> tuple[Tensor, Tensor]:
    """Times that each head found the needle, and its mean margin: (layers, H) both."""
    found, margins = zip(*((one.found, one.margin) for one in records), strict=True)
    return torch.stack(found).sum(dim=0), torch.stack(margins).mean(dim=0)


def set_hits(records: Sequence[VoteRecord]) -> list[int]:
    """Times that each set of heads found the needle."""
    hits: list[int] = torch.stack([one.hits for one in records]).sum(dim=0).tolist()
    return hits


class VoteJournal:
    """The records of one search; a context manager that holds its file open.

    Args:
        path: JSON lines; None: records are kept in memory alone. header: what is searched, by which
            a file is continued or refused.
    """

    def __init__(self, path: Path | None = None, header: Mapping[str, Any] | None = None) -> None:
        named = dict(header or {})
        same = [name for name in named if name not in ("esa", "command")]
        self._rows = Journal(path, named, same=same, key=KEY, wrong=_wrong)

    def __enter__(self) -> Self:
        self._rows.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.__exit__(*error)

    @property
    def count(self) -> int:
        """Questions with a record."""
        return len(self._rows.rows)

    def record(
        self, half: str, number: int, question: str, measure: Callable[[], CollectedVotes]
    ) -> VoteRecord:
        """The record of a question, measured where the file lacks it.

        Raises:
            ResourceError, DocumentError: it cannot be written.
        """
        key = {"half": half, "number": number, "question": question}
        row = self._rows.find(key)
        if row is None:
            row = {**key, **VoteRecord.of_votes(measure(), half).as_row()}
            self._rows.add(row)
        return VoteRecord.of_row(row)


def _wrong(row: Mapping[str, Any]) -> str:
    """What is wrong with a row of a file; empty: nothing."""
    try:
        record = VoteRecord.of_row(row)
    except (KeyError, TypeError, ValueError) as error:
        return f"no numbers: {error}"
    return "" if record.found.shape == record.margin.shape else "found and margin differ in size"


LEAST, MOST = 4, 16
"""Fewest and most heads in a set: few cost little, but one odd head must not decide."""
COVER = 0.6
"""A window has a needle if it covers at least this share of it."""
GOOD = 0.5
"""A head is good if it finds at least this share of the needles that the best one finds."""
TINY = 1e-30
"""Smallest divisor, for heads without votes."""

LayerHead = tuple[int, int]
"""A layer and a query head, from 0."""
HeadSet = tuple[LayerHead, ...]


@dataclass(frozen=True)
class HeadRecord:
    """One head's results.

    Args:
        found: needles (or pairs) whose window it put first, of those that heads are ranked by.
            held_out: the same of the others. margin: mean of `judge` (of pairs: `judge_windows`),
            over those that heads are ranked by.
    """

    layer: int
    head: int
    found: int
    held_out: int
    margin: float

    @property
    def pair(self) -> LayerHead:
        return self.layer, self.head


def stride_of(size: int) -> int:
    """Tokens from one window to the next."""
    return max(1, size // 8)


def window_sums(votes: Tensor, size: int) -> Tensor:
    """Votes (M,) and votes times places, summed over windows of `size` tokens, at most M: (2, W).

    Their quotient is the mean place of a window's votes. Both may be added up over layers."""
    size, votes = min(size, votes.shape[0]), votes.cpu().double()
    both = torch.stack((votes, votes * torch.arange(votes.shape[0])))
    return mean_scores(both, size, stride_of(size)) * size


def judge(sums: Tensor, needle: range, middle: int, size: int) -> tuple[Tensor, Tensor]:
    """True where the best window, centred on its votes, has the needle; and margins: (X,) both.

    The margin is the best window with the needle over the sum of itself and the best one that does
    not touch it: 0.5 is a draw, 1 no vote elsewhere, 0 no vote for the needle.

    Args:
        sums: (X, 2, W) of `window_sums` with this `size`. needle: offsets into M. middle: M.
    """
    size, (votes, moments) = min(size, middle), sums.unbind(dim=1)
    inside = _inside(torch.arange(votes.shape[1]) * stride_of(size), needle, size)
    least = COVER * min(len(needle), size)
    top = votes.argmax(dim=1, keepdim=True)
    most = votes.gather(1, top)[:, 0]
    centre = moments.gather(1, top)[:, 0] / most.clamp(min=TINY)
    starts = centred_start(centre, size, middle)
    found = (most > 0) & (_inside(starts, needle, size) >= least)
    best, elsewhere = _most(votes, inside >= least), _most(votes, inside <= 0)
    return found, best / (best + elsewhere).clamp(min=TINY)


def _inside(starts: Tensor, needle: range, size: int) -> Tensor:
    """The number of the needle's tokens in each window; zero or less where it has none."""
    return (starts + size).clamp(max=needle.stop) - starts.clamp(min=needle.start)


def _most(votes: Tensor, which: Tensor) -> Tensor:
    """The largest of each row's chosen windows (X,); 0 where there is none."""
    if not bool(which.any()):
        return votes.new_zeros(votes.shape[0])
    return votes[:, which].amax(dim=1)


def span_sums(votes: Tensor, spans: Sequence[range]) -> Tensor:
    """Votes (M,) summed over each span of offsets into M: (W,)."""
    votes = votes.cpu().double()
    return torch.stack([votes[one.start : one.stop].sum() for one in spans])


def judge_windows(sums: Tensor, right: int) -> tuple[Tensor, Tensor]:
    """True where the window number `right` has most votes, and margins: (X,) both.

    The margin is that window's votes less those of the best other one, in standard deviations of
    all W: 0 is a draw, and W ** 0.5 is no vote elsewhere.

    Args:
        sums: (X, W), votes of each window.
    """
    wrong = torch.cat((sums[:, :right], sums[:, right + 1 :]), dim=1).amax(dim=1)
    margins = (sums[:, right] - wrong) / sums.std(dim=1).clamp(min=TINY)
    return margins > 0, margins


def rank_heads(
    found: Tensor, held_out: Tensor, margin: Tensor, by_margin: bool = False
) -> list[HeadRecord]:
    """All heads, best first: by needles found, then by margin, then by layer and head.

    Args:
        found, held_out: counts (layers, H). margin: means (layers, H). by_margin: margin comes
            before what is found.
    """
    heads = [
        HeadRecord(layer, head, int(found[layer, head]), int(held_out[layer, head]), float(mean))
        for layer, row in enumerate(margin)
        for head, mean in enumerate(row)
    ]
    if by_margin:
        return sorted(heads, key=lambda one: (-one.margin, one.pair))
    return sorted(heads, key=lambda one: (-one.found, -one.margin, one.pair))


def prefixes(best: Sequence[HeadRecord]) -> dict[int, HeadSet]:
    """The sets to try, by their number of heads: the best 4, 5, ... 16."""
    pairs = tuple(one.pair for one in best[:MOST])
    return {n: pairs[:n] for n in range(min(LEAST, len(pairs)), len(pairs) + 1)}


def enough(best: Sequence[HeadRecord], hits: Mapping[int, int], wanted: int) -> int:
    """The fewest of the best heads with as many hits as all heads; if no number has as many, the
    fewest of those with most. Where several layers have good heads, the set has heads of two.

    Args:
        hits: held-out hits of each number of heads in `prefixes`. wanted: hits of all heads.
    """
    least = GOOD * best[0].found
    spread = len({one.layer for one in best[:MOST] if one.found >= least}) > 1
    fit = [n for n in hits if not spread or len({one.layer for one in best[:n]}) > 1]
    return min(fit, key=lambda n: (-min(hits[n], wanted), n))
