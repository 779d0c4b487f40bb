"""Short contexts for real questions: the window of a text that answers, among wrong ones.

Windows are those of the finder (`sentence_windows`). Of the wrong ones, half are those that a
question's words (BM25) like best, and half are drawn at random.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from esa_cli.errors import UsageError
from esa_cli.evaluation.calibration.question_pairs import AnswerPair, Span, TrainingText
from esa_cli.evaluation.tasks.stable_random import StableRandom
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.finding.lexical_index import LexicalIndex
from esa_cli.qa.finding.passage_finder import token_bounds
from esa_cli.qa.finding.sentence_windows import TextWindow
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
        there,
        key=lambda at: abs(windows[at].start + windows[at].end - start - end),
        default=None,
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
