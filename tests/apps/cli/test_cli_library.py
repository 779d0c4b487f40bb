"""The commands that keep documents, from end to end: `ingest`, `ask --keep`, `--library`
and `--report`; interrupted, killed, and on disks that are full. Tiny random model.

They run `main` in this process; what ends the process, in a fork of it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from calibration_tools import small_files
from cli_fixtures import runner
from command import TINY as TINY_MODEL
from command import Esa
from forked import killed
from tiny_finder import tiny_finder

from esa_cli.__main__ import main
from esa_cli.errors import ResourceError
from esa_cli.qa.api import Esa as Asker
from esa_cli.storage.library import Library
from esa_cli.system.files import LIBRARY_MARKER

TINY = [*TINY_MODEL, "--set", "window.chunk=128"]
GATE = "The gate opens at nine, and the keeper has the only key. " * 25
BOAT = "A grey boat lies at the pier, and nobody knows whose it is. " * 25
LONG = " ".join(f"In year {year} the mill ground {year * 7} sacks." for year in range(150))
QUESTION = "When does the gate open?"
PASSAGE = {
    "document", "source", "page", "line", "chapter", "title", "link", "start", "end", "text",
    "weight",
}  # fmt: skip

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork, no such signals")


@pytest.fixture(autouse=True)
def small_segments(surroundings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of a few hundred tokens have several segments."""
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setattr("esa_cli.qa.answering.session.FEED", 128)
    monkeypatch.setattr("esa_cli.qa.ingestion.kv_cache_ingest.SEGMENT", 256)
    monkeypatch.setattr("esa_cli.qa.presets.resolved_preset.SEGMENT", 256)
    for name, text in (("gate.txt", GATE), ("boat.txt", BOAT), ("long.txt", LONG)):
        Path(name).write_text(text, "utf-8")


@pytest.fixture
def esa(capsys: pytest.CaptureFixture[str]) -> Esa:
    run = runner(capsys)
    return lambda *words: run(*words, *(TINY if words[0] in ("ask", "ingest") else ()))


def files(root: Path) -> set[str]:
    """The library's files but the mark, catalogue, locks and stamps."""
    found = (path for path in root.rglob("*") if path.is_file() and path.name != LIBRARY_MARKER)
    passed = (".lock", ".used", ".sqlite", ".sqlite-journal")
    return {path.name for path in found if path.suffix not in passed}


def test_a_document_is_read_once_and_then_asked(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = esa("ingest", "gate.txt", "--rows", "native")
    assert first.code == 0
    assert first.out.splitlines()[0].split() == ["id", "tokens", "size", "read", "in", "document"]
    (entry,) = Library().entries()
    assert first.out.splitlines()[1].startswith(entry.id)
    assert "before" not in first.out
    again = esa("ingest", "gate.txt", "--rows", "native")
    assert "before" in again.out
    asked = esa("ask", "gate.txt", QUESTION, "--json")
    assert asked.code == 0
    (document,) = asked.data["documents"]
    assert (document["id"], document["read"], document["read_s"]) == (entry.id, True, 0)
    assert asked.data["timing"]["ingest_tokens_per_s"] == 0
    assert asked.data["evidence"]
    for passage in asked.data["evidence"]:
        assert set(passage) == PASSAGE
        text = Path(passage["source"]).read_text("utf-8")
        assert text[passage["start"] : passage["end"]] == passage["text"]
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "none"))
    alone = esa("ask", "gate.txt", QUESTION, "--json")
    assert alone.data["documents"][0]["read_s"]
    assert alone.data["documents"][0]["id"] is None
    assert alone.data["answer"] == asked.data["answer"]
    assert alone.data["evidence"] == asked.data["evidence"]
    assert not (tmp_path / "none").exists(), "to look whether it is there makes no library"


def test_answers_are_the_same_from_an_imported_document(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = tiny_finder(tmp_path / "finder")
    assert esa("ingest", "gate.txt", "boat.txt", *more).code == 0
    question = ["ask", "--library", QUESTION, "--json", *more]
    asked = esa(*question).data
    found = esa("find", "--library", QUESTION, "--json", *more, *TINY).data
    assert esa("library", "copy", "library", "books.tar").code == 0
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "other"))
    assert esa("library", "copy", "books.tar", "library").code == 0
    assert [row.split()[1] for row in esa("library", "verify").out.splitlines()] == ["good"] * 2
    again = esa(*question).data
    assert asked["evidence"]
    for part in ("answer", "evidence"):
        assert again[part] == asked[part]
    ids = [{one["id"] for one in data["documents"]} for data in (asked, again)]
    assert ids[0] == ids[1]
    found_again = esa("find", "--library", QUESTION, "--json", *more, *TINY).data
    assert found_again["passages"] == found["passages"]


