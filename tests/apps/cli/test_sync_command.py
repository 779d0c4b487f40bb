"""`esa ingest --words` and `--prune`: a folder in the library, once or whenever it changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import TINY, Esa, Result

from esa_cli.apps.cli.commands import ingest_command
from esa_cli.qa.ingestion import library_texts
from esa_cli.qa.ingestion.library_texts import FileChanges
from esa_cli.storage.library import Library
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.system import files


@pytest.fixture
def run(surroundings: None, esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Esa:
    """`esa` in a folder with `town/`, three documents; a library of its own."""
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setattr(files, "SETTLED_NS", -(10**18))
    Path("town").mkdir()
    for thing in ("harp", "anvil", "loom"):
        write(thing, f"The {thing} of the town has stood there for years. " * 9)
    return esa


def write(name: str, text: str, at: float = 1e9) -> None:
    path = Path("town", f"{name}.txt")
    path.write_text(text, "utf-8")
    os.utime(path, (at, at))


def names(paths: list[str]) -> list[str]:
    return [Path(path).stem for path in paths]


def state(run: Esa, *more: str) -> dict[str, Any]:
    words = [] if "--preset" in more else ["--words"]
    return dict(json.loads(run("ingest", "town", "--json", *words, *more).out))


def found(words: str) -> int:
    with Library().open_catalogue() as catalogue:
        return len(catalogue.texts.rank_texts(words))


def test_new_changed_and_removed_files(run: Esa) -> None:
    first = run("ingest", "--words", "town")
    assert first.code == 0
    assert first.out.startswith("3 files: 3 added, 0 changed, 0 removed; ")
    assert run("library", "list").out.splitlines()[-1].startswith("3 files of ")
    assert json.loads(run("library", "list", "--json").out)["synced_files"] == 3
    again = state(run)
    assert (again["files"], again["added"], again["changed"], again["removed"]) == (3, [], [], [])
    write("harp", "A kiln. " * 9, 2e9)
    write("mill", "A mill. " * 9)
    Path("town/loom.txt").unlink()
    changed = state(run)
    assert names(changed["added"]) == ["mill"]
    assert names(changed["changed"]) == ["harp"]
    assert names(changed["removed"]) == ["loom"]
    assert (found("harp"), found("kiln"), found("loom")) == (0, 1, 1)
    assert json.loads(run("library", "list", "--json").out)["synced_files"] == 3, "with the mill"
    assert state(run)["removed"] == [], "it is reported once"
    write("loom", "A new loom. " * 9, 3e9)
    assert names(state(run)["changed"]) == ["loom"]
    Path("town/loom.txt").unlink()
    reported = run("ingest", "--words", "town")
    assert reported.out.splitlines()[0] == f"removed {Path('town/loom.txt').absolute()}"
    assert names(state(run, "--prune")["removed"]) == ["loom"]
    assert found("loom") == 0
    assert state(run)["removed"] == []


def test_only_files_that_do_not_exist_are_removed(run: Esa) -> None:
    Path("town/shed").mkdir()
    write("shed/kiln", "The kiln of the town. " * 9)
    run("ingest", "--words", "town")
    write("harp", "")
    Path("town/.gitignore").write_text("shed/\nanvil.txt\n", "utf-8")
    assert state(run, "--prune")["removed"] == []
    Path("town/shed/kiln.txt").unlink()
    assert state(run, "--prune")["removed"] == []
    assert found("town") == 4
    Path("town/anvil.txt").unlink()
    assert names(state(run, "--prune")["removed"]) == ["anvil"]


def test_a_disk_that_goes_away_meanwhile_is_not_pruned(
    run: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("ingest", "town", *TINY).code == 0
    state(run)
    update = library_texts.index_files

    def updated(*given: Any) -> FileChanges:
        done = update(*given)
        if not Path("elsewhere").exists():
            Path("town").rename("elsewhere")
            Path("town").mkdir()
        return done

    with monkeypatch.context() as patch:
        patch.setattr(library_texts, "index_files", updated)
        done = state(run, "--prune", "--yes")
    assert (done["removed"], done["pruned"]) == ([], [])
    Path("town").rmdir()
    Path("elsewhere").rename("town")
    assert json.loads(run("library", "list", "--json").out)["synced_files"] == 3


def test_the_model_reads_what_is_new(run: Esa) -> None:
    rows = ("--prune", *TINY, "--set", "answer.from=rows")
    first = state(run, *rows)
    assert len(first["read"]) == 3
    assert len(Library().entries()) == 3
    assert state(run, *rows)["read"] == []
    write("harp", "A kiln. " * 30, 2e9)
    changed = state(run, *rows)
    assert (len(changed["read"]), len(changed["pruned"])) == (1, 1), "the former version goes"
    Path("town/loom.txt").unlink()
    assert len(state(run, "--prune")["pruned"]) == 1
    assert sorted(entry.name for entry in Library().entries()) == ["anvil.txt", "harp.txt"]
    Path("town/harp.txt").unlink()
    said = run("ingest", "--words", "town", "--prune").out.splitlines()[-1]
    assert said.startswith("1 file: 0 added, 0 changed, 1 removed, 1 pruned from the library; ")


def test_ingest_says_which_file_is_removed_and_the_list_which_text_is_former(run: Esa) -> None:
    assert run("ingest", "town", *TINY).code == 0
    write("harp", "A kiln. " * 30, 2e9)
    Path("town/loom.txt").unlink()
    said = run("ingest", "town", *TINY).err
    assert [line for line in said.splitlines() if "removed" in line] == [
        f"esa: {Path('town/loom.txt').absolute()} is removed, and no longer answers"
    ]
    assert "removed" not in run("ingest", "town", *TINY).err, "it is said once"
    rows = run("library", "list", "--all").out.splitlines()
    former = [row.split()[-2] for row in rows if row.endswith("(former)")]
    assert sorted(former) == ["harp.txt", "loom.txt"]
    assert sum("harp.txt" in row for row in rows) == 2
    assert "(former)" not in run("library", "list").out


def test_watching_says_what_has_changed(run: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    def changes() -> Iterator[None]:
        yield
        write("mill", "A mill. " * 9)
        yield
        Path("town/loom.txt").unlink()
        yield
        yield
        raise KeyboardInterrupt

    waits = changes()
    clock = SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda seconds: next(waits))
    monkeypatch.setattr(ingest_command, "time", clock)
    done = run("ingest", "--words", "town", "--watch")
    assert done.code == 130
    lines = done.out.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "3 files: 3 added, 0 changed, 0 removed",
        "4 files: 1 added, 0 changed, 0 removed",
        f"removed {Path('town/loom.txt').absolute()}",
        "3 files: 0 added, 0 changed, 1 removed",
    ]


def test_an_empty_or_missing_folder_is_not_pruned(run: Esa) -> None:
    run("ingest", "--words", "town")
    for path in Path("town").iterdir():
        path.unlink()
    refused = run("ingest", "--words", "town", "--prune")
    assert refused.code == 3
    assert "so nothing is pruned" in refused.err
    assert "esa ingest --prune --yes" in refused.err
    assert found("town") == 3
    assert len(state(run)["removed"]) == 3
    assert len(state(run, "--prune", "--yes")["removed"]) == 3
    assert found("town") == 0
    assert state(run, "--prune", "--yes")["removed"] == []
    Path("town").rmdir()
    assert run("ingest", "--words", "town", "--prune", "--yes").code == 3


def test_a_document_that_the_model_cannot_read_does_not_stop_the_others(
    run: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    from esa_cli.errors import ResourceError
    from esa_cli.qa.api import Esa

    real = Esa.ingest

    def ingest(self: Esa, source: str) -> Any:
        if "harp" in source:
            raise ResourceError("harp.txt is too long", "cut it")
        return real(self, source)

    monkeypatch.setattr(Esa, "ingest", ingest)
    done = run("ingest", "town", "--prune", *TINY, "--set", "answer.from=rows")
    assert done.code == 7
    assert "esa: left out: harp.txt is too long; cut it" in done.err
    assert "2 read by the model" in done.out


THINGS = ("harp", "anvil", "loom", "kiln")


def mount(*options: str) -> None:
    if subprocess.run(["mount", *options], check=False).returncode:
        pytest.skip("cannot mount")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, mounted in the test's folder."""
    found = tmp_path / "disk"
    found.mkdir()
    mount("-t", "tmpfs", "none", str(found))
    yield found
    subprocess.run(["umount", "-l", str(found)], check=True)


