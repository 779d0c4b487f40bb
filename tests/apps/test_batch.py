"""Questions from a file: order, one reading a set, stops and kills, bad lines, exit codes."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sample_files
import typer.testing
from fake_asker import FakeAsker, fake_book

from esa_cli.apps.batch.batch_questions import order, read_questions
from esa_cli.apps.batch.batch_run import answers_file, join_answers, run_batch
from esa_cli.apps.cli.commands import batch_command as batch
from esa_cli.apps.cli.commands.ask_command import ask_lines
from esa_cli.apps.cli.inputs import numbered_lines
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.open_books import MOST_SCHEDULED
from esa_cli.documents.document import read_document
from esa_cli.errors import PARTIAL, DocumentError, ResourceError, UsageError
from esa_cli.system import files
from esa_cli.system.jsonl import OrderedJsonLines

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(f"text {name}", "utf-8")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*rows: Any, name: str = "q.jsonl") -> Path:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) + "\n", "utf-8")
        return path

    return write


def q(question: str, *documents: str, **more: Any) -> dict[str, Any]:
    return {"question": question, **({"documents": list(documents)} if documents else {}), **more}


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def go(
    asker: Any,
    path: Path,
    out: Path,
    *,
    limit: int | None = None,
    retry: bool = False,
    default: tuple[str, ...] = (),
    **settings: Any,
) -> OrderedJsonLines:
    questions = read_questions(path, default, settings)
    with answers_file(out, questions, retry) as answers:
        run_batch(asker, questions, answers, {"evidence": 2}, limit=limit)
    return answers


MIXED = [
    q("1", "a.txt"),
    q("2", "b.txt"),
    q("3", "a.txt"),
    q("4", "b.txt", "a.txt"),
    q("5", "a.txt"),
]


def test_rows_come_in_the_order_of_the_questions_and_sets_are_read_once(
    write: Write, tmp_path: Path
) -> None:
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    go(asker, write(*MIXED), out)
    assert [row["question"] for row in rows(out)] == ["1", "2", "3", "4", "5"]
    assert [call["question"] for call in asker.calls] == ["1", "3", "5", "4", "2"]
    assert [Path(source).name for source in asker.ingested] == ["a.txt", "b.txt"]
    assert [call["books"] for call in asker.calls][-2] == ["text b", "text a"]
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.jsonl"]


def test_a_row_has_everything(write: Write, tmp_path: Path) -> None:
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    go(asker, write(q("Who?", "a.txt", id="x1"), q("Wo, ü?", "a.txt")), out)
    first, second = rows(out)
    assert set(first) == {
        "id", "question", "documents", "answer", "found", "cut", "answered_from", "read",
        "quotation", "evidence", "tokens", "timing", "key",
    }  # fmt: skip
    assert (first["id"], second["id"]) == ("x1", 2)
    assert first["documents"] == ["a.txt"]
    assert first["answer"] == "You asked: Who?"
    assert [one["document"] for one in first["evidence"]] == ["book0.txt", "book1.txt"]
    assert "ü" in out.read_text("utf-8")


def test_documents_are_relative_to_the_file_or_from_the_command(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/d.txt").write_text("text d", "utf-8")
    path = write(q("1", "d.txt"), q("2"), name="sub/q.jsonl")
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    go(asker, path, out, default=("c.txt",))
    assert [call["books"] for call in asker.calls] == [["text d"], ["text c"]]
    assert [row["documents"] for row in rows(out)] == [["d.txt"], ["c.txt"]]


def test_folders_and_patterns(write: Write, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("d.txt", "e.txt"):
        (tmp_path / "sub" / name).write_text(f"text {name}", "utf-8")
    path = write(q("1", "sub"), q("2", "sub/[e]*.txt"), q("3", "*.none"), q("4", "a.txt"))
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    go(asker, path, out)
    asked = [call["books"] for call in asker.calls]
    assert asked == [["text d.txt", "text e.txt"], ["text e.txt"], ["text a"]]
    assert "no file matches" in rows(out)[2]["error"]
    assert rows(out)[0]["documents"] == ["sub"]
    assert len(asker.ingested) == 3


BAD = [
    ("{", "must be JSON"),
    ("[1]", "must be a JSON object"),
    ('{"documents": ["a.txt"]}', '"question" must be a text'),
    ('{"question": "  ", "documents": ["a.txt"]}', '"question" must be a text that is not empty'),
    ('{"question": "x"}', "documents must be named"),
    ('{"question": "x", "documents": "a.txt"}', "must be a list"),
    ('{"question": "x", "documents": []}', "must be a list"),
    ('{"question": "x", "documents": ["-"]}', "standard input"),
    ('{"question": "\\ud800", "documents": ["a.txt"]}', "surrogate"),
    ("[" * 100_000, "must be JSON"),
    ('{"question": "x", "documents": ["a.txt"], "id": NaN}', "must be finite, got NaN"),
    ('{"question": "x", "documents": ["a.txt"], "id": [-Infinity]}', "got -Infinity"),
    ('{"question": "x", "documents": ["a.txt"], "id": 1e999}', "must be finite, got 1e999"),
    ('{"question": "x", "question": "y", "documents": ["a.txt"]}', '"question" is given twice'),
    ('{"question": "x", "documents": ["a.txt"], "id": {"a": 1, "a": 1}}', '"a" is given twice'),
]


@pytest.mark.parametrize(("line", "fault"), BAD)
def test_a_bad_line_has_an_error_and_the_others_go_on(
    write: Write, tmp_path: Path, line: str, fault: str
) -> None:
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    answers = go(asker, write(q("1", "a.txt"), "", line, q("2", "a.txt")), out)
    good, bad, last = rows(out)
    assert fault in bad["error"]
    assert "line 3" in bad["error"]
    assert "answer" not in bad
    assert (good["answer"], last["answer"]) == ("You asked: 1", "You asked: 2")
    assert answers.failed == {1}
    assert [Path(source).name for source in asker.ingested] == ["a.txt"]


@pytest.mark.parametrize("content", [b"", b"\n \n", b"hello\nworld\n", b"\xff\xfe\x00"])
def test_a_file_without_any_question_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(content)
    with pytest.raises(DocumentError):
        read_questions(path, ("a.txt",), {})


def test_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "1"}\r\n{"question": "2"}\r\n')
    assert [(one.question, one.fault) for one in read_questions(path, ("a.txt",), {})] == [
        ("1", ""),
        ("2", ""),
    ]


def test_missing_documents_and_failing_questions(write: Write, tmp_path: Path) -> None:
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    asker.failures["3"] = ResourceError("no room", "buy some")
    path = write(q("1", "gone.txt"), q("2", "a.txt", "gone.txt"), q("3", "a.txt"), q("4", "a.txt"))
    answers = go(asker, path, out)
    found = rows(out)
    assert "there is no document" in found[0]["error"]
    assert "gone.txt" in found[1]["error"]
    assert (found[2]["error"], found[2]["hint"]) == ("no room", "buy some")
    assert found[3]["answer"] == "You asked: 4"
    assert answers.failed == {0, 1, 2}


def test_what_is_no_mistake_of_a_question_ends_the_run(write: Write, tmp_path: Path) -> None:
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    asker.failures["2"] = RuntimeError("a bug")
    with pytest.raises(RuntimeError):
        go(asker, write(q("1", "a.txt"), q("2", "a.txt")), out)
    assert [row["question"] for row in rows(out)] == ["1"]


class Dying(FakeAsker):
    """Is interrupted at one question."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def ask(self, question: str, books: Any, **more: Any) -> Any:
        if len(self.calls) == self.at:
            raise KeyboardInterrupt
        return super().ask(question, books, **more)


