"""Books that are asked together."""

from __future__ import annotations

from dataclasses import replace

import torch

from esa_cli.documents.document import Document
from esa_cli.qa.books import Book, place_books


def test_a_document_is_copied_only_for_another_name() -> None:
    document = Document("a.txt", "One.\nTwo.", "here/a.txt", "utf-8", 9)
    other = replace(document, source="there/a.txt", text="Three.")
    books = [Book(one, None, torch.zeros(2, 2)) for one in (document, other)]
    [alone] = place_books(books[:1])
    assert alone.document is document, "the places of its lines are found once"
    both = place_books(books)
    assert [one.document.name for one in both] == ["here/a.txt", "there/a.txt"]
    assert [one.rows for one in both] == [range(2), range(2, 4)]
