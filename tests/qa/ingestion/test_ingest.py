"""Books and the library they are kept in: which rows serve, who removes what meanwhile, and what is
written down of a reading. Tiny random model."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from esa_cli import Document, Esa
from esa_cli.errors import LibraryError
from esa_cli.qa.ingestion import row_ingest as book
from esa_cli.qa.presets import preset
from esa_cli.storage.library import Entry, Library
from esa_cli.version import __version__

TEXT = "The gate opens at nine, and the keeper has the only key. " * 25


def note(text: str = TEXT, name: str = "note.txt") -> Document:
    return Document(name, text, f"/notes/{name}", "utf-8", len(text), missing=("a picture",))


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


def esa(loaded: Any, library: Library, **options: Any) -> Esa:
    return Esa(loaded, preset.load("tiny-random", ["window.chunk=128"]), library=library, **options)


def entry_of(one: Esa, document: Document) -> Entry:
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
        assert book.entry is not None
        assert book.entry.layout.kind == "native"
        assert two.ingest(note()).read_s == 0
        assert {entry.key for entry in library.entries()} == {eight.key, book.entry.key}
        library.remove(eight)
    with esa(loaded, library) as three:
        found = three.find(note())
        assert found is not None, "every bit serves who would take fewer"
        assert found.entry is not None
        assert found.entry.key == book.entry.key


def test_a_stored_document_keeps_its_layer_states_between_questions(
    loaded: Any, library: Library
) -> None:
    """Loki would read and project all keys again whenever its document is opened again."""
    loki = preset.load("tiny-random", ["selector={name: loki, fit_tokens: 64}"])
    with Esa(loaded, loki, library=library) as one:
        books = [one.ingest(note()), one.ingest(replace(note(), text=TEXT + "More. "))]
        one.ask("When?", books[:1])
        [state] = books[0].prefilled.layer_states(0).values()
        for at in (1, 0):
            one.ask("When?", books[at : at + 1])
        [kept] = books[0].prefilled.layer_states(0).values()
        assert kept is state


def test_a_library_knows_what_read_a_document(loaded: Any, library: Library) -> None:
    with esa(loaded, library, rows="native") as one:
        entry = entry_of(one, note())
        assert entry.provenance == {
            "name": "note.txt", "source": "/notes/note.txt", "path": "", "bytes": len(TEXT),
            "missing": ["a picture"], "model": "random:llama", "preset": "tiny-random",
            "esa": __version__, "rows": "native",
        }  # fmt: skip
        assert one.stored(entry).document == note()
    named = preset.load("tiny-random", ["window.chunk=128", "description=x"])
    other = named.model_copy(update={"name": "mine"})
    with Esa(loaded, other, library=library, rows="native") as two:
        assert two.ingest(note()).read_s == 0, "what it was called shapes nothing"


@pytest.mark.parametrize("gone", ["manifest", "text", "segment"])
def test_a_document_that_is_removed_while_it_is_opened_is_read_anew(
    loaded: Any, library: Library, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    with esa(loaded, library) as one:
        entry, open_ = entry_of(one, note()), library.open

        def removed_just_now(found: Entry) -> Any:
            monkeypatch.undo()
            library.remove(found)
            return open_(found)

        monkeypatch.setattr(library, "open", removed_just_now)
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
        find, calls = library.find, []

        def not_yet(key: str) -> Entry | None:
            calls.append(key)
            if len(calls) <= 2:  # as int8, as native
                return None
            if len(calls) == 3:  # with its lock held: it has come
                found = find(key)
                library.remove(entry)
                return found
            return find(key)

        monkeypatch.setattr(library, "find", not_yet)
        book = one.ingest(note())
    assert len(calls) > 4
    assert book.read_s > 0
    assert book.entry is not None
    assert library.verify(book.entry) == []


CPU, META = torch.device("cpu"), torch.device("meta")


def mixed(loaded: Any) -> Any:
    """Layers in bfloat16 behind an embedding in float32."""
    model = copy.deepcopy(loaded.model).bfloat16()
    model.model.embed_tokens.float()
    model.model.embed_tokens.register_forward_hook(lambda module, given, out: out.bfloat16())
    assert model.dtype == torch.float32
    return model


def test_a_model_of_two_types_answers_as_without_a_library(loaded: Any, library: Library) -> None:
    host = replace(loaded, model=mixed(loaded))
    with Esa(host, preset.load("tiny-random", ["window.chunk=128"])) as plain:
        want = plain.ask("When?", [plain.ingest(note())], max_new_tokens=6).text
    with esa(host, library, rows="native") as one:
        found = one.ingest(note())
        assert found.entry is not None
        assert found.entry.layout.dtype == "bfloat16"
        assert one.ask("When?", [found], max_new_tokens=6).text == want
        assert one.ingest(note()).read_s == 0
    with esa(loaded, library, rows="native") as other:
        assert other.find(note()) is None, "it is another model"


def test_each_layers_rows_are_where_the_layer_is(
    loaded: Any, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "layer_devices", lambda model: [CPU, META])
    write, given = library.write, list[Any]()

    def noted(*args: Any, **options: Any) -> Any:
        given.append(args[5])
        return write(*args[:5])  # what is read here is all on the processor

    monkeypatch.setattr(library, "write", noted)
    with esa(loaded, library) as one:
        made = one.ingest(note())
        assert given == [[CPU, META]]
        for found in (made, one.find(note())):
            assert found is not None
            assert [store.span(0, 2)[0].device for store in found.prefilled.stores] == [CPU, META]
