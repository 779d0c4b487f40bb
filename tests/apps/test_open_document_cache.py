"""Which documents are closed first where memory is short, and what counts as unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_asker import FakeAsker

from esa_cli.apps import open_document_cache
from esa_cli.apps.open_document_cache import OpenDocumentCache
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
    books = OpenDocumentCache(asker)
    for path in (*paths[:3], paths[0], paths[3], paths[0], paths[2], paths[1]):
        books.needed = [path]
        books.open_document(books.read_document(path))
    assert names(asker) == "abcddb"


def test_a_pinned_book_stays_until_its_file_changes(
    paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_document_cache, "MAX_OPEN", 1)
    asker = FakeAsker()
    books = OpenDocumentCache(asker)
    pinned = asker.open(paths[0])
    books.keep_document_open(pinned)
    for path in (*paths, paths[0]):
        book = books.open_document(books.read_document(path))
    assert book is pinned
    assert names(asker) == "bcd"
    Path(paths[0]).write_text("another text", "utf-8")
    assert books.open_document(books.read_document(paths[0])) == "another text"
