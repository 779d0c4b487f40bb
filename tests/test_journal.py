"""Rows that survive: continued, never mixed, and read past a half-written end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from esa_cli.errors import DocumentError, UsageError
from esa_cli.journal import Journal, read_lines

HEADER = {"command": "esa selftest", "settings": {"seed": 0, "depths": (0.5, 1.0)}}


def journal(path: Path | None, header: dict[str, Any] = HEADER) -> Journal:
    return Journal(path, header, same=("settings",), key=("test", "question"))


def row(question: str, score: float = 1.0) -> dict[str, Any]:
    return {"test": "needle", "question": question, "score": score}


def test_a_second_run_knows_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    with journal(path) as first:
        first.add(row("a"))
    with journal(path) as second:
        assert second.done(row("a", 0.0))
        assert not second.done(row("b"))
        second.add(row("b"))
    lines = list(read_lines(path))
    assert [line.get("question") for line in lines] == [None, "a", "b"]
    assert sum("command" in line for line in lines) == 1


def test_without_a_file_rows_are_kept_in_memory() -> None:
    with journal(None) as kept:
        kept.add(row("a"))
        assert kept.done(row("a"))


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_half_written_line_is_dropped_and_asked_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rows.jsonl"
    with journal(path) as first:
        first.add(row("a"))
        first.add(row("b"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with journal(path) as second:
        assert second.done(row("a"))
        # Without its line break only, the line is whole.
        assert second.done(row("b")) == (cut == 1)
        if cut > 1:
            second.add(row("b"))
        second.add(row("c"))
    assert [line.get("question") for line in read_lines(path)] == [None, "a", "b", "c"]
    assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())


def test_another_measurement_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with journal(path) as first:
        first.add(row("a"))
    with pytest.raises(UsageError, match="another settings"):
        journal(path, {**HEADER, "settings": {"seed": 1}})


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"title": "mine"}\n')
    with pytest.raises(UsageError, match="not a results file"):
        journal(path)
    assert path.read_text() == '{"title": "mine"}\n'


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"command": "x"}\nnot json\n{"test": "needle"}\n')
    with pytest.raises(DocumentError, match="line 2"):
        list(read_lines(path))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(DocumentError, match="cannot write"), journal(blocked / "rows.jsonl"):
        pass
