"""`esa ask` of more documents than are opened: the best by their words are. Tiny random model."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from command import TINY, Esa, Result, fail

from esa_cli.documents import document
from esa_cli.storage.library import Library
from esa_cli.storage.library import catalogue as catalogue_file
from esa_cli.system import files

THINGS = ("harp", "anvil", "loom", "kiln", "ferry", "mill")


@pytest.fixture
def run(surroundings: None, esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Esa:
    """`esa` that answers from text, in a folder of six files, with a library of its own."""
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setattr(files, "SETTLED_NS", -(10**18))
    folder = Path("town")
    folder.mkdir()
    for at, thing in enumerate(THINGS):
        text = f"The {thing} of the town has stood there since the year {1200 + at}. " * 20
        (folder / f"{at}.txt").write_text(text, "utf-8")

    def call(*arguments: str, most: int = 2) -> Result:
        text = ("--set", "answer.from=text", "--set", f"answer.documents={most}")
        options = (*TINY, *text) if arguments[0] in ("ask", "ingest") else ()
        return esa(arguments[0], *options, *arguments[1:])

    return call


def names(result: Result) -> list[str]:
    return [one["name"] for one in json.loads(result.out)["documents"]]


def test_the_best_files_of_a_folder_are_asked(run: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = run("ask", "town", "How old is the kiln?", "--json")
    assert asked.code == 0, asked.err
    assert names(asked)[0] == "3.txt"
    assert len(names(asked)) == 2
    assert json.loads(asked.out)["searched"] == 6
    assert "searched the words of 6 documents, opened the best 2" in asked.err
    opened = list[str]()
    real = document._read_document_bytes

    def count(source: str, limit: int) -> bytes:
        opened.append(source)
        return real(source, limit)

    monkeypatch.setattr(document, "_read_document_bytes", count)
    again = run("ask", "town", "How old is the kiln?", "--json")
    assert names(again) == names(asked)
    assert len(opened) == 2, "unchanged files are not read again"
    Path("town/4.txt").write_text("A second kiln. " * 90, "utf-8")
    os.utime("town/4.txt", ns=(1, 1))
    assert names(run("ask", "town", "How old is the kiln?", "--json"))[0] in ("4.txt", "3.txt")
    assert "4.txt" in names(run("ask", "town", "Is there a second kiln?", "--json"))


def test_named_documents_are_asked_beside_the_best(run: Esa) -> None:
    asked = run("ask", "town/0.txt", "town", "How old is the kiln?", "--json")
    assert names(asked)[:2] == ["0.txt", "3.txt"]
    assert len(names(asked)) == 3
    assert "searched the words of 5 documents" in asked.err


def test_the_best_documents_of_the_library_are_asked(run: Esa) -> None:
    rows = ("--set", "answer.from=rows")
    fail(run("ask", "How old is the kiln?"), 2, "the library has no documents", "name a document")
    assert run("ingest", *(f"town/{at}.txt" for at in range(5)), *rows, "-q").code == 0
    asked = run("ask", "--library", "How old is the kiln?", "--json")
    assert asked.code == 0, asked.err
    assert names(asked)[0] == "3.txt"
    assert len(names(asked)) == 2
    without = run("ask", "How old is the kiln?", "--json")
    assert (names(without), without.data["answer"]) == (names(asked), asked.data["answer"])
    fail(run("ask", "kiln.txt"), 2, "must be given, got 'kiln.txt'")
    assert len(names(run("ask", "--library", "The kiln?", "--json", most=9))) == 5
    both = run("ask", "--library", "town", "How old is the mill?", "--json")
    assert names(both)[0] == "5.txt"
    assert "searched the words of 6 documents" in both.err, "a text is searched once"
    other = ("ask", "--library", "Kiln?", "--json", "--set", "prompt.before=x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Library, "text", lambda self, entry: pytest.fail("its manifest says whose"))
        assert len(names(run(*other))) == 2, "another model's are asked by their files' words"
    shutil.rmtree("town")
    gone = run(*other)
    assert gone.code == 2
    assert "none of the documents can be used with this preset" in gone.err


def test_nothing_is_said_of_the_search_if_all_documents_are_opened(run: Esa) -> None:
    assert run("ingest", "--words", "town").code == 0
    asked = run("ask", "--library", "How old is the kiln?", "--json", most=6)
    assert len(names(asked)) == 6
    assert "searched" not in asked.err + asked.out


def test_where_the_disk_is_full_words_are_not_kept_unless_they_must_be(
    run: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the catalogue is there and has no room for more."""

    create_catalogue_tables = catalogue_file.create_catalogue_tables

    def full(db: sqlite3.Connection) -> None:
        create_catalogue_tables(db)
        [(_, _, path)] = db.execute("PRAGMA database_list").fetchall()
        if path:
            [(pages,)] = db.execute("PRAGMA page_count").fetchall()
            db.execute(f"PRAGMA max_page_count = {pages}")

    asked = ("ask", "town", "How old is the kiln?", "--json")
    wanted = names(run(*asked))
    for at, thing in enumerate(THINGS):
        text = f"A {thing} that is new stands in the street since {1900 + at}. " * 90
        Path("town", f"new-{at}.txt").write_text(text, "utf-8")
    monkeypatch.setattr(catalogue_file, "create_catalogue_tables", full)
    done = run(*asked)
    assert done.code == 0, done.err
    assert json.loads(done.out)["searched"] == 12
    assert wanted[0] in names(done)
    assert done.err.count("esa: words of files are not stored: the catalogue ") == 1
    assert "disk is full" in done.err
    done = run(*asked, "--keep")
    assert done.code == 6
    assert "disk is full" in done.err
