"""A library on a disk that cannot be written: what it has is listed, searched and asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import TINY, Esa, Result

from esa_cli.storage.library import Library
from esa_cli.storage.library.catalogue import NAME
from esa_cli.system import files

pytestmark = pytest.mark.skipif(
    shutil.which("mount") is None or os.name == "nt" or os.geteuid() != 0, reason="cannot mount"
)
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
def run(surroundings: None, esa: Esa, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Esa:
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


def ask(run: Esa, words: str, *more: str) -> Result:
    text = ("--set", "answer.from=text", "--set", "answer.documents=2")
    done = run("ask", *more, "--library", words, "--json", *TINY, *text)
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize("state", ["whole", "lost", "damaged", "unfinished"])
def test_it_is_listed_searched_and_asked(run: Esa, disk: Path, state: str) -> None:
    path = disk / "library" / NAME
    if state == "lost":
        path.unlink()
    elif state == "damaged":
        path.write_bytes(path.read_bytes()[:9000])
    elif state == "unfinished":
        path.with_name(f"{path.name}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" * 99)
    before = {one: one.stat().st_mtime_ns for one in disk.rglob("*")}
    mount("-o", "remount,ro", str(disk))
    assert not Library().is_writable
    listed = json.loads(run("library", "list", "--json").out)
    assert sorted(one["name"] for one in listed["documents"]) == ["anvil.txt", "harp.txt"]
    assert listed["synced_files"] == 2
    for thing in ("harp", "loom"):
        done = ask(run, f"Where is the {thing}?")
        assert json.loads(done.out)["documents"][0]["name"] == f"{thing}.txt"
        assert json.loads(done.out)["searched"] == 4
        assert "left out" not in done.err
    entry = listed["documents"][0]
    assert run("library", "show", entry["id"][:8]).code == 0
    assert run("library", "verify").code == 0
    Path("town/new.txt").write_text("A new mill. " * 20, "utf-8")
    done = ask(run, "the mill?", "town")
    assert json.loads(done.out)["documents"][0]["name"] == "new.txt"
    assert {one: one.stat().st_mtime_ns for one in disk.rglob("*")} == before
