"""`esa library`: what it prints, asks and refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
import typer.main
from test_library import ingest

from esa_cli.apps.cli.commands import library_command as commands
from esa_cli.errors import LibraryError, UsageError
from esa_cli.storage.library import Library

Run = Callable[..., str]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path))
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115
    return Library()


@pytest.fixture
def run(library: Library, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command as `__main__` does; what it printed."""

    def call(*arguments: str) -> str:
        group = typer.main.get_command(commands.library)
        with group.make_context("esa library", list(arguments)) as context:
            group.invoke(context)
        return capsys.readouterr().out

    return call


def test_list_and_show(run: Run, library: Library) -> None:
    entry = ingest(library, [*range(40)])
    listed = run("list")
    assert listed.splitlines()[1].split()[:2] == [entry.id, "40"]
    assert listed.splitlines()[1].endswith("book.txt")
    assert str(library.root) in listed
    data = json.loads(run("list", "--json"))
    assert data["bytes"] == library.nbytes
    assert [document["key"] for document in data["documents"]] == [entry.key]
    shown = run("show", entry.id[:6])
    assert all(word in shown for word in (entry.key, "book.txt", "native", "/books/"))
    assert json.loads(run("show", "book.txt", "--json"))["tokens"] == 40


def test_what_is_damaged_is_listed_verified_and_removed(run: Run, library: Library) -> None:
    entry, other = ingest(library, [*range(40)]), ingest(library, [*range(50, 70)])
    assert run("verify").count("good") == 2
    path = library.root / "segments" / f"{entry.segments[0]}.seg"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LibraryError, match="1 of 2 documents are damaged") as raised:
        run("verify")
    assert f"esa library rm {entry.id}`" in raised.value.hint
    with pytest.raises(LibraryError):
        run("verify", entry.id, "--json")
    assert "good" in run("verify", other.id)
    manifest = library.root / "documents" / f"{entry.key}.doc"
    manifest.write_bytes(b"\x1b[31m")
    assert "damaged: " in run("list")
    assert "damage" in json.loads(run("show", entry.id, "--json"))
    assert "damaged" in run("show", entry.id)
    assert run("rm", entry.id, "--yes").startswith(f"removed {entry.id}")
    assert [one.key for one in library.entries()] == [other.key]


@pytest.mark.parametrize("archive", [False, True])
def test_documents_go_elsewhere_and_come_back(
    run: Run, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: bool
) -> None:
    far = tmp_path.parent / f"{tmp_path.name}-far{'.tar' if archive else ''}"
    place = str(far)
    with pytest.raises(UsageError):
        run("copy", "library", place)
    first, second = ingest(library, [*range(40)]), ingest(library, [*range(50, 70)])
    assert run("copy", "library", place, first.id).startswith("copied 1 document, ")
    data = json.loads(run("copy", "library", place, "--json"))
    assert (data["source"], data["target"], data["there"]) == ("library", place, 1 - archive)
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "other"))
    assert run("copy", place, "library", first.id[:6]).endswith("; 0 were there\n")
    data = json.loads(run("copy", place, "library", "--json"))
    assert (data["copied"], data["there"], data["failed"]) == ([second.id], 1, [])
    assert "good" in run("verify", first.id)
    if not archive:
        (far / "documents" / f"{first.key}.text").write_bytes(b"")
        for kind in ("doc", "text"):
            (tmp_path / "other" / "documents" / f"{first.key}.{kind}").unlink()
        with pytest.raises(LibraryError, match="1 document left out: document"):
            run("copy", place, "library")
    for wrong in ((str(tmp_path / "nothing"), "library"), (str(tmp_path / "none.tar"), "library")):
        with pytest.raises(LibraryError):
            run("copy", *wrong)
    for places in (("library", "library"), ("a", "b"), ("library", str(tmp_path / "no" / "a.tar"))):
        with pytest.raises(UsageError):
            run("copy", *places)


def test_rm_wants_a_yes_and_one_document(run: Run, library: Library) -> None:
    first, second = ingest(library, [1]), ingest(library, [2])
    with pytest.raises(UsageError, match="must be confirmed"):
        run("rm", first.id)
    with pytest.raises(UsageError, match="fits 2 documents"):
        run("rm", "book.txt", "--yes")
    with pytest.raises(UsageError, match="no document nothing"):
        run("rm", first.id, "nothing", "--yes")
    assert len(library.entries()) == 2
    assert run("rm", first.id, first.key, second.id, "-y").count("removed") == 2
    assert library.entries() == []


def test_prune_names_what_is_of_another_format(run: Run, library: Library) -> None:
    kept, old = ingest(library, [*range(40)]), ingest(library, [*range(90, 130)])
    path = library.root / "documents" / f"{kept.key}.doc"
    path.write_bytes(path.read_bytes().replace(b"document 1 ", b"document 99 ", 1))
    with pytest.raises(LibraryError, match="nothing was removed"):
        run("prune", "--max-size", str(library.nbytes - 1))
    assert library.verify(old) == []
    said = run("prune")
    assert f"left alone, as it cannot be used: {kept.id}" in said
    (left,) = json.loads(run("prune", "--json"))["left_alone"]
    assert left["id"] == kept.id
