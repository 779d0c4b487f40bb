"""How often the questions of a text that was not trained on find their passages, beside BM25.

All answered questions against all passages that have questions. Equal scores count as in a random
order, so that a score without any word of the question finds nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from finder_texts import FinderText, TokenQuestion
from passage_scores import crop_keys, late_interaction
from torch import Tensor

from esa_cli.qa.finding.finder import TokenEncoder
from esa_cli.system.text import Bm25Index, find_content_words

REWORDED = "reworded"
GROUP = 16
"""Passages that are encoded, and questions that are scored, together."""


@dataclass(frozen=True)
class PassageRanks:
    """Shares of questions, 0 to 1, whose passage is the first, among the best 3 and 8."""

    questions: int
    first: float
    among_3: float
    among_8: float

    @classmethod
    def of(cls, ranks: Sequence[float]) -> PassageRanks | None:
        """None without questions."""
        if not ranks:
            return None
        shares = [sum(rank <= most for rank in ranks) / len(ranks) for most in (1, 3, 8)]
        return cls(len(ranks), *shares)


@dataclass(frozen=True)
class FinderScores:
    """Of one text; `by`: finder or BM25."""

    text: str
    by: str
    passages: int
    all: PassageRanks | None
    reworded: PassageRanks | None


def score_finder(
    text: FinderText, encoder: TokenEncoder, progress: Callable[[int, int], None] | None = None
) -> list[FinderScores]:
    """Scores of the finder and of BM25.

    Args:
        progress: called with passages and questions done, and those in all.
    """
    asked = [
        (one, at)
        for at, passage in enumerate(text.passages)
        for one in passage.questions
        if one.answer
    ]
    questions = [one for one, _ in asked]
    right = torch.tensor([at for _, at in asked], dtype=torch.long)
    scores = {
        "finder": encoder_scores(text, encoder, questions, progress or (lambda done, total: None)),
        "BM25": lexical_scores(text, questions),
    }
    return [_tally(text, by, questions, ranks(rows, right)) for by, rows in scores.items()]


@torch.inference_mode()
def encoder_scores(
    text: FinderText,
    encoder: TokenEncoder,
    questions: Sequence[TokenQuestion],
    progress: Callable[[int, int], None],
) -> Tensor:
    """The finder's scores (questions, passages), on the processor."""
    crops = [text.whole(passage) for passage in text.passages]
    total, keys = len(crops) + len(questions), []
    for at in range(0, len(crops), GROUP):
        keys.append(crop_keys(encoder, crops[at : at + GROUP]))
        progress(min(at + GROUP, len(crops)), total)
    rows = [torch.zeros(0, len(crops))]
    for at in range(0, len(questions), GROUP):
        group = [one.text for one in questions[at : at + GROUP]]
        queries, weights = encoder.encode_questions(group)
        scores = [late_interaction(queries, weights, *some) for some in keys]
        rows.append(torch.cat(scores, 1).cpu())
        progress(len(crops) + at + len(group), total)
    return torch.cat(rows)


def lexical_scores(text: FinderText, questions: Sequence[TokenQuestion]) -> Tensor:
    """BM25 of each passage for each question's words, (questions, passages)."""
    vocabulary: dict[str, int] = {}
    words = [
        [
            vocabulary.setdefault(word, len(vocabulary))
            for word in find_content_words(text.text[slice(*passage.characters)])
        ]
        for passage in text.passages
    ]
    bm25 = Bm25Index.from_word_numbers(words, len(vocabulary))
    rows = [torch.zeros(0, len(words))]
    for one in questions:
        asked = [vocabulary[word] for word in find_content_words(one.text) if word in vocabulary]
        rows.append(bm25.compute_scores(asked)[None])
    return torch.cat(rows)


def ranks(scores: Tensor, right: Tensor) -> list[float]:
    """The rank, from 1, of each question's passage `right` (questions,) by `scores` (questions,
    passages); the mean one among equal scores."""
    own = scores.gather(1, right[:, None])
    found: list[float] = (1 + (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2).tolist()
    return found


def _tally(
    text: FinderText, by: str, questions: Sequence[TokenQuestion], found: Sequence[float]
) -> FinderScores:
    reworded = [rank for rank, one in zip(found, questions, strict=True) if one.kind == REWORDED]
    return FinderScores(
        text.name, by, len(text.passages), PassageRanks.of(found), PassageRanks.of(reworded)
    )
