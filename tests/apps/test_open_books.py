"""Which documents are closed first where memory is short, and what counts as unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_asker import FakeAsker

from esa_cli.apps.open_books import OpenBooks
from esa_cli.errors import ResourceError


class FullAsker(FakeAsker):
    """Has no memory at its fourth document, until one was closed."""

    def ingest(self, source: Any, progress: Any = None) -> Any:
        text = super().ingest(source, progress)
        if len(self.ingested) == 4:
            raise ResourceError("no room")
        return text


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for name in "abcd":
        (tmp_path / name).write_text(f"text {name}", "utf-8")
    return [str(tmp_path / name) for name in "abcd"]


def names(asker: FakeAsker) -> str:
    return "".join(Path(source).name for source in asker.ingested)


def test_the_longest_unused_document_is_closed_first(paths: list[str]) -> None:
    asker = FullAsker()
    books = OpenBooks(asker)
    for path in (*paths[:3], paths[0], paths[3], paths[0], paths[2], paths[1]):
        books.need([path])
        books.book(books.read(path))
    assert names(asker) == "abcddb"


def test_a_document_without_a_book_is_read_again(paths: list[str]) -> None:
    """A book that was not finished leaves nothing in memory."""
    books = OpenBooks(FakeAsker())
    books.need(paths[:1])
    first = books.read(paths[0])
    assert books.read(paths[0]) is first
    books.need(())
    assert books.read(paths[0]) is not first


def test_a_document_that_no_later_question_needs_is_closed(paths: list[str]) -> None:
    asker = FakeAsker()
    books = OpenBooks(asker)
    a, b, c, _ = paths
    for path, later in ((a, [b, c, a]), (b, [c, a]), (c, [a]), (a, []), (b, [])):
        books.need([path], later)
        books.book(books.read(path))
    assert names(asker) == "abcb"
