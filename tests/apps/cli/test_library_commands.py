"""`esa library`: what it prints, asks and refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
import typer.main
from test_library import ingest

from esa_cli.__main__ import main
from esa_cli.apps.cli.commands import library_command as commands
from esa_cli.errors import LibraryError, UsageError
from esa_cli.storage.library import Library, document_files
from esa_cli.storage.library.disk import LibraryPaths

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
    assert "created     20" in shown, "a date"
    assert "identity" not in shown
    assert json.loads(run("show", "book.txt", "--json"))["identity"] == entry.identity
    assert not {"preset", "rows"} & {*listed.split()}, "alike for all"


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
    assert run("copy", place, "library", first.id[:6]).endswith("; 0 were already there\n")
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
    with pytest.raises(UsageError, match="no document nothing") as unlike:
        run("rm", first.id, "nothing", "--yes")
    assert "library list" in unlike.value.hint
    with pytest.raises(UsageError) as similar:
        run("rm", "boook", "--yes")
    assert "book.txt" in similar.value.hint
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
    assert f"not removed, as the document cannot be used: {kept.id}" in said
    (left,) = json.loads(run("prune", "--json"))["left_alone"]
    assert left["id"] == kept.id


@pytest.fixture
def completed_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Library()


def keep(completed_library: Library, name: str, start: int) -> str:
    """A stored document of that name; its id."""
    entry = ingest(completed_library, [*range(start, start + 20)])
    named = replace(entry, provenance={**entry.provenance, "name": name})
    document_files.write_manifest(LibraryPaths(completed_library.root), named)
    return entry.id


def offered(line: str, shell: str = "bash") -> list[str]:
    """What a shell is offered at the end of a line, by the program itself."""
    words = line.split(" ")
    given = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    if shell != "bash":
        given = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_ESA_COMPLETE", f"complete_{shell}")
        for name, value in given.items():
            patch.setenv(name, value)
        out = Path(os.environ["ESA_LIBRARY"]).parent / "out"
        with out.open("w", encoding="utf-8") as file:
            patch.setattr(sys, "stdout", file)
            with pytest.raises(SystemExit):
                main([])
    return out.read_text("utf-8").strip("\n").splitlines()


def test_names_and_ids_of_stored_documents(completed_library: Library) -> None:
    moby, notes = (
        keep(completed_library, *one) for one in (("moby-dick.txt", 0), ("notes.md", 50))
    )
    for command in ("show", "rm", "verify", "copy library memory://x"):
        assert offered(f"esa library {command} ") == ["moby-dick.txt", "notes.md"]
    assert offered("esa library show mo") == ["moby-dick.txt"]
    assert offered(f"esa library rm notes.md {moby[:5]}") == [moby]
    assert offered("esa library show zzz") == []
    for shell in ("fish", "zsh"):
        assert notes not in "".join(offered("esa library show ", shell))
        assert "notes.md" in "".join(offered("esa library show no", shell))


def test_names_that_a_shell_would_interpret(completed_library: Library) -> None:
    hostile = ["$(reboot).txt", "`reboot`", "-rf", "(x)", "*", *(f"a{x}b" for x in "\n;\"'\\ ")]
    ids = {keep(completed_library, name, 40 * i) for i, name in enumerate(hostile)}
    assert set(offered("esa library show ")) == ids
    assert "reboot" not in "".join(offered("esa library show ", "zsh"))


def test_presets_and_methods(completed_library: Library, tmp_path: Path) -> None:
    own = tmp_path / "config" / "esa" / "presets"
    own.mkdir(parents=True)
    (own / "zebra.yaml").touch()
    (own / "zebra$(x).yaml").touch()
    assert offered("esa ask --preset zeb") == ["zebra"]
    assert "default" in offered("esa presets show def")
    assert "qwen3-4b" in offered("esa ask --model qwen3")
    assert "ask" in offered("esa a")


@pytest.mark.process
def test_bash_itself_without_torch(completed_library: Library, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if not bash:
        pytest.skip("no bash")
    keep(completed_library, "my-book.txt", 0)
    keep(completed_library, "$(touch hit).txt", 50)
    program = tmp_path / "bin" / "esa"
    program.parent.mkdir()
    heavy = (
        "{'torch', 'numpy', 'transformers', 'rich', 'yaml', 'snowballstemmer'} & set(sys.modules)"
    )
    program.write_text(
        f"#!{sys.executable}\nimport atexit, sys\nfrom esa_cli.__main__ import main\n"
        f"atexit.register(lambda: {heavy} and print('heavy', {heavy}))\nmain()\n",
        "utf-8",
    )
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    script = subprocess.run(
        [program], capture_output=True, text=True, timeout=60,
        env={**environment, "_ESA_COMPLETE": "source_bash"},
    ).stdout  # fmt: skip
    tab = "COMP_WORDS=(esa library show my); COMP_CWORD=3; _esa_completion esa; "
    done = subprocess.run(
        [bash, "--norc", "-c", f"{script}\n{tab}printf '%s\\n' \"${{COMPREPLY[@]}}\""],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.stdout == "my-book.txt\n", done.stderr
    assert not (tmp_path / "hit").exists()
