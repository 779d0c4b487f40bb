"""Rows that survive: continued, never mixed, and read past a half-written end."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.jsonl import ResultsFile, read_json_lines

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
