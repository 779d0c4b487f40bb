"""Rows that survive: continued, never mixed, and read past a half-written end."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import expect_one_line

from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.jsonl import AnswersFile, ResultsFile, read_json_lines

FIELDS: Any = {"fixed_fields": ("settings",), "key_fields": ("test", "question")}
HEADER = {"command": "esa selftest", "settings": {"seed": 0, "depths": (0.5, 1.0)}}


def journal(path: Path | None, header: dict[str, Any] = HEADER) -> ResultsFile:
    return ResultsFile(path, header, **FIELDS)


def row(question: str, score: float = 1.0) -> dict[str, Any]:
    return {"test": "needle", "question": question, "score": score}


def test_another_measurement_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with journal(path) as first:
        first.add_row(row("a"))
    with pytest.raises(UsageError, match="seed"):
        journal(path, {**HEADER, "settings": {"seed": 1}})


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"title": "mine"}\n')
    with pytest.raises(UsageError, match="not a results file"):
        journal(path)
    assert path.read_text() == '{"title": "mine"}\n'


@pytest.mark.parametrize("line", [b"not json", b'{"test": "\xe2\x98"}'])
def test_damage_in_the_middle_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"command": "x"}\n' + line + b'\n{"test": "needle"}\n')
    with pytest.raises(DocumentError, match="line 2"):
        list(read_json_lines(path))


@pytest.mark.parametrize("text", ['{"title": "mi', "A letter", '{"comm": 1'])
def test_a_line_without_an_end_that_is_not_ours_is_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match="not a results file"):
        journal(path)
    assert path.read_text() == text


def test_what_was_kept_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [HEADER, row("a", 0.0), row("b"), row("a", 1.0)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with journal(path) as kept:
        assert [line["question"] for line in kept.rows] == ["a", "b"]
        assert kept.rows[0] == kept.find_row_with_same_key(row("a"))


def test_only_one_writes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    early = journal(path)
    with journal(path) as first:
        first.add_row(row("a"))
        with pytest.raises(UsageError, match="another esa process is writing"):
            journal(path)
        with pytest.raises(UsageError, match="another esa process is writing"), early:
            pass
    with early:
        assert early.find_row_with_same_key(row("a")), "what was written since it was opened counts"
        early.add_row(row("b"))
    assert [line.get("question") for line in read_json_lines(path)] == [None, "a", "b"]
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"], "no lock stays behind"


def test_a_disk_without_locks_takes_rows_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    with journal(tmp_path / "rows.jsonl") as kept:
        kept.add_row(row("a"))
    assert len(list(read_json_lines(tmp_path / "rows.jsonl"))) == 2


@pytest.mark.parametrize("field", ["test", "question"])
def test_a_row_without_what_it_needs_is_named(tmp_path: Path, field: str) -> None:
    path = tmp_path / "rows.jsonl"
    broken = {name: value for name, value in row("b").items() if name != field}
    lines = [HEADER, row("a"), broken]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DocumentError, match=f"line 3 is incomplete: it has no '{field}'"):
        ResultsFile(path, HEADER, **FIELDS)


def test_a_row_that_its_kind_does_not_know_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [HEADER, row("a"), {**row("b"), "score": "much"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def wrong(row: Mapping[str, Any]) -> str:
        return "" if isinstance(row["score"], float) else f"{row['score']} is no score"

    with pytest.raises(DocumentError, match="line 3 is incomplete: much is no score"):
        ResultsFile(path, HEADER, **FIELDS, describe_invalid_row=wrong)


SELFTEST = {"command": "selftest", "settings": {"seed": 0}}
ROWS = [{"question": f"{word} ★", "score": 0.5, "answer": 'a\n"b"'} for word in "abcd"]
KEYS = [f"k{number}" for number in range(5)]
ORDERED = [{"id": n, "key": key, "answer": "ä" * n} for n, key in enumerate(KEYS)]
PLACES = st.integers(0, 10**6)


def open_journal(path: Path) -> ResultsFile:
    return ResultsFile(
        path, SELFTEST, fixed_fields=["command", "settings"], key_fields=["question"]
    )


def complete(path: Path) -> list[dict[str, Any]]:
    """Adds the rows that are not there, and reads the file."""
    with open_journal(path) as rows:
        for row in ROWS:
            if rows.find_row_with_same_key(row) is None:
                rows.add_row(row)
    return list(read_json_lines(path))


def complete_ordered(path: Path, order: list[int]) -> list[dict[str, Any]]:
    with AnswersFile(path, list(zip(KEYS, range(5), strict=True))) as rows:
        for index in order:
            if not rows.has_row(index):
                rows.add_row(index, ORDERED[index])
    return list(read_json_lines(path))


@given(PLACES)
def test_a_cut_journal_is_completed(tmp_path: Path, at: int) -> None:
    path = tmp_path / "rows.jsonl"
    path.unlink(missing_ok=True)
    whole = complete(path)
    assert whole == [SELFTEST, *ROWS]
    data = path.read_bytes()
    path.write_bytes(data[: at % (len(data) + 1)])
    assert complete(path) == whole


@given(PLACES, st.integers(0, 255), st.sampled_from([b"", b"\0", b"\n", b"{}\n", b"\xff"]))
def test_a_changed_journal_is_completed_or_refused(
    tmp_path: Path, at: int, byte: int, inserted: bytes
) -> None:
    path = tmp_path / "rows.jsonl"
    path.unlink(missing_ok=True)
    complete(path)
    data = path.read_bytes()
    at %= len(data)
    damaged = data[:at] + (inserted or bytes([byte])) + data[at + (not inserted) :]
    path.write_bytes(damaged)
    try:
        found = complete(path)
    except (DocumentError, UsageError) as error:
        expect_one_line(error)
        found = []
    if not found:
        assert path.read_bytes() == damaged, "what is refused is not changed"
        return
    assert {row["question"] for row in found[1:] if "question" in row} >= {
        row["question"] for row in ROWS
    }


@given(st.permutations(range(len(KEYS))), PLACES, PLACES)
def test_ordered_rows_come_back_in_order_after_a_cut(
    tmp_path: Path, order: list[int], stop: int, at: int
) -> None:
    path = tmp_path / "out.jsonl"
    path.unlink(missing_ok=True)
    complete_ordered(path, order[: stop % (len(order) + 1)])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - at % 40] if at % 40 < len(data) else b"")
    try:
        assert complete_ordered(path, order) == ORDERED
    except (DocumentError, UsageError) as error:
        raise AssertionError(f"a cut is not damage: {error.message}") from error
