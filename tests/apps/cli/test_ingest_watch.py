"""`esa ingest --watch`: what is new or has changed is read, when it is complete."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_fixtures import cache, esa, surroundings
from command import TINY, Esa

from esa_cli.apps.cli import ingest_watch
from esa_cli.apps.cli.ingest_watch import WatchedFiles
from esa_cli.storage.library import Library
from esa_cli.system import files

__all__ = ["cache", "esa", "surroundings"]


@pytest.fixture
def town(surroundings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setattr(ingest_watch, "SETTLE_S", 0.01)
    folder = tmp_path / "town"
    folder.mkdir()
    (folder / "harp.txt").write_text("The harp of the town is old. " * 9, "utf-8")
    return folder


def test_new_and_changed_files_are_read(
    esa: Esa, town: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changes(*folders: str, poll: bool) -> Iterator[None]:
        assert (folders, poll) == (("town",), False)
        yield
        (town / "mill.txt").write_text("The mill grinds at night. " * 9, "utf-8")
        (town / "empty.txt").touch()
        yield
        (town / "mill.txt").write_text("The mill has burnt down. " * 9, "utf-8")
        (town / "broken.pdf").write_bytes(b"%PDF-1.4 broken")
        yield
        (town / "harp.txt").unlink()
        yield
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "folder_changes", changes)
    done = esa("ingest", "town", "--watch", *TINY)
    assert done.code == 130, done.err
    read = [line.rpartition(": ")[2] for line in done.out.splitlines()]
    paths = [str(Path("town", name)) for name in ("harp.txt", "mill.txt", "mill.txt")]
    assert read == paths
    assert all(" tokens, read in " in line for line in done.out.splitlines())
    assert "esa: waiting for changes of town, until Ctrl-C" in done.err
    assert "esa: left out: " in done.err
    assert "broken.pdf" in done.err
    divided = Library().divided_entries()
    assert (len(divided.present), len(divided.former)) == (1, 2), "former versions stay"
    again = esa("ingest", "town", "--watch", "--json", *TINY)
    assert json.loads(again.out.splitlines()[0])["read_s"] == 0


def test_a_folder_may_be_empty_at_first(
    esa: Esa, town: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (town / "harp.txt").unlink()

    def changes(*folders: str, poll: bool) -> Iterator[None]:
        (town / "mill.txt").write_text("The mill grinds at night. " * 9, "utf-8")
        yield
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "folder_changes", changes)
    assert esa("ingest", "town", "--watch", *TINY).out.count("\n") == 1


def test_what_cannot_be_watched(esa: Esa, town: Path) -> None:
    for words in (["-"], ["town", "--shard", "1/2"], ["town", "--workers", "2"]):
        assert esa("ingest", *words, "--watch", *TINY).code == 2
    assert esa("ingest", "none.txt", "--watch", *TINY).code == 3


def test_a_file_is_read_when_it_is_complete(town: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_watch, "SETTLE_S", 0.2)
    monkeypatch.setattr(files, "POLL_S", 0.01)
    watched = WatchedFiles([str(town / "*.txt")])
    assert watched.first == [str(town / "harp.txt")]

    def write() -> None:
        with (town / "long.txt").open("w", encoding="utf-8") as file:
            for _ in range(8):
                file.write("more and more ")
                file.flush()
                time.sleep(0.05)

    thread = threading.Thread(target=write)
    thread.start()
    paths = next(filter(None, watched.changes()))
    size = (town / "long.txt").stat().st_size
    thread.join()
    assert paths == [str(town / "long.txt")]
    assert size == (town / "long.txt").stat().st_size == 8 * 14