def test_the_library_is_asked_and_another_models_document_left_out(esa: Esa) -> None:
    esa("ingest", "gate.txt", "boat.txt")
    esa("ingest", "long.txt", "--set", "window.local=32")
    asked = [esa("ask", "--library", QUESTION, "--json", "-q") for _ in range(2)]
    assert asked[0].code == 0
    names = [document["name"] for document in asked[0].data["documents"]]
    assert names == ["gate.txt", "boat.txt"], "in the order in which they were read"
    assert "left out: long.txt" in asked[0].err
    assert "was ingested with another model or other settings" in asked[0].err
    assert asked[1].data["answer"] == asked[0].data["answer"]
    assert asked[1].data["evidence"] == asked[0].data["evidence"]
    both = esa("ask", "--library", "long.txt", QUESTION, "--json")
    assert [document["read_s"] > 0 for document in both.data["documents"]] == [True, False, False]


def test_what_was_read_before_an_error_is_printed(
    esa: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Asker.ingest

    def ingest(self: Asker, source: Any, progress: Any = None) -> Any:
        if source.name == "boat.txt":
            raise ResourceError("boat.txt is too long", "cut it")
        return real(self, source, progress)

    monkeypatch.setattr(Asker, "ingest", ingest)
    done = esa("ingest", "gate.txt", "boat.txt", "--json")
    assert done.code == 6
    assert [one["name"] for one in done.data["documents"]] == ["gate.txt"]


def in_child(pipe: int, arguments: list[str]) -> None:
    """Runs esa as a process of its own would, what it says going to the pipe."""
    for stream in (1, 2):
        os.dup2(pipe, stream)
    sys.stdout, sys.stderr = (open(stream, "w", closefd=False) for stream in (1, 2))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["esa", *arguments, *TINY]
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def test_a_limit_on_the_size_of_files_is_a_full_disk(esa: Esa, tmp_path: Path) -> None:
    assert esa("ingest", "boat.txt").code == 0
    before = files(tmp_path / "library")
    for command in (["ingest", "gate.txt"], ["ask", "gate.txt", QUESTION, "--keep"]):
        with small_files(20_000):
            done = esa(*command)
        assert done.code == 6, done.err
        where = f"the library in {tmp_path / 'library'} cannot be changed: File too large"
        assert where in done.err
        assert "esa library prune" in done.err
        Library().prune()
        assert files(tmp_path / "library") == before
    assert esa("ingest", "gate.txt").code == 0
    assert len(Library().entries()) == 2


KILLS = 4


@needs_fork
@pytest.mark.process
def test_an_ingest_killed_at_random_moments_answers_as_one_that_was_not(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "whole"))
    started = time.perf_counter()
    assert esa("ingest", "long.txt").code == 0
    needs = time.perf_counter() - started
    wanted = esa("ask", "long.txt", QUESTION, "--json").data
    root, draw, hits = tmp_path / "killed", random.Random(3), 0
    monkeypatch.setenv("ESA_LIBRARY", str(root))
    with open(os.devnull, "w") as nowhere:
        ingest = partial(in_child, nowhere.fileno(), ["ingest", "long.txt"])
        for _ in range(20 * KILLS):
            was_at_it = killed(ingest, draw.uniform(0, needs))
            needs *= 1.1 if was_at_it else 0.8  # as busy as the machine is now
            if not any(name.endswith(".seg") for name in files(root)) or Library().entries():
                for entry in Library().entries():
                    assert Library().verify(entry) == []
                    Library().remove(entry)
                continue
            hits += 1
            assert esa("ingest", "long.txt").code == 0
            found = esa("ask", "long.txt", QUESTION, "--json").data
            assert not found["documents"][0]["read_s"]
            assert (found["answer"], found["evidence"]) == (wanted["answer"], wanted["evidence"])
            assert esa("library", "prune").code == 0
            assert esa("library", "rm", "long.txt", "--yes").code == 0
            assert files(root) == set()
            if hits == KILLS:
                return
    raise AssertionError("the kills came too early or too late to mean anything")


def test_ingest_as_json_and_in_both_kinds_of_rows(esa: Esa) -> None:
    done = esa("ingest", "gate.txt", "boat.txt", "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert set(done.data) == {"documents", "left_out"}
    for row, name in zip(done.data["documents"], ("gate.txt", "boat.txt"), strict=True):
        assert set(row) == {
            "id", "name", "source", "tokens", "bytes", "rows", "read_s", "missing"
        }  # fmt: skip
        assert (row["name"], row["rows"]) == (name, "int8")
        assert row["tokens"] > 256
    bits = esa("ingest", "gate.txt", "--rows", "native", "--json").data["documents"][0]
    assert bits["rows"] == "native"
    assert bits["read_s"] > 0, "rows of eight bits are not bit for bit"
    assert bits["bytes"] > done.data["documents"][0]["bytes"]
    only = esa("library", "rm", done.data["documents"][0]["id"], "--yes")
    assert only.code == 0
    other = esa("ingest", "gate.txt", "--json")
    assert other.data["documents"][0]["rows"] == "native"
    assert f"for --rows int8 run `esa library rm {bits['id']}` first" in other.err
