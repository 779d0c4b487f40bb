"""Books: documents with their tokens and what a model read of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from esa_cli.documents.document import Document
from esa_cli.models.tokenization.windowed_tokenizer import tokenise
from esa_cli.qa.finding.late_interaction import ReducedKeys
from esa_cli.qa.finding.words import SentenceWords
from esa_cli.storage.library import Entry
from esa_cli.storage.memory_store import PrefilledDocument, text_rows


@dataclass(frozen=True, eq=False)
class TokenisedDocument:
    """A document's tokens, without those of the prompt before it; 12 bytes for each.

    Args:
        ids: of its text; special tokens that it spells out are text.
        offsets: (n, 2) first and last character of each token.
    """

    document: Document
    ids: Sequence[int]
    offsets: Tensor

    @classmethod
    def of(cls, document: Document, tokenizer: Any) -> TokenisedDocument:
        """The document tokenised by a tokenizer of transformers. Raises DocumentError: a part of it
        cannot be divided; see `windowed_tokenizer`."""
        ids, offsets = tokenise(tokenizer, document.text)
        return cls(document, ids, torch.from_numpy(offsets))


@dataclass(frozen=True)
class Book:
    """One document as a model read it, or as it is before that.

    Args:
        document: its text, and where it came from. prefilled: its KV rows; None: it has not been
            read, and can be asked only where answers come from text.
        spans: (n, 2) first and last character of each token of its text.
        entry: where it is in the library, if it is. read_s: seconds of reading; 0: it was found.
        index: its reduced keys (n, R), for finding; None: it has no token index. words: of its
            sentences; None: they are not stored. rows: the cached tokens of its text, where it is
            one of the books of a question; see `place_books`.
    """

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
        """Whether the model has read it: there are its rows or its index."""
        return self.prefilled is not None or self.index is not None

    @property
    def tokens(self) -> int:
        """Its tokens, the prompt's head included if it has been read."""
        return len(self.prefilled.ids) if self.prefilled else len(self.spans)


def distinct(books: Sequence[Book]) -> list[Book]:
    """The books, each text once: a copy would take selected tokens from other texts."""
    out: dict[str, Book] = {}
    for book in books:
        out.setdefault(book.document.text, book)
    return list(out.values())


def place_books(books: Sequence[Book]) -> list[Book]:
    """The books of a question, in its order, as they are concatenated in the cache; each document
    has a name that no other has."""
    prefilled = [book.prefilled for book in books if book.prefilled]
    if len(prefilled) == len(books):
        rows = text_rows(prefilled)
    else:  # their texts, one after the other
        ends = list(accumulate(len(book.spans) for book in books))
        rows = [range(end - len(book.spans), end) for book, end in zip(books, ends, strict=True)]
    placed = []
    for book, name, at in zip(books, _distinct_names(books), rows, strict=True):
        document = book.document  # which knows the places of its lines
        if document.name != name:
            document = replace(document, name=name)
        placed.append(replace(book, document=document, rows=at))
    return placed


def _distinct_names(books: Sequence[Book]) -> list[str]:
    """A name for each book: its own; its source, where another has the same; and where that is the
    same, too (two versions of one file), with its id in the library or its number."""
    names = [book.document.name for book in books]
    sources = [
        book.document.source if names.count(name) > 1 else name
        for book, name in zip(books, names, strict=True)
    ]
    return [
        f"{name} ({book.entry.id if book.entry else at})" if sources.count(name) > 1 else name
        for at, (book, name) in enumerate(zip(books, sources, strict=True), 1)
    ]
