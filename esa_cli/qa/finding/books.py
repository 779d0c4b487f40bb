"""Books are documents with their tokens, and with what a model has computed from these tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from esa_cli.documents.document import Document
from esa_cli.models.tokenization.tokenizer import tokenise
from esa_cli.qa.finding.finder import ReducedKeys
from esa_cli.qa.finding.words import SentenceWords
from esa_cli.storage.library import Entry
from esa_cli.storage.memory_store import PrefilledDocument, find_text_ranges


@dataclass(frozen=True, eq=False)
class TokenisedDocument:
    """A document with its tokens; token i has the characters `offsets[i]`, [start, end)."""

    document: Document
    ids: Sequence[int]
    offsets: Tensor

    @classmethod
    def tokenise(cls, document: Document, tokenizer: Any) -> TokenisedDocument:
        """Tokenises a document. Raises DocumentError: see `windowed_tokenizer`."""
        ids, offsets = tokenise(tokenizer, document.text)
        return cls(document, ids, torch.from_numpy(offsets))


@dataclass(frozen=True)
class Book:
    """A document that questions can be asked about.

    Args:
        prefilled: its KV cache, for answers. index: its reduced keys (n, R), for finding.
        spans: (n, 2) characters [start, end) of each token of its text.
        entry: its place in the library. words: of its sentences. Both if they are stored.
        read_s: seconds that the model took to read the document; 0: it was stored.
        rows: the places of its tokens among those of all books of a question."""

    document: Document
    prefilled: PrefilledDocument | None
    spans: Tensor
    entry: Entry | None = None
    read_s: float = 0.0
    index: ReducedKeys | None = None
    words: SentenceWords | None = None
    rows: range = range(0)

    @property
    def read(self) -> bool:
        """Whether the document has a KV cache or a token index."""
        return self.prefilled is not None or self.index is not None

    @property
    def tokens(self) -> int:
        """The number of document tokens; with a KV cache, the prompt before it is included."""
        return len(self.prefilled.ids) if self.prefilled else len(self.spans)


def distinct(books: Sequence[Book]) -> list[Book]:
    """Drops books with a duplicate text, which would take selected tokens from other texts."""
    by_text: dict[str, Book] = {}
    for book in books:
        by_text.setdefault(book.document.text, book)
    return list(by_text.values())


def place_books(books: Sequence[Book]) -> list[Book]:
    """Returns the books of a question with unique names, and with the positions of their tokens."""
    prefilled = [book.prefilled for book in books if book.prefilled]
    if len(prefilled) == len(books):
        rows = find_text_ranges(prefilled)
    else:  # their texts, one after the other
        ends = list(accumulate(len(book.spans) for book in books))
        rows = [range(end - len(book.spans), end) for book, end in zip(books, ends, strict=True)]
    names = [book.document.name for book in books]
    sources = [
        book.document.source if names.count(name) > 1 else name
        for book, name in zip(books, names, strict=True)
    ]
    placed = []
    for number, (book, name, at) in enumerate(zip(books, sources, rows, strict=True), 1):
        if sources.count(name) > 1:
            name = f"{name} ({book.entry.id if book.entry else number})"
        document = book.document  # it knows the places of its lines, so it is kept if it can be
        if document.name != name:
            document = replace(document, name=name)
        placed.append(replace(book, document=document, rows=at))
    return placed
