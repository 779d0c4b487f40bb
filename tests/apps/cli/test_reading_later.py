"""`esa ask --read` and `--no-keep`: what happens with documents that the preset's finder has not
read. Tiny random model, and an untrained finder of it."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_fixtures import cache, esa, finder, surroundings
from command import TINY, Result
from fake_asker import FakeAsker

from esa_cli.apps.cli import inputs
from esa_cli.apps.cli import open_esa as opening
from esa_cli.apps.cli.commands import mcp_command
from esa_cli.apps.cli.options.options import ModelOptions
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


def full(file: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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
    nothing = "; of the reading, 0 tokens are stored"
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
    assert done.err.splitlines()[-2].endswith("; of the reading, 4,096 tokens are stored")
    assert run(*ASK, "-q").code == 0
    assert [entry.name for entry in Library().entries()] == ["gate.txt"]


@pytest.mark.usefixtures("terminal")
def test_where_the_disk_is_full_nothing_is_stored_unless_it_must_be(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_assistant_asks_on_where_the_disk_is_full(
    run: Run, finder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["answer.from=text", f"answer.finder={finder}", "dtype=float32"]
    model = ModelOptions("tiny-random", settings=settings, device="cpu")
    monkeypatch.setattr(os, "fsync", full)
    with ExitStack() as stack:
        load = mcp_command._loader(model.load_preset(), model, None, Reporter(True), stack)
        book = load().ingest("gate.txt")
    assert book.read
    assert book.entry is None


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
