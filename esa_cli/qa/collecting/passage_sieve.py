"""Chooses the passages that are read again for a question about the whole: all whose score in
finding is high enough, never a fixed number of the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from esa_cli.errors import UsageError
from esa_cli.qa.books import PlacedBook
from esa_cli.qa.finding.passage_finder import standardised
from esa_cli.qa.finding.passages_apart import FoundPassage
from esa_cli.qa.passage_search import PassageSearch

SIEVE = 2.0
"""Least score of a passage that is read again where its document has reduced keys: one window in
twenty-five has it. Of the 71 places of four development questions about books 58 are in one, 64 in
one with 1.5 or more, where twice as many are read and wrong ones are added, so that F1 drops."""


@dataclass(frozen=True)
class ChosenPassages:
    """Passages to read again, in the order of the documents, of `total` in all. They overlap, so
    that what one cuts in two is whole in another."""

    passages: Sequence[FoundPassage]
    total: int


@torch.inference_mode()
def chosen_passages(
    search: PassageSearch,
    question: str,
    books: Sequence[PlacedBook],
    minimum: float | None = None,
    every: bool = False,
) -> ChosenPassages:
    """The passages to read again.

    Args:
        minimum: least score, in standard deviations over all passages; None: `SIEVE`, and all
            passages of documents without reduced keys, as many that fit share no word with the
            question. every: all passages.

    Raises:
        UsageError: there is no book.
    """
    if not books:
        raise UsageError("no document to collect from", "name one")
    finder = search.finder(books)
    reduced = search.reduced(question, books)
    scores = standardised(finder.scores(question, reduced=reduced).total)
    index = finder.index
    unread = [minimum is None and (reduced is None or book.index is None) for book in books]
    bound = SIEVE if minimum is None else minimum
    chosen = [
        FoundPassage(document, window.start, window.end, score)
        for window, document, score in zip(
            index.windows, index.documents, scores.tolist(), strict=True
        )
        if every or unread[document] or score >= bound
    ]
    return ChosenPassages(chosen, len(index))
