"""`esa library`: what it prints, asks and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
import typer.main
from test_library import ingest, part_of, used_at

from esa_cli.__main__ import main
from esa_cli.apps.cli.commands import library_command as commands
from esa_cli.apps.cli.output.entry_output import facts
from esa_cli.errors import EsaError, ForeignVersionError, LibraryError, UsageError
from esa_cli.storage.library import Layout, Library
from esa_cli.storage.library.entry_writer import Writer

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
        group = typer.main.get_command(commands.app)
        with group.make_context("esa library", list(arguments)) as context:
            group.invoke(context)
        return capsys.readouterr().out

    return call


def test_an_empty_library_says_what_to_do(run: Run) -> None:
    assert "esa ingest" in run("list")
    assert json.loads(run("list", "--json"))["documents"] == []
    assert run("verify") == ""
    assert "0 bytes freed" in run("prune")


def test_what_is_shown_is_for_a_person(library: Library) -> None:
    entry = ingest(library, [*range(40)])
    known = {"name": "a\nb.txt", "missing": ["page 2 has no text", "page 4 too"]}
    shown = facts(replace(entry, provenance=known))
    assert shown["document"] == "a b.txt", "a name is one line"
    assert shown["missing"] == "page 2 has no text; page 4 too"
    assert "missing" not in facts(replace(entry, provenance={**known, "missing": []}))
    index = replace(entry, provenance={**known, "rows": "index"})
    assert facts(index)["rows"] == f"index, {entry.layout.width} numbers a token"
    assert entry.identity not in shown.values(), "settings are for --json"


def test_list_and_show(run: Run, library: Library) -> None:
    entry = ingest(library, [*range(40)])
    listed = run("list")
    assert listed.splitlines()[0].split() == [
        "id",
        "tokens",
        "size",
        "used",
        "preset",
        "rows",
        "document",
    ]
    assert listed.splitlines()[1].split()[:2] == [entry.id, "40"]
    assert listed.splitlines()[1].endswith("book.txt")
    assert str(library.root) in listed
    data = json.loads(run("list", "--json"))
    assert data["bytes"] == library.nbytes
    assert [document["key"] for document in data["documents"]] == [entry.key]
    shown = run("show", entry.id[:6])
    assert all(word in shown for word in (entry.key, "book.txt", "native, 2 layers", "/books/"))
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
    place = str(far) if archive else far.as_uri()
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
    for wrong in (("memory://nothing", "library"), (str(tmp_path / "none.tar"), "library")):
        with pytest.raises(LibraryError):
            run("copy", *wrong)
    for places in (("library", "library"), ("a", "b"), ("library", str(tmp_path / "no" / "a.tar"))):
        with pytest.raises(UsageError):
            run("copy", *places)


def test_former_names_of_copy(
    library: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest(library, [*range(40)])
    far, out = str(tmp_path.parent / f"{tmp_path.name}-far"), str(tmp_path.parent / "former.tar")
    for old in (["push", far], ["pull", far], ["export", "--out", out], ["import", out]):
        assert main(["library", *old]) == 0
        printed = capsys.readouterr()
        assert "1 document" in printed.out or "1 were there" in printed.out
        assert "`library copy " in printed.err


def test_the_text_is_shown_to_the_letter(
    run: Run, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "one\x1b[31m\r\ntwo\ttab\n\n"
    with library.write("a" * 40, "w", [1], Layout(1, 1, 1, "float32")) as writer:
        assert isinstance(writer, Writer)
        writer.layers[0].append(*torch.zeros(2, 1, 1, 1))
        writer.finish(text=text, offsets=[(0, 1)], provenance={"name": "a.txt"})
    assert run("show", "a.txt", "--text") == text
    assert json.loads(run("show", "a.txt", "--text", "--json"))["text"] == text
    assert "text" not in json.loads(run("show", "a.txt", "--json"))
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True)
    assert run("show", "a.txt", "--text") == "one[31m\ntwo\ttab\n\n", "a terminal is not steered"


def test_what_cannot_be_read_is_not_called_damaged(
    run: Run, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, other = ingest(library, [*range(40)]), ingest(library, [*range(50, 70)])
    hidden, real = library.root / "documents" / f"{entry.key}.doc", Path.read_bytes

    def read(path: Path) -> bytes:
        if path == hidden:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    assert f"{hidden} cannot be read: Permission denied" in run("list")
    assert "damaged" not in run("list") + run("show", entry.id)
    with pytest.raises(LibraryError, match="1 of 2 documents cannot be read") as raised:
        run("verify")
    assert "library rm" not in raised.value.hint
    (library.root / "segments" / f"{other.segments[0]}.seg").unlink()
    with pytest.raises(LibraryError, match="1 of 2 documents are damaged") as raised:
        run("verify")
    assert entry.id not in raised.value.hint
    assert other.id in raised.value.hint


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


def test_prune_says_what_it_does(run: Run, library: Library) -> None:
    old, new = ingest(library, [*range(40)]), ingest(library, [*range(90, 130)])
    used_at(library, old, 1000.0)
    part_of(library, [*range(300, 370)], 50)
    size = str(new.nbytes + 5000)
    would = run("prune", "--max-size", size, "--dry-run")
    assert f"would remove {old.id} (book.txt)" in would
    assert "files that belong to no document" in would
    assert json.loads(run("prune", "--max-size", size, "--dry-run", "--json"))["dry_run"]
    assert len(library.entries()) == 2
    assert run("prune", "--max-size", size) == would.replace("would remove", "removed").replace(
        "would be freed", "freed"
    )
    assert [entry.key for entry in library.entries()] == [new.key]
    with pytest.raises(EsaError, match="--max-size"):
        run("prune", "--max-size", "much")


def test_prune_names_what_is_of_another_format(run: Run, library: Library) -> None:
    kept, old = ingest(library, [*range(40)]), ingest(library, [*range(90, 130)])
    path = library.root / "documents" / f"{kept.key}.doc"
    path.write_bytes(path.read_bytes().replace(b"document 1 ", b"document 99 ", 1))
    with pytest.raises(LibraryError, match="nothing was removed"):
        run("prune", "--max-size", str(library.nbytes - 1))
    assert library.verify(old) == []
    said = run("prune")
    assert f"left alone, as they cannot be used: {kept.id}" in said
    (left,) = json.loads(run("prune", "--json"))["left_alone"]
    assert left["id"] == kept.id


def test_another_format_is_not_called_damaged(run: Run, library: Library) -> None:
    entry, other = ingest(library, [*range(40)]), ingest(library, [*range(90, 130)])
    path = library.root / "documents" / f"{entry.key}.doc"
    path.write_bytes(path.read_bytes().replace(b"document 1 ", b"document 99 ", 1))
    listed = run("list") + run("show", entry.id)
    assert listed.count("another format: ") == 2
    assert "damaged" not in listed
    assert json.loads(run("show", entry.id, "--json"))["state"] == "another format"
    with pytest.raises(ForeignVersionError, match="1 of 2 documents are of another") as raised:
        run("verify")
    assert "use the esa that wrote them" in raised.value.hint
    (library.root / "segments" / f"{other.segments[0]}.seg").unlink()
    with pytest.raises(LibraryError, match="1 of 2 documents are damaged") as raised:
        run("verify")
    assert entry.id not in raised.value.hint


def test_names_do_not_steer_the_terminal(run: Run, library: Library) -> None:
    key = library.key("w", "")
    with library.write(key, "w", [1], Layout(1, 1, 1, "float32")) as writer:
        assert isinstance(writer, Writer)
        writer.layers[0].append(*torch.zeros(2, 1, 1, 1))
        writer.finish(text="", offsets=[(0, 0)], provenance={"name": "a\x1b[31mb"})
    assert "\x1b" not in run("list") + run("verify") + run("show", key) + run("rm", key, "-y")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom esa_cli.apps.cli.commands import library_command as library\n"
        "import typer.main\n"
        "app = typer.Typer(rich_markup_mode=None)\n"
        "app.callback()(lambda: None)\n"
        "app.add_typer(library.app, name='library')\n"
        "group = typer.main.get_command(app)\n"
        "for words in ([], *([name] for name in group.commands['library'].commands)):\n"
        "    try:\n        group.main(['library', *words, '--help'], 'esa')\n"
        "    except SystemExit as end:\n        assert end.code == 0\n"
        "sys.exit(' '.join({'torch', 'numpy', 'rich', 'xxhash'} & set(sys.modules)) or 0)\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert "prune" in done.stdout


def test_listing_imports_no_torch(library: Library) -> None:
    ingest(library, [1])
    code = (
        "import sys\nfrom esa_cli.storage.library import Library\nassert Library().entries()\n"
        "sys.exit(' '.join({'torch', 'numpy'} & set(sys.modules)) or 0)\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
