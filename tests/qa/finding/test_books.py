"""The books of a question: each text once, names that no other has, places of their tokens."""

from __future__ import annotations

import random
from typing import Any

import torch

from esa_cli.documents.document import Document
from esa_cli.qa.finding.passage_finder import Book, add_token_ranges, drop_duplicate_books


def book(name: str, source: str, tokens: int = 3, text: str = "", entry: Any = None) -> Book:
    document = Document(name, text or source + str(tokens), source, "utf-8", 1)
    return Book(document, None, torch.zeros(tokens, 2), entry)


class Entry:
    id = "ab12"


def test_names_tell_the_books_apart() -> None:
    named = [
        book("a.txt", "x/a.txt", 1), book("b.txt", "x/b.txt"), book("a.txt", "y/a.txt"),
        book("a.txt", "x/a.txt", 2, entry=Entry()),
    ]  # fmt: skip
    names = [one.document.name for one in add_token_ranges(named)]
    assert names == ["x/a.txt (1)", "b.txt", "y/a.txt", "x/a.txt (ab12)"]
    assert add_token_ranges(named)[1].document is named[1].document, "it knows its lines"


def test_tokens_follow_each_other_in_the_order_of_the_books() -> None:
    rng = random.Random(5)
    sizes = [rng.randrange(6) for _ in range(9)]
    placed = add_token_ranges([book(f"{n}", f"{n}", size) for n, size in enumerate(sizes)])
    for n, one in enumerate(placed):
        assert one.rows == range(sum(sizes[:n]), sum(sizes[: n + 1]))
        assert (one.tokens, one.read) == (sizes[n], False)


def test_each_text_comes_once_where_it_came_first() -> None:
    texts = ["x", "y", "x", "z", "y"]
    books = [book(str(n), str(n), text=text) for n, text in enumerate(texts)]
    assert [one.document.name for one in drop_duplicate_books(books)] == ["0", "1", "3"]
    assert all(one is books[int(one.document.name)] for one in drop_duplicate_books(books))
