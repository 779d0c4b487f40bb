"""`esa ask --read` and `--no-keep`: what happens with documents that the preset's finder has not
read. Tiny random model, and an untrained finder of it."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_fixtures import cache, esa, finder, surroundings
from command import TINY, Result, fail
from fake_asker import FakeAsker

from esa_cli.apps.cli import inputs
from esa_cli.apps.cli import open_esa as opening
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import Document
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.late_interaction import PIECE
from esa_cli.qa.planning.plan import Planner
from esa_cli.storage.library import Library
from esa_cli.storage.library.manifest import SEGMENT

__all__ = ["cache", "esa", "finder", "surroundings"]

GATE = "The gate opens at nine, and the keeper has the only key. " * 25
BOAT = "A grey boat lies at the pier, and nobody knows whose it is. " * 25
QUESTION = "When does the gate open?"
ASK = ("ask", "gate.txt", QUESTION)
NOT_YET = "esa: not read yet: gate.txt. This answer was found by words alone; reading now"
Run = Callable[..., Result]


@pytest.fixture
def run(
    surroundings: None, esa: Run, finder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """`esa` with a preset that has a finder, in a folder and with a library of its own."""
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    Path("gate.txt").write_text(GATE, "utf-8")
    Path("boat.txt").write_text(BOAT, "utf-8")
    text = ("--set", "answer.from=text", "--set", f"answer.finder={finder}")

    return lambda command, *more: esa(command, *TINY, *text, *more)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Standard output is a terminal."""
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: stream is sys.stdout)


def reading_ends_by(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], at: int = 0
) -> None:
    """The error is raised once `at` tokens are read."""

    def progress(self: opening.PrefillDisplay, done: int, total: int) -> None:
        if done >= at:
            raise error

    monkeypatch.setattr(opening.PrefillDisplay, "progress", progress)


def answers(monkeypatch: pytest.MonkeyPatch, read: str) -> None:
    """Once all documents are read, answers are `read`."""
    real = Esa.ask

    def ask(self: Esa, *given: Any, on_text: Any = None, **more: Any) -> Reply:
        reply = real(self, *given, **more)
        reply = replace(reply, text=read) if reply.read else reply
        if on_text is not None:
            on_text(reply.text)
        return reply

    monkeypatch.setattr(Esa, "ask", ask)


