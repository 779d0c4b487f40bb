"""Books and the library they are kept in: which rows serve, who removes what meanwhile, and what is
written down of a reading. Tiny random model."""

from __future__ import annotations

from typing import Any

import pytest

from esa_cli import Document, Esa
from esa_cli.errors import LibraryError
from esa_cli.qa.presets.preset import load_preset
from esa_cli.storage.library import Library, LibraryEntry

TEXT = "The gate opens at nine, and the keeper has the only key. " * 25


def note(text: str = TEXT, name: str = "note.txt") -> Document:
    return Document(name, text, f"/notes/{name}", "utf-8", len(text), missing=("a picture",))


def esa(loaded: Any, library: Library, **options: Any) -> Esa:
    return Esa(loaded, load_preset("tiny-random", ["window.chunk=128"]), library=library, **options)


def entry_of(one: Esa, document: Document) -> LibraryEntry:
    entry = one.ingest(document).entry
    assert entry is not None
    return entry


def test_who_wants_every_bit_gets_no_rows_of_eight_bits(loaded: Any, library: Library) -> None:
    with esa(loaded, library) as one:
        eight = entry_of(one, note())
    with esa(loaded, library, rows="native") as two:
        assert two.find(note()) is None
        book = two.ingest(note())
        assert book.read_s > 0
        assert book.entry.layout.kind == "native"
        assert two.ingest(note()).read_s == 0
        assert {entry.key for entry in library.entries()} == {eight.key, book.entry.key}
        library.remove(eight)
    with esa(loaded, library) as three:
        found = three.find(note())
        assert found is not None, "every bit serves who would take fewer"
        assert found.entry.key == book.entry.key


def test_a_library_knows_what_read_a_document(loaded: Any, library: Library) -> None:
    with esa(loaded, library, rows="native") as one:
        entry = entry_of(one, note())
        assert (entry.provenance["model"], entry.provenance["rows"]) == ("random:llama", "native")
        assert one.stored(entry).document == note()
    named = load_preset("tiny-random", ["window.chunk=128", "description=x"])
    other = named.model_copy(update={"name": "mine"})
    with Esa(loaded, other, library=library, rows="native") as two:
        assert two.ingest(note()).read_s == 0, "what it was called shapes nothing"


@pytest.mark.parametrize("gone", ["manifest", "text", "segment"])
def test_a_document_that_is_removed_while_it_is_opened_is_read_anew(
    loaded: Any, library: Library, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    with esa(loaded, library) as one:
        entry, open_ = entry_of(one, note()), library.open_document

        def removed_just_now(found: LibraryEntry) -> Any:
            monkeypatch.undo()
            library.remove(found)
            return open_(found)

        monkeypatch.setattr(library, "open_document", removed_just_now)
        assert one.find(note()) is None
        assert library.entries() == []
        again = one.ingest(note())
        assert again.read_s > 0
        # And where a file of a document that is there has gone, that is said.
        kept = library.root / "documents"
        path = {
            "manifest": kept / f"{entry.key}.doc",
            "text": kept / f"{entry.key}.text",
            "segment": library.root / "segments" / f"{entry.segments[0]}.seg",
        }[gone]
        path.unlink()
        if gone == "manifest":
            assert one.find(note()) is None
        else:
            with pytest.raises(LibraryError, match=f"{path.name} is missing"):
                one.find(note())


def test_a_document_that_another_process_read_and_a_third_removed_is_read(
    loaded: Any, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while this one waits, and goes before this one opens it."""
    with esa(loaded, library) as other:
        entry = entry_of(other, note())
    with esa(loaded, library) as one:
        find, calls = library.find_entry, []

        def not_yet(key: str) -> LibraryEntry | None:
            calls.append(key)
            if len(calls) <= 2:  # as int8, as native
                return None
            if len(calls) == 3:  # with its lock held: it has come
                found = find(key)
                library.remove(entry)
                return found
            return find(key)

        monkeypatch.setattr(library, "find_entry", not_yet)
        book = one.ingest(note())
    assert len(calls) > 4
    assert book.read_s > 0
    assert book.entry is not None
    assert library.verify(book.entry) == []
