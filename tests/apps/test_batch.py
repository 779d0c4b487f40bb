"""Questions from a file: order, one reading a set, stops and kills, bad lines, exit codes."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sample_files
from asking_command import run_command
from fake_asker import FakeAsker

from esa_cli.apps.cli.commands import batch_command as batch
from esa_cli.apps.cli.output import terminal
from esa_cli.errors import PARTIAL, ResourceError, UsageError
from esa_cli.qa.ingestion import library_texts
from esa_cli.storage.library import Library
from esa_cli.system import files
from esa_cli.system.jsonl import AnswersFile

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
) -> AnswersFile:
    questions = batch.read_questions_file(path, default, settings)
    asked = questions[:limit]
    places = [(question.key, question.id) for question in questions]
    with AnswersFile(out, places, retry_failed=retry) as answers:
        batch.answer_batch_questions(asker, asked, answers, {"evidence": 2}, QUIET)
    return answers


QUIET = terminal.Reporter(quiet=True)
ASKED = ("a.txt", "b.txt", "a.txt", "b.txt a.txt", "a.txt")
MIXED = [q(str(number), *names.split()) for number, names in enumerate(ASKED, 1)]


def test_rows_come_in_the_order_of_the_questions_and_sets_are_read_once(
    write: Write, tmp_path: Path
) -> None:
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    go(asker, write(*MIXED), out)
    assert [row["question"] for row in rows(out)] == ["1", "2", "3", "4", "5"]
    assert [call["question"] for call in asker.calls] == ["1", "3", "5", "2", "4"]
    assert [Path(source).name for source in asker.ingested] == ["a.txt", "b.txt"]
    assert asker.calls[-1]["books"] == ["text b", "text a"]
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.jsonl"]
    before = out.read_bytes()
    go(asker, tmp_path / "q.jsonl", out)
    assert out.read_bytes() == before
    assert len(asker.calls) == 5


def test_a_row_has_everything(write: Write, tmp_path: Path) -> None:
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    go(asker, write(q("Who?", "a.txt", id="x1"), q("Wo, ü?", "a.txt")), out)
    first, second = rows(out)
    assert set(first) == {
        "id", "question", "documents", "answer", "found", "cut", "answered_from", "read",
        "quotation", "quotations", "sentences", "evidence", "tokens", "timing", "key", "certainty",
        "probability", "missing_words", "foreign_languages",
    }  # fmt: skip
    assert (first["id"], second["id"]) == ("x1", 2)
    assert first["documents"] == ["a.txt"]
    assert first["answer"] == "You asked: Who?"
    assert [one["document"] for one in first["evidence"]] == ["book0.txt", "book1.txt"]
    assert "ü" in out.read_text("utf-8")


def test_which_documents_are_meant(write: Write, tmp_path: Path) -> None:
    """Relative to the file, folders, patterns, or those of the command."""
    (tmp_path / "sub/own").mkdir(parents=True)
    for name in ("d.txt", "e.txt"):
        (tmp_path / "sub/own" / name).write_text(f"text {name}", "utf-8")
    asked = [q("1", "own"), q("2", "own/[e]*.txt"), q("3", "*.none")]
    asked += [{"question": "4", "documents": "../a.txt"}, q("5")]
    path = write(*asked, name="sub/q.jsonl")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    go(asker, path, out, default=("c.txt",))
    assert [call["books"] for call in asker.calls] == [
        ["text d.txt", "text e.txt"], ["text e.txt"], ["text a"], ["text c"],
    ]  # fmt: skip
    assert "no file matches" in rows(out)[2]["error"]
    assert rows(out)[2]["error"].endswith("relative to the folder of this file")
    assert [row["documents"] for row in rows(out)][-2:] == [["../a.txt"], ["c.txt"]]
    assert len(asker.ingested) == 4


def test_without_documents_the_library_is_asked_and_again_if_it_changes(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setattr(files, "SETTLED_NS", -(10**18))
    path, asker = write(q("1"), q("2", "a.txt"), q("3")), FakeAsker()
    out, none = tmp_path / "out.jsonl", tmp_path / "none.jsonl"
    go(FakeAsker(), path, none)
    assert ["error" in row for row in rows(none)] == [True, False, True], "no library"
    (tmp_path / "town").mkdir()
    (tmp_path / "town/b.txt").write_text("one harp", "utf-8")

    def update() -> None:
        with Library().open_catalogue() as catalogue:
            library_texts.sync_folder(catalogue, str(tmp_path / "town"))

    update()
    go(asker, path, out)
    go(asker, path, out)
    assert [(call["question"], call["books"]) for call in asker.calls] == [
        ("1", []), ("3", []), ("2", ["text a"]),
    ]  # fmt: skip
    assert [row["documents"] for row in rows(out)] == [[], ["a.txt"], []]
    (tmp_path / "town/c.txt").write_text("one loom", "utf-8")
    update()
    go(asker, path, out)
    assert [call["question"] for call in asker.calls[3:]] == ["1", "3"]


def test_a_new_file_in_a_folder_is_no_other_question(write: Write, tmp_path: Path) -> None:
    (tmp_path / "town").mkdir()
    (tmp_path / "town/old.txt").write_text("old", "utf-8")
    path, asker, out = write(q("1"), q("2", "a.txt")), FakeAsker(), tmp_path / "out.jsonl"
    go(asker, path, out, default=("town",))
    (tmp_path / "town/new.txt").write_text("new", "utf-8")
    go(asker, path, out, default=("town",))
    assert [call["books"] for call in asker.calls] == [["old"], ["text a"], ["new", "old"]]


BAD = [
    "{",
    "[1]",
    '{"documents": ["a.txt"]}',
    '{"question": "  ", "documents": ["a.txt"]}',
    '{"question": "x"}',
    '{"question": "x", "documents": ""}',
    '{"question": "x", "documents": []}',
    '{"question": "x", "documents": ["-"]}',
    '{"question": "\\ud800", "documents": ["a.txt"]}',
    "[" * 100_000,
    '{"question": "x", "documents": ["a.txt"], "id": [-Infinity]}',
    '{"question": "x", "documents": ["a.txt"], "id": 1e999}',
    '{"question": "x", "question": "y", "documents": ["a.txt"]}',
    '{"question": "x", "document": ["a.txt"]}',
    '{"question": "x", "Docs": ["a.txt"]}',
]


def test_a_bad_line_has_an_error_and_the_others_go_on(write: Write, tmp_path: Path) -> None:
    """A slip in the key of the documents is one: it would be asked of the command's documents."""
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    answers = go(asker, write(q("1", "a.txt"), "", *BAD, q("2", "a.txt")), out)
    good, *bad, last = rows(out)
    for number, row in enumerate(bad, 3):
        assert f"line {number}: " in row["error"]
        assert "answer" not in row
    assert (good["answer"], last["answer"]) == ("You asked: 1", "You asked: 2")
    assert answers.failed_question_indices == set(range(1, 1 + len(BAD)))
    assert [Path(source).name for source in asker.ingested] == ["a.txt"]