def strip(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "timing"} for row in found]


@pytest.mark.parametrize("at", range(5))
def test_an_interrupted_run_goes_on_and_asks_nothing_twice(
    write: Write, tmp_path: Path, at: int
) -> None:
    path, whole, out = write(*MIXED), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    go(FakeAsker(), path, whole)
    dying, second = Dying(at), FakeAsker()
    with pytest.raises(KeyboardInterrupt):
        go(dying, path, out)
    so_far = [row["question"] for row in rows(out)]
    assert so_far == ["1", "2", "3", "4", "5"][: len(so_far)]
    go(second, path, out)
    assert out.read_bytes() == whole.read_bytes()
    asked = [call["question"] for call in (*dying.calls, *second.calls)]
    assert sorted(asked) == ["1", "2", "3", "4", "5"]


def test_half_a_row_is_dropped_wherever_it_was_cut(write: Write, tmp_path: Path) -> None:
    """Every length that a kill may leave of either file."""
    path, whole, out = write(*MIXED), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    part = tmp_path / "out.jsonl.part"
    go(FakeAsker(), path, whole)
    with pytest.raises(KeyboardInterrupt):
        go(Dying(3), path, out)
    done, waiting = out.read_bytes(), part.read_bytes()
    assert waiting
    for file, data in ((out, done), (part, waiting)):
        for length in (*range(12), *range(12, len(data), 37)):
            out.write_bytes(done)
            part.write_bytes(waiting)
            file.write_bytes(data[:length])
            go(FakeAsker(), path, out)
            assert out.read_bytes() == whole.read_bytes()
            assert not part.exists()


