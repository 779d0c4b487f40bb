"""Retrieval heads by real questions: heads that prefer the answering window to the wrong ones.

    pairs -> contexts of nine windows (`pair_contexts`), each read by the preset's own reading
      -> half of them: each head's margin over the best wrong window        -> a ranking
      -> the other half: sets of the best heads                             -> the best set

Ranking heads by what tells the right passage from hard wrong ones follows CoRe (arXiv 2510.02219),
and real questions follow QRHead (arXiv 2506.09944); the score is the preset's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Step
from esa_cli.errors import UsageError
from esa_cli.evaluation.calibration.head_ranking import (
    HeadSet,
    PrefilledText,
    VoteJournal,
    in_all_layers,
    judge_windows,
    prefill,
    set_sums,
    span_sums,
)
from esa_cli.evaluation.calibration.question_pairs import AnswerPair, Span, TrainingText
from esa_cli.evaluation.calibration.retrieval_heads import (
    FEWEST,
    RetrievalHeads,
    compare_heads,
    own_heads,
    voting,
)
from esa_cli.evaluation.tasks.task_sample import StableRandom
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import attach
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.finding.passage_finder import token_bounds
from esa_cli.qa.finding.windows import TextWindow
from esa_cli.qa.finding.words import LexicalIndex
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.progress import Progress
from esa_cli.system.registry import nearest

HARD, DRAWN = 4, 4
"""Wrong windows with the best BM25 scores, and wrong windows at random."""
BETWEEN = "\n\n"


@dataclass(frozen=True)
class PairContext:
    """A question, and the prompt's tokens up to the end of the windows.

    Args:
        windows: absolute positions of each window's tokens. right: number of the answering window.
        lexical: BM25 scores the answering window highest.
    """

    question: str
    ids: list[int]
    windows: list[range]
    right: int
    lexical: bool


def draw_pairs(
    texts: Sequence[TrainingText], kinds: Sequence[str], samples: int, seed: int
) -> dict[str, list[AnswerPair]]:
    """Answerable pairs of these kinds by name of their text: at most `samples`, one a passage.

    Raises:
        UsageError: no text has answerable pairs of a kind.
    """
    known = sorted({pair.kind for text in texts for pair in text.pairs if pair.answer})
    for kind in kinds:
        if kind not in known:
            raise UsageError(
                f"--kind must be a kind of answerable pairs, got {kind!r}", nearest(kind, known)
            )
    passages: dict[tuple[str, Span], list[AnswerPair]] = defaultdict(list)
    for text in texts:
        for pair in text.pairs:
            if pair.answer and pair.kind in kinds:
                passages[text.name, pair.passage].append(pair)
    rng, found = StableRandom(seed, "pairs"), defaultdict[str, list[AnswerPair]](list)
    for name, passage in rng.some(list(passages), min(samples, len(passages))):
        rows = passages[name, passage]
        found[name].append(rows[rng.below(len(rows))])
    return found


def pair_contexts(
    texts: Sequence[TrainingText],
    drawn: dict[str, list[AnswerPair]],
    prompt: PromptTokens,
    longest: int,
    seed: int,
    progress: Progress | None = None,
) -> Iterator[PairContext]:
    """The contexts of these pairs, text by text.

    Left out are pairs whose answer is in no single window, whose text has too few windows, or whose
    prompt has more than `longest` tokens.
    """
    done, every = 0, sum(map(len, drawn.values()))
    for text in texts:
        pairs = drawn.get(text.name)
        if not pairs:
            continue
        index = LexicalIndex([text.text])
        for pair in pairs:
            rng = StableRandom(seed, text.name, pair.id)
            made = _context(text.text, index, pair, prompt, rng)
            if made and len(made.ids) + len(prompt.question(made.question)) <= longest:
                yield made
            done += 1
            if progress:
                progress(done, every)


def _context(
    text: str, index: LexicalIndex, pair: AnswerPair, prompt: PromptTokens, rng: StableRandom
) -> PairContext | None:
    right = _answering(index.windows, pair)
    if right is None:
        return None
    scores = index.scores(pair.question)
    wrong = _wrong(index.windows, index.windows[right], pair.passage, scores, rng)
    if wrong is None:
        return None
    order = rng.some([right, *wrong], 1 + len(wrong))
    spans, joined = [], ""
    for at in order:
        window = text[index.windows[at].start : index.windows[at].end]
        spans.append((len(joined), len(joined) + len(window)))
        joined += window + BETWEEN
    joined = joined.removesuffix(BETWEEN)
    head = len(prompt.head())
    offsets = torch.tensor(prompt.offsets(joined)).reshape(-1, 2)
    first, last = token_bounds(offsets, torch.tensor(spans))
    windows = [
        range(head + low, head + high)
        for low, high in zip(first.tolist(), last.tolist(), strict=True)
    ]
    lexical = all(scores[right] > scores[at] for at in wrong)
    return PairContext(pair.question, prompt.document(joined), windows, order.index(right), lexical)


def _answering(windows: Sequence[TextWindow], pair: AnswerPair) -> int | None:
    """The window that has the answer, nearest to its middle."""
    if pair.answer is None:
        return None
    start, end = pair.answer
    there = [at for at, one in enumerate(windows) if one.start <= start and end <= one.end]
    return min(
        there, key=lambda at: abs(windows[at].start + windows[at].end - start - end), default=None
    )


def _wrong(
    windows: Sequence[TextWindow],
    right: TextWindow,
    passage: Span,
    scores: torch.Tensor,
    rng: StableRandom,
) -> list[int] | None:
    """Windows that overlap neither each other nor the answering one nor its passage; None if there
    are too few."""
    taken, found = [(right.start, right.end), passage], list[int]()

    def take(order: Sequence[int], count: int) -> None:
        for at in order:
            if len(found) == count:
                return
            start, end = windows[at].start, windows[at].end
            if all(end <= low or high <= start for low, high in taken):
                taken.append((start, end))
                found.append(at)

    take(scores.argsort(descending=True, stable=True).tolist(), HARD)
    take(rng.some(range(len(windows)), len(windows)), HARD + DRAWN)
    return found if len(found) == HARD + DRAWN else None


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