def test_a_misspelt_key_is_named(write: Write, tmp_path: Path) -> None:
    bad = ['{"frage": "x", "documents": ["a.txt"]}', '{"question": "x", "docs": ["a.txt"]}']
    out = tmp_path / "out.jsonl"
    go(FakeAsker(), write(*bad, q("1", "a.txt")), out)
    for key, row in zip(["the keys frage", '"docs"'], rows(out), strict=False):
        assert f"got {key}" in row["error"]


def test_a_bad_line_keeps_its_id(write: Write, tmp_path: Path) -> None:
    ids = ["c", ["\ud800", 1], None]
    path, out = write(*(q("", id=id) for id in ids), "{", q("1", "a.txt")), tmp_path / "out.jsonl"
    go(FakeAsker(), path, out)
    before = out.read_bytes()
    assert [row["id"] for row in rows(out)] == [*ids, 4, 5]
    go(FakeAsker(), path, out)
    assert out.read_bytes() == before, "the rows are those of the same questions"


def test_missing_documents_and_failing_questions(write: Write, tmp_path: Path) -> None:
    asker, out = FakeAsker(), tmp_path / "out.jsonl"
    asker.failures["3"] = ResourceError("no room", "buy some")
    asker.failures["5"] = RuntimeError("a bug")
    asked = [q("1", "gone.txt"), q("2", "a.txt", "gone.txt"), q("3", "a.txt"), q("4", "a.txt")]
    answers = go(asker, write(*asked), out)
    found = rows(out)
    assert "gone.txt" in found[0]["error"]
    assert "gone.txt" in found[1]["error"]
    assert (found[2]["error"], found[2]["hint"]) == ("no room", "buy some")
    assert found[3]["answer"] == "You asked: 4"
    assert answers.failed_question_indices == {0, 1, 2}
    with pytest.raises(RuntimeError):
        go(asker, write(*asked, q("5", "a.txt")), out)
    assert len(rows(out)) == 4, "what is no mistake of a question ends the run"