CHILD = """
import sys
sys.path[:0] = [{tests!r}, {tests!r} + "/support", {tests!r} + "/apps", {root!r}]
from pathlib import Path
from fake_asker import FakeAsker
from test_batch import go
print("ready", flush=True)
go(FakeAsker(delay=0.001), Path("q.jsonl"), Path("out.jsonl"))
"""


@pytest.mark.process
def test_kills_lose_nothing(write: Write, tmp_path: Path) -> None:
    kinds = itertools.cycle(["a.txt", "b.txt", "c.txt"])
    path = write(*(q(str(number), next(kinds)) for number in range(90)))
    root = Path(__file__).parents[1]
    code = CHILD.format(tests=str(root), root=str(root.parent))
    dice, out, kills = random.Random(0), tmp_path / "out.jsonl", 0
    while kills < 4:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        try:
            child.wait(dice.uniform(0.02, 0.1))
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            kills += 1
        child.communicate()
        if child.returncode == 0:
            break
    assert kills
    asker = FakeAsker()
    go(asker, path, out)
    assert len(asker.calls) < 90
    assert [row["question"] for row in rows(out)] == [str(number) for number in range(90)]


def test_a_finished_file_is_left_as_it_is(write: Write, tmp_path: Path) -> None:
    path, out = write(*MIXED), tmp_path / "out.jsonl"
    go(FakeAsker(), path, out)
    before, asker = out.read_bytes(), FakeAsker()
    go(asker, path, out)
    assert out.read_bytes() == before
    assert not asker.ingested


@pytest.mark.parametrize("changed", ["a.txt", "b.txt", "town/new.txt"])
def test_what_is_about_a_changed_file_is_asked_again(
    write: Write, tmp_path: Path, changed: str
) -> None:
    (tmp_path / "town").mkdir()
    (tmp_path / "town/old.txt").write_text("old", "utf-8")
    names = [["a.txt"], ["b.txt"], ["a.txt", "b.txt"], ["town"], ["c.txt"]]
    path = write(*(q(str(at), *own) for at, own in enumerate(names)))
    out, again = tmp_path / "out.jsonl", FakeAsker()
    go(FakeAsker(), path, out)
    before = rows(out)
    (tmp_path / changed).write_text("changed", "utf-8")
    go(again, path, out)
    about = [str(at) for at, own in enumerate(names) if changed in own or changed[:4] in own]
    assert sorted(call["question"] for call in again.calls) == about
    assert [row["question"] for row in rows(out)] == [row["question"] for row in before]
    go(FakeAsker(), path, out)
    assert not Path(f"{out}.part").exists()


def test_questions_may_be_added_at_the_end(write: Write, tmp_path: Path) -> None:
    out, asker = tmp_path / "out.jsonl", FakeAsker()
    go(FakeAsker(), write(*MIXED), out)
    go(asker, write(*MIXED, q("6", "b.txt")), out)
    assert [call["question"] for call in asker.calls] == ["6"]
    assert len(rows(out)) == 6


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ([MIXED[0], q("other", "b.txt"), *MIXED[2:]], "row 2 answers another question than line 2"),
        ([q("1", "c.txt"), *MIXED[1:]], "row 1 answers another question"),
        ([q("1", "a.txt", id=9), *MIXED[1:]], "row 1 answers"),
        (MIXED[:-1], "no such question any more"),
    ],
)  # fmt: skip
def test_another_questions_file_is_refused(
    write: Write, tmp_path: Path, changed: list[Any], message: str
) -> None:
    out = tmp_path / "out.jsonl"
    go(FakeAsker(), write(*MIXED), out)
    before = out.read_bytes()
    with pytest.raises(UsageError, match=message):
        go(FakeAsker(), write(*changed), out)
    assert out.read_bytes() == before


