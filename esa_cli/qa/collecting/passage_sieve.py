"""Chooses the passages that are read again for a question about the whole: all of a few pages; of
more text all whose score in finding is high, and all that are nearly as good as the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from esa_cli.errors import UsageError
from esa_cli.qa.books import Book
from esa_cli.qa.finding.passage_finder import standardised
from esa_cli.qa.finding.passages_apart import FoundPassage
from esa_cli.qa.passage_search import PassageSearch

WHOLE = 200
"""Windows up to which all are read again: half a minute on an idle core."""
SIEVE = 2.0
"""Least score of a passage that is read again where its document has reduced keys: one window in
twenty-five has it. Of the 71 places of four development questions about books 58 are in one, 64 in
one with 1.5 or more, where twice as many are read and wrong ones are added, so that F1 drops."""
NEAR = 0.8
"""Share of the best window's late interaction from which a passage is read again, too: where a
fifth of a text fits equally well, none of it is two standard deviations above the mean."""
FIT = (6.0, 0.05)
"""How well a passage fits is its late interaction less 0.05, times 6, beside log-odds. Chosen
on the development questions, about whole books and about pieces of them of 130 windows."""


@dataclass(frozen=True)
class ChosenPassages:
    """Passages to read again, in the order of the documents, of `total` in all. They overlap, so
    that what one cuts in two is whole in another. fits: how well each fits the question, in
    log-odds; no other passage has a bearing on it."""

    passages: Sequence[FoundPassage]
    fits: Sequence[float]
    total: int


@torch.inference_mode()
def chosen_passages(
    search: PassageSearch,
    question: str,
    books: Sequence[Book],
    minimum: float | None = None,
    every: bool = False,
) -> ChosenPassages:
    """The passages to read again.

    Args:
        minimum: least score, in standard deviations over all passages; None: all passages where
            there are at most `WHOLE`; of more those with `SIEVE`, those with `NEAR` of the best
            late interaction, and all of documents without reduced keys, as many that fit share no
            word with the question. every: all passages.

    Raises:
        UsageError: there is no book.
    """
    if not books:
        raise UsageError("no document to collect from", "name one")
    finder, reduced = search.finder(books), search.reduced(question, books)
    found, index = finder.scores(question, reduced=reduced), finder.index
    scores = standardised(found.total)
    late = torch.full_like(scores, torch.nan) if reduced is None else finder.late(reduced)[0]
    unread, (factor, least) = late.isnan(), FIT
    fits = torch.where(unread, found.words.clamp(min=0), factor * (late - least))
    if minimum is not None:
        wanted = scores >= minimum
    else:
        best = late.nan_to_num(-1.0).max() if len(index) else 0.0
        wanted = unread | (scores >= SIEVE) | (late >= NEAR * best)
    if every or (minimum is None and len(index) <= WHOLE):
        wanted = torch.ones_like(unread)
    chosen = [
        FoundPassage(document, window.start, window.end, score)
        for window, document, score, read in zip(
            index.windows, index.documents, scores.tolist(), wanted.tolist(), strict=True
        )
        if read
    ]
    return ChosenPassages(chosen, fits[wanted].tolist(), len(index))