def test_half_a_row_is_dropped_wherever_it_was_cut(write: Write, tmp_path: Path) -> None:
    """Every length that a kill may leave of the file, whose rows are in the order of asking."""
    path, whole, out = write(*MIXED), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    go(FakeAsker(), path, whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    data = b"".join(lines[number] for number in (0, 2, 4, 1, 3))
    for length in (*range(12), *range(12, len(data), 37), len(data)):
        out.write_bytes(data[:length])
        go(FakeAsker(), path, out)
        assert out.read_bytes() == whole.read_bytes()


CHILD = """
import resource, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/support", {tests!r} + "/apps", {root!r}]
from pathlib import Path
from fake_asker import FakeAsker
from test_batch import go
if {room}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
print("ready", flush=True)
try:
    go(FakeAsker(delay=0.001), Path("q.jsonl"), Path("out.jsonl"))
except Exception as error:
    print(type(error).__name__, error.hint, sep=": ")
"""


def child(room: int = 0) -> subprocess.Popen[str]:
    """A process that answers q.jsonl; `room` is the longest file it may write."""
    tests = Path(__file__).parents[1]
    code = CHILD.format(tests=str(tests), root=str(tests.parent), room=room)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    return process


@pytest.mark.process
def test_kills_lose_nothing(write: Write, tmp_path: Path) -> None:
    kinds = itertools.cycle(["a.txt", "b.txt", "c.txt"])
    path = write(*(q(str(number), next(kinds)) for number in range(90)))
    dice, out, kills = random.Random(0), tmp_path / "out.jsonl", 0
    while kills < 4:
        process = child()
        try:
            process.wait(dice.uniform(0.02, 0.1))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        if process.returncode == 0:
            break
    assert kills
    asker = FakeAsker()
    go(asker, path, out)
    assert len(asker.calls) < 90
    assert [row["question"] for row in rows(out)] == [str(number) for number in range(90)]


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


@pytest.mark.parametrize(
    ("changed", "settings"),
    [
        ([MIXED[0], q("other", "b.txt"), *MIXED[2:]], {}),
        ([q("1", "c.txt"), *MIXED[1:]], {}),
        ([q("1", "a.txt", id=9), *MIXED[1:]], {}),
        (MIXED[:-1], {}),
        (MIXED, {"seed": 2}),
    ],
)  # fmt: skip
def test_other_questions_or_settings_are_refused(
    write: Write, tmp_path: Path, changed: list[Any], settings: dict[str, Any]
) -> None:
    out = tmp_path / "out.jsonl"
    go(FakeAsker(), write(*MIXED), out)
    before = out.read_bytes()
    with pytest.raises(UsageError):
        go(FakeAsker(), write(*changed), out, **settings)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        '{"a": 1}\n', "text\n", '{"error": "x"}\n{"b": 2}\n', '{"a": 1}', "text", '{"id": 1}',
        "{\n", "[" * 100_000,
    ],
)  # fmt: skip
def test_a_file_of_somebody_else_is_not_touched(write: Write, tmp_path: Path, content: str) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(content, "utf-8")
    with pytest.raises(UsageError):
        go(FakeAsker(), write(*MIXED), out, retry=True)
    assert out.read_text("utf-8") == content


def test_limit_takes_the_first_and_more_later(write: Write, tmp_path: Path) -> None:
    path, out, second = write(*MIXED), tmp_path / "out.jsonl", FakeAsker()
    go(FakeAsker(), path, out, limit=3)
    assert [row["question"] for row in rows(out)] == ["1", "2", "3"]
    go(second, path, out)
    assert [call["question"] for call in second.calls] == ["4", "5"]
    go(second, write(*MIXED, q("6", "b.txt")), out)
    assert [row["question"] for row in rows(out)] == ["1", "2", "3", "4", "5", "6"]