def test_a_change_behind_what_is_written_is_found_in_the_waiting_rows(
    write: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        go(Dying(3), write(*MIXED), out)
    with pytest.raises(UsageError, match="part answers another question than line 5"):
        go(FakeAsker(), write(*MIXED[:4], q("other", "a.txt")), out)


def test_other_settings_are_refused_and_called_so(write: Write, tmp_path: Path) -> None:
    path, out = write(*MIXED), tmp_path / "out.jsonl"
    go(FakeAsker(), path, out, seed=1)
    with pytest.raises(UsageError, match="the same question under other settings"):
        go(FakeAsker(), path, out, seed=2)


@pytest.mark.parametrize(
    "content",
    [
        '{"a": 1}\n', "text\n", '{"error": "x"}\n{"b": 2}\n', '{"a": 1}', "text", '{"id": 1}',
        '{"index": 1}', "{\n", "[" * 100_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.part"])
@pytest.mark.parametrize("retry", [False, True])
def test_a_file_of_somebody_else_is_not_touched(
    write: Write, tmp_path: Path, content: str, name: str, retry: bool
) -> None:
    out = tmp_path / "out.jsonl"
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(UsageError):
        go(FakeAsker(), write(*MIXED), out, retry=retry)
    assert (tmp_path / name).read_text("utf-8") == content


def test_limit_takes_the_first_and_more_later(write: Write, tmp_path: Path) -> None:
    path, out, second = write(*MIXED), tmp_path / "out.jsonl", FakeAsker()
    go(FakeAsker(), path, out, limit=3)
    assert [row["question"] for row in rows(out)] == ["1", "2", "3"]
    go(second, path, out)
    assert [call["question"] for call in second.calls] == ["4", "5"]
    assert len(rows(out)) == 5


def test_retry_asks_only_what_failed(write: Write, tmp_path: Path) -> None:
    path, out = write(q("1", "a.txt"), q("2", "d.txt"), q("3", "a.txt")), tmp_path / "out.jsonl"
    go(FakeAsker(), path, out)
    go(FakeAsker(), path, out)
    assert "error" in rows(out)[1], "without --retry-failed an error stays"
    (tmp_path / "d.txt").write_text("text d", "utf-8")
    asker = FakeAsker()
    answers = go(asker, path, out, retry=True)
    assert [call["question"] for call in asker.calls] == ["2"]
    assert [row["answer"] for row in rows(out)] == [f"You asked: {n}" for n in (1, 2, 3)]
    assert not answers.failed


def test_a_line_that_was_mended_is_asked_by_a_retry(write: Write, tmp_path: Path) -> None:
    out, asker = tmp_path / "out.jsonl", FakeAsker()
    go(FakeAsker(), write(q("1", "a.txt"), '{"question": "2", "docu', q("3", "new/*.txt")), out)
    path = write(q("1", "a.txt"), q("2", "b.txt"), q("3", "new/*.txt"))
    (tmp_path / "new").mkdir()
    (tmp_path / "new/n.txt").write_text("text n", "utf-8")
    with pytest.raises(UsageError, match="row 2 answers another question"):
        go(FakeAsker(), path, out)
    go(asker, path, out, retry=True)
    assert [row["answer"] for row in rows(out)] == [f"You asked: {n}" for n in (1, 2, 3)]
    assert [call["question"] for call in asker.calls] == ["2", "3"]


def test_a_kill_between_the_two_steps_of_a_retry_loses_nothing(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write(q("1", "a.txt"), q("2", "d.txt"), q("3", "a.txt")), tmp_path / "out.jsonl"
    go(FakeAsker(), path, out)
    real = os.replace

    def once(source: Any, target: Any) -> None:
        real(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", once)
    with pytest.raises(KeyboardInterrupt):
        go(FakeAsker(), path, out, retry=True)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.txt").write_text("text d", "utf-8")
    asker = FakeAsker()
    go(asker, path, out, retry=True)
    assert [call["question"] for call in asker.calls] == ["2"]
    assert [row["answer"] for row in rows(out)] == [f"You asked: {n}" for n in (1, 2, 3)]


class Lacking(FakeAsker):
    """Its books lack what stands in their files."""

    def ingest(self, source: Any, progress: Any = None) -> Any:
        lines = super().ingest(source).splitlines()
        missing = tuple(line for line in lines if line != "whole")
        document = types.SimpleNamespace(name=source.name, missing=missing)
        return types.SimpleNamespace(document=document)


def test_a_row_says_what_its_documents_lack(write: Write, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("page 7\npage 9", "utf-8")
    (tmp_path / "c.txt").write_text("whole", "utf-8")
    out = tmp_path / "out.jsonl"
    go(Lacking(), write(q("1", "a.txt", "b.txt"), q("2", "c.txt")), out)
    first, second = rows(out)
    assert first["missing"] == ["a.txt: text a", "b.txt: page 7", "b.txt: page 9"]
    assert "missing" not in second


def test_a_line_says_what_its_documents_lack() -> None:
    asker, out = Lacking(), io.StringIO()
    books = [asker.ingest(read_document("a.txt"))]
    assert ask_lines(asker, books, [(1, "x")], out, True, reporter=Reporter(True)) == 0
    assert json.loads(out.getvalue())["missing"] == ["a.txt: text a"]


def test_books_that_are_not_needed_are_let_go(write: Write, tmp_path: Path) -> None:
    held: set[int] = set()
    most = 0

    class Book:
        document = fake_book("").document

        def __init__(self) -> None:
            nonlocal most
            held.add(id(self))
            most = max(most, len(held))

        def __del__(self) -> None:
            held.discard(id(self))

    class Counting(FakeAsker):
        def ingest(self, source: Any, progress: Any = None) -> Any:
            return Book()

        def ask(self, question: str, books: Any, **more: Any) -> Any:
            return super().ask(question, ["x"], **more)

    alone = [q(str(n), f"{n}.txt") for n in range(20)]
    go(Counting(), write(*alone), tmp_path / "out.jsonl")
    assert most <= 2
    again = [q("all", *(f"{n}.txt" for n in range(20)))]
    most = 0
    go(Counting(), write(*alone, *again, name="r.jsonl"), tmp_path / "second.jsonl", limit=20)
    assert most <= 2
    pairs = [q(f"{n}!", f"{n}.txt", "x.txt") for n in range(20)]
    go(Counting(), write(*alone, *pairs, name="s.jsonl"), tmp_path / "third.jsonl")
    assert most <= MOST_SCHEDULED + 2


FULL = """
import resource, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/support", {tests!r} + "/apps", {root!r}]
from pathlib import Path
from fake_asker import FakeAsker
from test_batch import go
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
try:
    go(FakeAsker(), Path("q.jsonl"), Path("out.jsonl"))
except BaseException as error:
    print(type(error).__name__, error.hint, sep=": ")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of files")
@pytest.mark.parametrize("room", [100, 900, 1700])
def test_a_full_disk_is_said_and_the_same_command_goes_on(
    write: Write, tmp_path: Path, room: int
) -> None:
    """Files that really cannot grow: what closing them says does not hide what was said first."""
    path, whole, out = write(*MIXED), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    go(FakeAsker(), path, whole)
    assert len(whole.read_bytes()) > 1700
    tests = Path(__file__).parents[1]
    code = FULL.format(tests=str(tests), root=str(tests.parent), room=room)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "ResourceError: free some space; the same command goes on\n", done.stderr
    assert done.stderr == ""
    asker = FakeAsker()
    go(asker, path, out)
    assert out.read_bytes() == whole.read_bytes()
    assert len(asker.calls) < 5 or room == 100


def greedy(sets: list[set[str]]) -> list[int]:
    """The rule of `order`, told by loops."""
    found: list[int] = []
    while len(found) < len(sets):
        read = {path for at in found for path in sets[at]}
        left = [at for at in range(len(sets)) if at not in found]
        sharing = [at for at in left if sets[at] & read]
        found.append(min(sharing, key=lambda at: (len(sets[at] - read), at), default=left[0]))
    return found


def test_the_order_is_the_rule() -> None:
    dice = random.Random(0)
    for _ in range(300):
        names = "abcdefghijkl"[: dice.randint(1, 12)]
        sets = [set(dice.choices(names, k=dice.randint(0, 4))) for _ in range(dice.randint(0, 12))]
        assert list(order(sets)) == greedy(sets)


def documents(count: int) -> list[str]:
    for number in range(count):
        Path(f"{number}.txt").write_text(f"text {number}", "utf-8")
    return [f"{number}.txt" for number in range(count)]


def test_sets_that_share_documents_are_asked_together(write: Write, tmp_path: Path) -> None:
    names, asker = documents(20), FakeAsker()
    path = write(*(q(f"of {name}", name) for name in names), q("of all", *names))
    go(asker, path, tmp_path / "out.jsonl")
    assert [call["question"] for call in asker.calls][:3] == ["of 0.txt", "of all", "of 1.txt"]
    assert len(asker.ingested) == 20
    assert len(rows(tmp_path / "out.jsonl")) == 21


def test_what_cannot_stay_open_is_read_again(write: Write, tmp_path: Path) -> None:
    names, asker = documents(2 * MOST_SCHEDULED), FakeAsker()
    pairs = [q(f"{a} {b}", a, b) for a, b in itertools.combinations(names, 2)]
    go(asker, write(*pairs), tmp_path / "out.jsonl")
    assert len(asker.ingested) > len(names)
    assert all(
        row["answer"] == f"You asked: {row['question']}" for row in rows(tmp_path / "out.jsonl")
    )


class Book:
    """As text, but it can be seen when it is let go."""

    def __init__(self, text: str, document: Any) -> None:
        self.text, self.document = text, document


class Small(FakeAsker):
    """Has room for so many books."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.books_room, self.alive = room, weakref.WeakSet[Any]()

    def ingest(self, source: Any, progress: Any = None) -> Any:
        if len(self.alive) == self.books_room:
            raise ResourceError("no room")
        text = super().ingest(source)
        book = Book(text, text.document)
        self.alive.add(book)
        return book

    def ask(self, question: str, books: Any, **more: Any) -> Any:
        return super().ask(question, [book.text for book in books], **more)


def test_where_memory_is_short_only_the_present_set_stays(write: Write, tmp_path: Path) -> None:
    names, out, asker = documents(5), tmp_path / "out.jsonl", Small(3)
    pairs = [q(f"{a} {b}", a, b) for a, b in itertools.combinations(names, 2)]
    go(asker, write(*pairs), out)
    assert len(asker.ingested) > 5
    assert [row.get("error") for row in rows(out)] == [None] * 10
    go(Small(3), write(q("all", *names), name="r.jsonl"), tmp_path / "second.jsonl")
    assert rows(tmp_path / "second.jsonl")[0]["error"] == "no room"


def test_a_text_in_two_files_is_read_once(write: Write, tmp_path: Path) -> None:
    Path("copy.txt").write_text("text a", "utf-8")
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    go(asker, write(q("1", "a.txt", "copy.txt"), q("2", "copy.txt")), out)
    assert [Path(source).name for source in asker.ingested] == ["a.txt"]
    assert [call["books"] for call in asker.calls] == [["text a"], ["text a"]]
    (left_out,) = rows(out)[0]["left_out"]
    assert left_out["why"].endswith("copy.txt: the same text again, asked once")
    assert "left_out" not in rows(out)[1]


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """A folder with a text, a scanned PDF and an empty file."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "d.txt").write_text("text d", "utf-8")
    (folder / "scan.pdf").write_bytes(sample_files.pdf([None]))
    (folder / "empty.txt").write_bytes(b"")
    return folder


def test_what_a_folder_holds_and_cannot_be_read_is_left_out(
    write: Write, tmp_path: Path, scans: Path
) -> None:
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    path = write(q("1", "docs"), q("2", "docs/*.pdf"), q("3", "docs/scan.pdf"), q("4", "a.txt"))
    answers = go(asker, path, out)
    found = rows(out)
    assert found[0]["answer"] == "You asked: 1"
    assert asker.calls[0]["books"] == ["text d"]
    counted, scan = found[0]["left_out"]
    assert (Path(counted["source"]).name, counted["why"]) == ("docs", "1 empty (empty.txt)")
    assert (Path(scan["source"]).name, "has no text" in scan["why"]) == ("scan.pdf", True)
    assert "has no text" in found[1]["error"], "nothing of the pattern can be read"
    assert "has no text" in found[2]["error"], "it was named"
    assert found[3]["answer"] == "You asked: 4"
    assert answers.failed == {1, 2}


def test_the_command_says_what_is_left_out(
    write: Write, tmp_path: Path, scans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(q("1", "docs"), q("2", "docs"), q("3"))
    result = command(monkeypatch, FakeAsker(), "q.jsonl", "docs", "--out", "out.jsonl", "--quiet")
    assert result.exit_code == 0, result
    said = result.stderr.splitlines()
    assert said[0] == "esa: docs: 2 files to read; left out: 1 empty (empty.txt)"
    assert said[1].startswith("esa: left out: the document docs/scan.pdf has no text")
    assert len(said) == 2, "quiet, and each once"
    assert all(row["left_out"] for row in rows(tmp_path / "out.jsonl"))


@contextmanager
def opening(asker: FakeAsker) -> Iterator[FakeAsker]:
    yield asker


def command(monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, *words: str) -> Any:
    module = types.ModuleType("esa_cli.apps.cli.open_esa")
    module.opened = lambda *given, **more: opening(asker)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "esa_cli.apps.cli.open_esa", module)
    app = typer.Typer()
    app.command()(batch.batch)
    return typer.testing.CliRunner().invoke(app, [*words, "--preset", "tiny-random"])


FROM_TEXT = ["--set", "answer.from=text"]


def test_the_command(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(*MIXED)
    asker = FakeAsker()
    refused = command(monkeypatch, asker, "q.jsonl", "--out", "new/out.jsonl")
    assert isinstance(refused.exception, UsageError)
    assert "there is no folder" in refused.exception.message
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    result = command(
        monkeypatch, asker, "q.jsonl", "--out", "new/out.jsonl", "--json", "--seed", "4",
        "--max-new-tokens", "2", "--top", "1",
    )  # fmt: skip
    assert result.exit_code == 0, result
    data = json.loads(result.stdout)
    assert {key: data[key] for key in data if key != "seconds"} == {
        "questions": 5, "answered": 5, "failed": 0, "kept": 0, "out": "new/out.jsonl",
    }  # fmt: skip
    found = rows(tmp_path / "new/out.jsonl")
    assert found[0]["answer"] == "You asked:"
    assert found[0]["cut"]
    assert len(found[0]["evidence"]) == 1
    assert asker.calls[0]["seed"] == 4
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out.jsonl"]


def test_the_command_says_what_is_wrong_first_and_ends_with_seven(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(q("1", "a.txt"), "{", q("2", "gone.txt"))
    result = command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "out.jsonl")
    assert result.exit_code == PARTIAL == 7
    said = result.stderr.splitlines()
    assert said[0].startswith("esa: q.jsonl, line 2: the line must be JSON")
    assert said[1] == "esa: there is no document gone.txt"
    assert said[2].startswith("esa: 1 of 3 questions answered")
    assert command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "out.jsonl").exit_code == PARTIAL
    limited = command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "out.jsonl", "--limit", "1")
    assert limited.exit_code == 0


def test_a_finished_batch_opens_no_model(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(*MIXED)
    command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "out.jsonl")
    result = command(monkeypatch, None, "q.jsonl", "--out", "out.jsonl")  # type: ignore[arg-type]
    assert result.exit_code == 0
    assert "5 questions of an earlier run are kept" in result.stderr


def test_the_preset_is_part_of_what_may_not_change(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(*MIXED)
    command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "out.jsonl")
    for changed in (["--set", "window.selected=32"], [*FROM_TEXT, "--answer", "span"]):
        result = command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "out.jsonl", *changed)
        assert isinstance(result.exception, UsageError)
        assert "under other settings" in str(result.exception)


@pytest.mark.parametrize(
    "words",
    [
        ["q.jsonl", "--out", "q.jsonl"],
        ["q.jsonl", "--out", "out.jsonl", "-"],
        ["q.jsonl", "--out", "."],
    ],
)
def test_commands_that_cannot_be(
    write: Write, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    write(*MIXED)
    asker = FakeAsker()
    assert isinstance(command(monkeypatch, asker, *words).exception, UsageError)
    assert not asker.ingested


def test_documents_whose_names_are_not_utf8(write: Write, tmp_path: Path) -> None:
    name = str(tmp_path / "b\udcff.txt")
    try:
        Path(name).write_text("alpha", "utf-8")
    except OSError:
        pytest.skip("this disk has no such names")
    path, out = write(q("1")), tmp_path / "out.jsonl"
    go(FakeAsker(), path, out, default=(name,))
    assert rows(out)[0]["documents"] == [name]
    asker = FakeAsker()
    go(asker, path, out, default=(name,))
    assert not asker.calls, "its row is known again"


def test_answers_go_into_an_ordinary_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is read first: /dev/full has no end."""
    write(q("1", "a.txt"))
    result = command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "/dev/null")
    assert isinstance(result.exception, UsageError)
    assert "must be a regular file" in result.exception.message


def test_a_slip_in_the_key_of_the_documents_is_told(write: Write, tmp_path: Path) -> None:
    """Or the question would be asked of the command's documents."""
    path = write(*({"question": "x", key: ["a.txt"]} for key in ("document", "Docs", "source")))
    first, second, other = read_questions(path, ["b.txt"], {})
    assert (first.fault, second.fault) == (
        'the key must be "documents", got "document"',
        'the key must be "documents", got "Docs"',
    )
    assert not other.fault


def test_two_processes_do_not_write_the_same_answers(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answers_file(tmp_path / "out.jsonl", read_questions(write(*MIXED), (), {})):
        result = command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "out.jsonl")
    assert isinstance(result.exception, UsageError)
    assert "another esa" in result.exception.message
    assert not (tmp_path / "out.jsonl.lock").exists()


def asked(asker: FakeAsker, text: bytes, as_json: bool) -> tuple[str, int]:
    out = io.StringIO()
    wrong = ask_lines(
        asker, [fake_book("alpha")], numbered_lines(io.BytesIO(text)), out, as_json,
        reporter=Reporter(),
        options={"seed": 5}, shown=1,
    )  # fmt: skip
    return out.getvalue(), wrong


def test_lines_are_answered_each_on_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    asker = FakeAsker()
    asker.failures["bad"] = DocumentError("it is gone")
    out, wrong = asked(asker, b"one\n\nbad\ntwo", False)
    assert out == "You asked: one\n\n\n\nYou asked: two\n\n"
    assert wrong == 1
    assert [call["history"] for call in asker.calls] == [[], [], []]
    assert asker.calls[0]["seed"] == 5
    err = capsys.readouterr().err
    assert "esa: line 3: it is gone" in err
    assert err.count("passage 0 of alpha") == 2


def test_a_line_that_is_not_utf8_does_not_end_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = b"one\n\xff\xfe\nthree\n"
    out, wrong = asked(FakeAsker(), text, True)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row.get("answer") for row in rows] == ["You asked: one", None, "You asked: three"]
    assert (rows[1]["question"], rows[1]["error"]) == ("", "line 2 must be UTF-8")
    assert wrong == 1
    asked(FakeAsker(), text, False)
    assert capsys.readouterr().err.count("esa: line 2 must be UTF-8") == 1


def test_lines_as_json() -> None:
    asker = FakeAsker()
    asker.failures["bad"] = DocumentError("it is gone")
    out, wrong = asked(asker, b"one\nbad\n", True)
    first, second = (json.loads(line) for line in out.splitlines())
    assert (first["line"], first["question"], first["answer"]) == (1, "one", "You asked: one")
    assert len(first["evidence"]) == 1
    assert (second["line"], second["error"]) == (2, "it is gone")
    assert wrong == 1


def test_joined_rows_have_the_ids_of_their_questions_and_answers_stay(
    write: Write, tmp_path: Path
) -> None:
    questions = read_questions(write(q("Who?", "a.txt"), q("Who?", "a.txt")), (), {})
    go(FakeAsker(), tmp_path / "q.jsonl", tmp_path / "good.jsonl")
    good = rows(tmp_path / "good.jsonl")[0]
    bad = {"id": 2, "question": "Who?", "documents": ["a.txt"], "error": "no", "key": good["key"]}
    for name, row in (("one", good), ("two", bad)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    for order_of in (("one", "two"), ("two", "one")):
        out = tmp_path / f"{order_of[0]}-first.jsonl"
        with answers_file(out, questions) as answers:
            join_answers(answers, questions, [tmp_path / f"{name}.jsonl" for name in order_of])
        joined = rows(out)
        assert [row["id"] for row in joined] == [1, 2]
        assert [row["answer"] for row in joined] == [good["answer"]] * 2
