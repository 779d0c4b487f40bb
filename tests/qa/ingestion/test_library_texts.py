"""Files in a catalogue: read once while they are as they were, each text once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from esa_cli.documents.document import Document, read_document
from esa_cli.qa.ingestion import library_texts
from esa_cli.qa.ingestion.library_texts import FileChanges, index_files
from esa_cli.storage.library import Catalogue, Library
from esa_cli.storage.library import catalogue as catalogue_file
from esa_cli.system import files


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Time stamps of files that changed a moment ago are trusted."""
    monkeypatch.setattr(files, "SETTLED_NS", -(10**18))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    with Library(tmp_path / "library").open_catalogue() as made:
        yield made


def write(name: str, text: str) -> str:
    """A file, with another time than what it was before."""
    path = Path(name)
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text, "utf-8")
    os.utime(path, ns=(before + 10**9, before + 10**9))
    return name


def update(catalogue: Catalogue, *names: str, folder: str = "") -> FileChanges:
    return index_files(catalogue, names, folder=folder)


def test_unchanged_files_are_not_read_again(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write("a.txt", "one harp"), write("b.txt", "one loom"), write("c.txt", "one harp")
    first = update(catalogue, *names)
    assert [Path(one.path).name for one in first.added] == [*names]
    assert (first.read, first.changed, first.refused_records) == (3, [], [])
    assert len(catalogue.texts.list_digests()) == 2, "a copy is stored once"

    def fails(path: str) -> Document:
        pytest.fail(f"{path} is read")

    monkeypatch.setattr(library_texts, "read_document", fails)
    again = index_files(catalogue, names)
    assert (again.records, again.read, again.added) == (first.records, 0, [])


def test_other_readers_read_unchanged_files_again(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write("a.txt", "one harp"), write("b.txt", "one loom")
    update(catalogue, *names)
    monkeypatch.setattr(files, "TEXT_VERSION", files.TEXT_VERSION + 1)
    again = update(catalogue, *names)
    assert (again.read, again.added, again.changed) == (2, [], [])
    assert update(catalogue, *names).read == 0


def test_words_of_another_version_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path / "library")
    names = write("a.txt", "one harp"), write("b.txt", "one loom")
    with library.open_catalogue() as catalogue:
        first = update(catalogue, *names).records
    with library.open_catalogue() as catalogue:
        assert len(catalogue.texts.list_digests()) == 2
    monkeypatch.setattr(catalogue_file, "compute_digest_of_word_rules", lambda: "f" * 64)
    for _ in range(2):
        with library.open_catalogue() as catalogue:
            assert len(catalogue.texts.list_digests()) == 0
            assert not catalogue.texts.rank_texts("harp")
            assert catalogue.find_record(first[0].path) == first[0]
    with library.open_catalogue() as catalogue:
        changes = update(catalogue, *names)
        assert (changes.records, changes.changed, changes.added) == (first, [], [])
    with library.open_catalogue() as catalogue:
        assert [*catalogue.texts.rank_texts("harp")] == [first[0].digest]


def test_changed_files_are_read_again_and_their_former_words_go(catalogue: Catalogue) -> None:
    write("a.txt", "one harp")
    write("b.txt", "one loom")
    update(catalogue, "a.txt", "b.txt")
    write("a.txt", "an anvil")
    write("b.txt", "one loom")  # its time only
    changes = update(catalogue, "a.txt", "b.txt")
    assert changes.read == 2
    assert [Path(one.path).name for one in changes.changed] == ["a.txt"]
    assert not catalogue.texts.rank_texts("harp")
    [ranked] = catalogue.texts.rank_texts("anvil")
    assert ranked == changes.records[0].digest


def test_a_file_that_cannot_be_read_does_not_stop_the_others(catalogue: Catalogue) -> None:
    Path("b.txt").write_bytes(b"\0\1\2" * 99)
    changes = update(catalogue, write("a.txt", "one harp"), "b.txt", "none.txt")
    assert [Path(one.path).name for one in changes.readable_records] == ["a.txt"]
    binary, missing = changes.refused_records
    assert "binary" in binary.why
    assert "there is no document" in missing.why
    again = update(catalogue, "a.txt", "b.txt", "none.txt")
    assert again.read == 1, "what is missing is looked for again"
    assert again.refused_records == changes.refused_records
    write("b.txt", "now a text")
    assert update(catalogue, "b.txt").refused_records == []


def test_an_update_that_is_stopped_continues(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [write(f"{at}.txt", f"harp {at}") for at in range(9)]
    monkeypatch.setattr("esa_cli.storage.library.catalogue.MAX_WRITES", 2)
    opened = list[str]()

    def read(path: str) -> Document:
        opened.append(path)
        if len(opened) == 6:
            raise KeyboardInterrupt
        return read_document(path)

    monkeypatch.setattr(library_texts, "read_document", read)
    with pytest.raises(KeyboardInterrupt):
        index_files(catalogue, names)
    monkeypatch.setattr(library_texts, "read_document", read_document)
    assert len(catalogue.texts.list_digests()) == 4
    shown = list[tuple[int, int]]()
    rest = index_files(catalogue, names, lambda *done: shown.append(done))
    assert rest.read == 5
    assert shown[-1] == (9, 9)
    assert len(catalogue.texts.rank_texts("harp")) == 9