def test_a_kill_after_failed_rows_are_removed_loses_nothing(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write(q("1", "a.txt"), q("2", "d.txt"), q("3", "a.txt")), tmp_path / "out.jsonl"
    go(FakeAsker(), path, out)
    real = os.replace

    def once(source: Any, target: Any) -> None:
        real(source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", once)
        with pytest.raises(KeyboardInterrupt):
            go(FakeAsker(), path, out, retry=True)
    (tmp_path / "d.txt").write_text("text d", "utf-8")
    asker = FakeAsker()
    go(asker, path, out, retry=True)
    assert [call["question"] for call in asker.calls] == ["2"]
    assert [row["answer"] for row in rows(out)] == [f"You asked: {n}" for n in (1, 2, 3)]


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of files")
@pytest.mark.parametrize("room", [100, 900, 1700])
def test_a_full_disk_is_said_and_the_same_command_goes_on(
    write: Write, tmp_path: Path, room: int
) -> None:
    """Files that really cannot grow: what closing them says does not hide what was said first."""
    path, whole, out = write(*MIXED), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    go(FakeAsker(), path, whole)
    assert len(whole.read_bytes()) > 1700
    output, _ = child(room).communicate()
    hint = "free some disk space, then run the same command again to continue"
    assert output == f"ResourceError: {hint}\n"
    asker = FakeAsker()
    go(asker, path, out)
    assert out.read_bytes() == whole.read_bytes()
    assert len(asker.calls) < 5 or room == 100


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
    assert answers.failed_question_indices == {1, 2}


def command(monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, *words: str) -> Any:
    return run_command(monkeypatch, batch.batch, asker, *words, "--preset", "tiny-random")


FROM_TEXT = ["--set", "answer.from=text"]


def test_the_command(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(*MIXED)
    monkeypatch.setattr(terminal, "LINE_EVERY_S", -1.0)
    asker = FakeAsker()
    (tmp_path / "new").mkdir()
    result = command(
        monkeypatch, asker, "q.jsonl", "--out", "new/out.jsonl", "--json", "--seed", "4",
        "--max-new-tokens", "2", "--top", "1",
    )  # fmt: skip
    assert result.exit_code == 0, result
    progress = [line for line in result.stderr.splitlines() if " of 5 questions" in line]
    assert progress[0] == "esa: 0 of 5 questions", "nothing is known about the time left"
    assert [line[5] for line in progress[:5]] == ["0", "1", "2", "3", "4"]
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
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(q("1", "a.txt"), "{", q("2", "gone.txt"))
    result = command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "out.jsonl")
    assert result.exit_code == PARTIAL == 7
    said = result.stderr.splitlines()
    assert "line 2" in said[0]
    assert "gone.txt" in said[1]
    assert command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "out.jsonl").exit_code == PARTIAL
    write(*MIXED)
    command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "all.jsonl")
    result = command(monkeypatch, None, "q.jsonl", "--out", "all.jsonl")  # type: ignore[arg-type]
    assert result.exit_code == 0, "a finished batch opens no model"
    for changed in (["--set", "window.selected=32"], [*FROM_TEXT, "--set", "answer.form=span"]):
        result = command(monkeypatch, FakeAsker(), "q.jsonl", "--out", "all.jsonl", *changed)
        assert isinstance(result.exception, UsageError)


@pytest.mark.parametrize(
    "words",
    [
        ["q.jsonl", "--out", "q.jsonl"], ["q.jsonl", "--out", "out.jsonl", "-"],
        ["q.jsonl", "--out", "."], ["q.jsonl", "--out", "/dev/null"],
        ["q.jsonl", "--out", "nowhere/out.jsonl"],
    ],
)  # fmt: skip
def test_commands_that_cannot_be(
    write: Write, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """What is in --out is read first: a device has no end."""
    write(*MIXED)
    asker = FakeAsker()
    assert isinstance(command(monkeypatch, asker, *words).exception, UsageError)
    assert not asker.ingested


def test_joined_rows_have_the_ids_of_their_questions_and_answers_stay(
    write: Write, tmp_path: Path
) -> None:
    questions = batch.read_questions_file(write(q("Who?", "a.txt"), q("Who?", "a.txt")), (), {})
    go(FakeAsker(), tmp_path / "q.jsonl", tmp_path / "good.jsonl")
    good = rows(tmp_path / "good.jsonl")[0]
    bad = {"id": 2, "question": "Who?", "documents": ["a.txt"], "error": "no", "key": good["key"]}
    for name, row in (("one", good), ("two", bad)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    for order_of in (("one", "two"), ("two", "one")):
        out = tmp_path / f"{order_of[0]}-first.jsonl"
        with AnswersFile(out, [(one.key, one.id) for one in questions]) as answers:
            batch.copy_answers_from_shard_files(
                answers, questions, [tmp_path / f"{name}.jsonl" for name in order_of]
            )
        joined = rows(out)
        assert [row["id"] for row in joined] == [1, 2]
        assert [row["answer"] for row in joined] == [good["answer"]] * 2
