"""Resume files damaged at random: they go on where they were, or the damage is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from properties import expect_one_line

from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.jsonl import AnswersFile, ResultsFile, read_json_lines

HEADER = {"command": "selftest", "settings": {"seed": 0}}
ROWS = [{"question": f"{word} ★", "score": 0.5, "answer": 'a\n"b"'} for word in "abcd"]
KEYS = [f"k{number}" for number in range(5)]
ORDERED = [{"id": n, "key": key, "answer": "ä" * n} for n, key in enumerate(KEYS)]
PLACES = st.integers(0, 10**6)


def journal(path: Path) -> ResultsFile:
    return ResultsFile(path, HEADER, fixed_fields=["command", "settings"], key_fields=["question"])


def complete(path: Path) -> list[dict[str, Any]]:
    """Adds the rows that are not there, and reads the file."""
    with journal(path) as rows:
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
    assert whole == [HEADER, *ROWS]
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
