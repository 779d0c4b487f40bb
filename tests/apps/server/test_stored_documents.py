"""Documents of the library that requests may name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_asker import FakeAsker, fake_book

from esa_cli.apps.server.allowed_documents import AllowedDocuments, StoredDocuments, list_documents
from esa_cli.apps.server.wire import ApiError
from esa_cli.apps.server.worker import Event, Job
from esa_cli.errors import LibraryError
from esa_cli.storage.library import Catalogue, Entry, Library
from esa_cli.storage.library.catalogue import DividedEntries
from esa_cli.system.text import text_digest

TEXTS = {"a" * 20: "The harp stands in hall 1.", "b" * 20: "The anvil.", "c" * 20: "The anvil."}


KNOWN = {"source": "/home/me/x.pdf", "bytes": 9, "missing": ()}
ENTRIES = [
    Entry(
        key, text_sha256=text_digest(text), marks=((0, 7, "Halls"),), created=float(at),
        provenance={**KNOWN, "name": f"{key[0]}.pdf"},
    )
    for at, (key, text) in enumerate(TEXTS.items())
]  # fmt: skip


class FewTexts(Library):
    """A library of three entries, two of one text, and a damaged one."""

    exists = True

    @contextmanager
    def search_catalogue(self, copy: bool = False) -> Iterator[Catalogue]:
        with self.catalogue(keep=False) as catalogue:
            entries = [Entry("d" * 20, damage="cut"), *reversed(ENTRIES)]
            catalogue.entries = lambda: DividedEntries(entries, [])  # type: ignore[method-assign]
            yield catalogue

    def text(self, entry: Entry) -> str:
        return TEXTS[entry.key]


@pytest.fixture
def stored(tmp_path: Path) -> StoredDocuments:
    return StoredDocuments(FewTexts(tmp_path))


A, B = f"library:{'a' * 12}", f"library:{'b' * 12}"


def test_they_are_listed_once_and_opened_by_their_ids(stored: StoredDocuments) -> None:
    asker = FakeAsker()
    documents = AllowedDocuments(asker, [fake_book("alpha")], [], stored=stored)
    found = list_documents(documents)["data"]
    assert [(one["id"], one["name"], one["kind"]) for one in found[1:]] == [
        (A, "a.pdf", "stored"), (B, "b.pdf", "stored"),
    ]  # fmt: skip
    opened = documents.open(documents.find([B, "esa:1", A, B]))
    assert [(one.id, one.book) for one in opened] == [
        (B, "The anvil."), ("esa:1", "alpha"), (A, "The harp stands in hall 1."),
    ]  # fmt: skip
    documents.open(documents.find([A]))
    assert len(asker.ingested) == 2, "each is opened once"
    assert documents.document(A).place(5).page == 7


def test_what_is_not_there(stored: StoredDocuments, tmp_path: Path) -> None:
    documents = AllowedDocuments(FakeAsker(), [], [], stored=stored)
    for name in ("library:dddddddddddd", "library:", "library:../x"):
        with pytest.raises(ApiError) as caught:
            documents.document(name)
        assert caught.value.status == 404
    with pytest.raises(ApiError) as caught:
        AllowedDocuments(FakeAsker(), [], []).find([A])
    assert caught.value.status == 403
    assert StoredDocuments(Library(tmp_path / "none")).texts() == {}


def test_a_question_about_what_is_not_there_leaves_no_traceback(
    stored: StoredDocuments, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = AllowedDocuments(FakeAsker(), [], [], stored=stored)
    told: list[Event] = []
    Job(lambda job: documents.open(documents.find(["library:none"])), told.append).run()
    kind, error = told[-1]
    assert (kind, error.status) == ("error", 404)
    assert capsys.readouterr().err == ""


def test_a_library_that_cannot_be_used(
    stored: StoredDocuments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(self: Any) -> Any:
        raise LibraryError(f"{tmp_path} may not be read")

    monkeypatch.setattr(FewTexts, "search_catalogue", refuse)
    documents = AllowedDocuments(FakeAsker(), [], [], stored=stored)
    assert list_documents(documents)["left_out"] == ["the library cannot be used"]
    with pytest.raises(LibraryError):
        documents.document(A)