@pytest.fixture
def run_read_only(surroundings: None, esa: Esa, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Esa:
    """`esa` with a library on the disk: two documents, and two files of `esa sync`."""
    monkeypatch.setenv("ESA_LIBRARY", str(disk / "library"))
    monkeypatch.setattr(files, "SETTLED_NS", -(10**18))
    for at, thing in enumerate(THINGS):
        folder = Path("read" if at < 2 else "town")
        folder.mkdir(exist_ok=True)
        text = f"The {thing} of the town has stood there for years. " * 20
        (folder / f"{thing}.txt").write_text(text, "utf-8")

    text = ("--set", "answer.from=text", "--set", "answer.documents=2")
    assert esa("ingest", "read", *TINY, *text).code == 0
    assert esa("ingest", "--words", "town").code == 0
    return esa


def ask(run_read_only: Esa, words: str, *more: str) -> Result:
    text = ("--set", "answer.from=text", "--set", "answer.documents=2")
    done = run_read_only("ask", *more, "--library", words, "--json", *TINY, *text)
    assert done.code == 0, done.err
    return done


@pytest.mark.skipif(
    shutil.which("mount") is None or os.name == "nt" or os.geteuid() != 0, reason="cannot mount"
)
@pytest.mark.parametrize("state", ["whole", "lost", "damaged", "unfinished"])
def test_it_is_listed_searched_and_asked(run_read_only: Esa, disk: Path, state: str) -> None:
    path = LibraryPaths(disk / "library").catalogue
    if state == "lost":
        path.unlink()
    elif state == "damaged":
        path.write_bytes(path.read_bytes()[:9000])
    elif state == "unfinished":
        path.with_name(f"{path.name}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" * 99)
    before = {one: one.stat().st_mtime_ns for one in disk.rglob("*")}
    mount("-o", "remount,ro", str(disk))
    assert not Library().is_writable
    listed = json.loads(run_read_only("library", "list", "--json").out)
    assert sorted(one["name"] for one in listed["documents"]) == ["anvil.txt", "harp.txt"]
    assert listed["synced_files"] == 2
    for thing in ("harp", "loom"):
        done = ask(run_read_only, f"Where is the {thing}?")
        assert json.loads(done.out)["documents"][0]["name"] == f"{thing}.txt"
        assert json.loads(done.out)["searched"] == 4
        assert "left out" not in done.err
    entry = listed["documents"][0]
    assert run_read_only("library", "show", entry["id"][:8]).code == 0
    assert run_read_only("library", "verify").code == 0
    Path("town/new.txt").write_text("A new mill. " * 20, "utf-8")
    done = ask(run_read_only, "the mill?", "town")
    assert json.loads(done.out)["documents"][0]["name"] == "new.txt"
    assert {one: one.stat().st_mtime_ns for one in disk.rglob("*")} == before