@pytest.mark.usefixtures("terminal")
def test_the_answer_comes_at_once_and_again_after_reading(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = run(*ASK, "--read", "never").out.strip()
    answers(monkeypatch, "At nine.")
    done = run(*ASK, "--report", "page.html")
    assert done.code == 0
    assert done.out.splitlines() == [words, "At nine."]
    said = done.err.splitlines()
    place = [n for n, line in enumerate(said) if NOT_YET in line]
    marked = said.index("esa: the answer after reading:")
    passages = [n for n, line in enumerate(said) if line.startswith("  gate.txt, line")]
    assert len(place) == 1
    assert [n < place[0] for n in passages] == [True] * 3 + [False] * 3
    assert place[0] < marked < passages[3]
    assert "asked without being read" not in done.err
    assert "reading" in "".join(said[place[0] + 1 : marked])
    assert "tokens read in" in said[-2]
    assert said[-1] == "esa: wrote page.html"
    assert "At nine." in Path("page.html").read_text("utf-8")
    (entry,) = Library().entries()
    assert entry.rows == "index"
    again = run(*ASK)
    assert again.out == "At nine.\n"
    assert NOT_YET not in again.err
    assert f"gate.txt was read before ({entry.id})" in again.err


@pytest.mark.usefixtures("terminal")
def test_where_reading_changes_nothing_one_line_says_so(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    same: list[Reply] = []
    real = Esa.ask

    def ask(self: Esa, *given: Any, **more: Any) -> Reply:
        same.append(real(self, *given, **more))
        return same[0]

    monkeypatch.setattr(Esa, "ask", ask)
    done = run(*ASK, "--top", "0")
    assert len(same) == 2
    assert [reply.read for reply in same] == [False, True]
    assert done.out.count("\n") == 1
    changed = "reading changed nothing: the same answer, the same first passage"
    assert done.err.count(changed) == 1
    assert "after reading:" not in done.err
    assert "gate.txt, line" not in done.err


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("keep", [(), ("--no-keep",)])
def test_ctrl_c_while_it_is_read_leaves_the_first_answer(
    run: Run, monkeypatch: pytest.MonkeyPatch, keep: Sequence[str]
) -> None:
    with monkeypatch.context() as patch:
        reading_ends_by(patch, KeyboardInterrupt)
        done = run(*ASK, *keep, "--report", "page.html")
    assert done.code == 130
    assert done.out == run(*ASK, "--read", "never", "--no-keep").out
    said = done.err.splitlines()
    nothing = "; nothing of the document is stored yet, so the next reading begins anew"
    rest = "" if keep else nothing
    assert said[-3] == f"esa: the answer above was found by words alone{rest}"
    assert said[-2:] == ["esa: wrote page.html", "esa: interrupted"]
    assert Path("page.html").exists()
    assert Library().entries() == []


@pytest.mark.usefixtures("terminal")
def test_ctrl_c_says_how_many_tokens_are_stored(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("gate.txt").write_text(GATE * 40, "utf-8")
    with monkeypatch.context() as patch:
        reading_ends_by(patch, KeyboardInterrupt, at=SEGMENT)
        done = run(*ASK)
    rest = "the next reading goes on after the first 4,096 tokens, which are stored"
    assert done.err.splitlines()[-2].endswith(f"by words alone; {rest}")
    assert run(*ASK, "-q").code == 0
    assert [entry.name for entry in Library().entries()] == ["gate.txt"]


@pytest.mark.usefixtures("terminal")
def test_where_the_disk_is_full_nothing_is_stored_unless_it_must_be(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kept = run(*ASK, "--no-keep")
    monkeypatch.setattr(os, "fsync", full)
    for command in (ASK, (*ASK, "--read", "first"), ("chat", "gate.txt")):
        monkeypatch.setattr("sys.stdin", io.StringIO())
        done = run(*command)
        assert done.code == 0
        assert "esa: what is read is not kept: the library in " in done.err
        assert "No space left" in done.err
        assert command[0] == "chat" or done.out.splitlines()[-1] == kept.out.splitlines()[-1]
    Path("two.txt").write_text(GATE * 2, "utf-8")
    done = run("ask", "gate.txt", "two.txt", QUESTION, "--read", "first")
    assert done.err.count("No space left") == 1
    done = run(*ASK, "--keep")
    assert done.code == 6
    assert "No space left" in done.err
    assert done.err.rstrip().endswith("; --no-keep stores nothing")
    done = run("ingest", "gate.txt")
    assert done.code == 6
    assert "--no-keep" not in done.err
    assert run(*ASK, "--no-keep").code == 0
    assert Library().entries() == []


@pytest.mark.parametrize("terminal", [True, False])
def test_first_reads_before_its_only_answer(
    run: Run, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: terminal)
    answers(monkeypatch, "At nine.")
    done = run(*ASK, "--read", "first", "-q")
    assert (done.code, done.out) == (0, "At nine.\n")
    assert NOT_YET not in done.err


def test_a_script_gets_one_answer_the_one_after_reading(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, "At nine.")
    assert run(*ASK).out == "At nine.\n"
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True)
    data = run(*ASK, "--json", "--no-keep").data
    assert (data["answer"], data["read"]) == ("At nine.", True)
    (document,) = data["documents"]
    assert (document["read"], document["read_s"], document["id"]) == (
        True, 0, Library().entries()[0].id
    )  # fmt: skip


def test_never_asks_the_words_alone(run: Run) -> None:
    done = run(*ASK, "--read", "never", "--json")
    (document,) = done.data["documents"]
    assert (done.data["read"], document["read"], document["read_s"]) == (False, False, 0)
    assert done.data["timing"]["ingest_tokens_per_s"] == 0
    assert "asked without being read" in done.err
    assert not Path("library").exists()
    assert run("ingest", "gate.txt").code == 0
    assert run(*ASK, "--read", "never", "--json").data["read"], "what is there is used"


@pytest.mark.usefixtures("terminal")
def test_of_several_documents_those_are_read_that_have_not_been(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("ingest", "boat.txt").code == 0
    answers(monkeypatch, "At nine.")
    done = run("ask", "gate.txt", "boat.txt", QUESTION, "--no-keep")
    assert "esa: not read yet: 1 of 2 documents." in done.err
    assert done.out.splitlines()[1:] == ["At nine."]
    assert len(Library().entries()) == 1
    assert done.err.count("reading 1,") == 1
    assert done.err.count("boat.txt was read before") == 1


@pytest.mark.parametrize("command", [ASK, ("batch", "q.jsonl", "--out", "a.jsonl"), ("chat",)])
@pytest.mark.parametrize(
    ("keep", "kept"), [((), True), (("--keep",), True), (("--no-keep",), False)]
)
def test_what_is_read_for_the_finder_is_kept_unless_told_otherwise(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], keep: str, kept: bool
) -> None:
    import io

    Path("q.jsonl").write_text(json.dumps({"question": QUESTION, "documents": ["gate.txt"]}))
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{QUESTION}\n"))
    words = (*command, "gate.txt") if command == ("chat",) else command
    assert run(*words, *keep).code == 0
    assert [entry.rows for entry in Library().entries()] == ["index"] * kept
    if command[0] == "batch":
        assert json.loads(Path("a.jsonl").read_text("utf-8"))["read"] is True


def test_rows_are_kept_only_when_told(run: Run) -> None:
    rows = ("--set", "answer.from=rows")
    assert run(*ASK, *rows).code == 0
    assert run(*ASK, "--method", "esa", "--no-keep").code == 0
    assert not Path("library").exists()
    assert run(*ASK, *rows, "--keep").code == 0
    assert [entry.rows for entry in Library().entries()] == ["int8"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="everything can be written")
def test_a_library_that_cannot_be_written_is_done_without(run: Run) -> None:
    folder = Path("library")
    folder.mkdir(mode=0o500)
    done = run(*ASK, "--json")
    assert done.data["read"]
    assert "what is read is not kept" in done.err
    assert run(*ASK, "--keep").code != 0


def test_a_library_that_cannot_be_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "writable", False)
    done = run(*ASK, "--json")
    assert done.data["read"]
    assert "what is read is not kept" in done.err
    assert Library().entries() == []
    assert run(*ASK, "--keep").code == 0
    assert len(Library().entries()) == 1


def test_what_read_does_not_go_with(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "esa_cli.qa.opening.KnownModel.load", lambda *_, **__: pytest.fail("loaded")
    )
    fail(run(*ASK, "--read", "never", "--keep"), 2, "--read never has nothing to keep")
    for rows in (("--method", "esa"), ("--set", "answer.from=rows")):
        fail(run(*ASK, "--read", "never", *rows), 2, "--read never needs answers from passages")
    fail(run(*ASK, "--read", "later"), 2, "--read")


def test_the_plan_has_the_bytes_of_the_index(run: Run) -> None:
    data = run("plan", "gate.txt", "boat.txt", "--json").data
    assert run("ingest", "gate.txt", "boat.txt").code == 0
    stored = sum(entry.nbytes for entry in Library().entries())
    assert stored * 0.5 < data["stored_bytes"] < stored * 2
    assert "index in the library" in run("plan", "gate.txt").out
    rows = ("--set", "answer.from=rows")
    assert run("plan", "gate.txt", "--json", *rows).data["stored_bytes"] is None
    assert "index" not in run("plan", "gate.txt", *rows).out


class Interrupted(FakeAsker):
    """Ctrl-C while the document `stop` is read."""

    def __init__(self, stop: str, answers_unread: bool) -> None:
        super().__init__()
        self.stop, self.answers_unread = stop, answers_unread

    def ingest(self, source: Any, progress: Any = None) -> Any:
        if source.name == self.stop:
            raise KeyboardInterrupt
        return super().ingest(source, progress)


def test_ctrl_c_before_a_conversation_ends_the_reading_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    documents = [Document(name, name, name, "utf-8", 1) for name in "abc"]
    asker = Interrupted("b", True)
    books = inputs.ingest_or_open(asker, documents, Reporter())
    assert books == ["a", "b", "c"]
    assert asker.ingested == ["a"]
    assert capsys.readouterr().err.count("found by its words alone") == 1
    with pytest.raises(KeyboardInterrupt):
        inputs.ingest_or_open(Interrupted("b", False), documents, Reporter())


def test_reading_alone_needs_no_adapter(run: Run) -> None:
    missing = ("--set", "answer.adapter=none")
    assert run("ingest", "gate.txt", *missing).code == 0
    Path("town").mkdir()
    Path("boat.txt").rename("town/boat.txt")
    assert run("ingest", "town", "--prune", *missing).code == 0
    assert len(Library().entries()) == 2
    fail(run(*ASK, *missing), 4, "answer.adapter must be a folder")


@pytest.mark.usefixtures("terminal")
def test_of_a_folder_only_the_best_documents_are_read(run: Run) -> None:
    Path("town").mkdir()
    for name in ("gate.txt", "boat.txt"):
        Path(name).rename(Path("town", name))
    done = run("ask", "town", QUESTION, "--set", "answer.documents=1")
    assert done.code == 0, done.err
    assert "searched 2 documents by their words, opened the best 1" in done.err
    assert NOT_YET in done.err
    assert [entry.name for entry in Library().entries()] == ["gate.txt"]
    again = run("ask", "town", QUESTION, "--set", "answer.documents=1")
    assert NOT_YET not in again.err, "it was read before"
    assert NOT_YET not in again.err


def test_the_speed_of_reading_is_kept_unless_the_reading_was_resumed() -> None:
    class Timed(Planner):
        def __init__(self) -> None:
            self.kept: list[int] = []

        def plan(self, tokens: int) -> Any:
            return SimpleNamespace(tokens=tokens, seconds=1.0)

        def remember(self, plan: Any, seconds: float) -> None:
            self.kept.append(plan.tokens)

    planner = Timed()
    display = opening.PrefillDisplay(planner, Reporter(quiet=True))
    document = SimpleNamespace(name="a.txt", source="a.txt", missing=())
    for done in ([PIECE, 2 * PIECE, 5000], [2 * PIECE, 5001], [100]):
        display.started(document, done[-1], None)  # type: ignore[arg-type]
        for tokens in done:
            display.progress(tokens, done[-1])
    assert planner.kept == [5000]
