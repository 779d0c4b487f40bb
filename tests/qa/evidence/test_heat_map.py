"""Heat maps of the last answer: shades, and the documents' names."""

from __future__ import annotations

import torch

from esa_cli.documents.document import Document
from esa_cli.qa.books import Book, place_books
from esa_cli.qa.evidence.evidence import heat_maps, shaded_spans


def book(name: str, text: str) -> Book:
    """A token for each character."""
    at = torch.arange(len(text))
    return Book(Document(name, text, name, "utf-8", 1), None, torch.stack([at, at + 1], 1))


def test_shades_are_of_the_heaviest_token_of_all() -> None:
    books = [book("a.txt", "abcd"), book("b.txt", "efgh"), book("c.txt", "")]
    weights = torch.tensor([0.0, 0.25, 0.25, 0.001, 1.0, 0.0, 0.0, 1 / 64])
    found = heat_maps(place_books(books), weights)
    assert [one.document for one in found] == ["a.txt", "b.txt", "c.txt"]
    assert found[0].spans == ((1, 3, 4),), "tokens of one shade are one span; cold ones none"
    assert found[1].spans == ((0, 1, 8), (3, 4, 1))
    assert found[2].spans == ()


def test_tokens_that_share_a_character_do_not_overlap() -> None:
    spans = torch.tensor([[0, 2], [1, 3], [1, 3]])
    found = shaded_spans(spans, torch.tensor([1.0, 0.25, 1.0]), 1.0)
    assert [tuple(one) for one in found] == [(0, 2, 8), (2, 3, 4)]
    assert shaded_spans(spans, torch.zeros(3), 0.0) == []
