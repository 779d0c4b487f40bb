"""The tables of `esa selftest` are held to numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from esa_cli.evaluation.selftest.score_tables import describe_invalid_row, make_score_tables


def row(method: str = "esa", length: int = 8000, score: float = 1.0, **more: Any) -> dict[str, Any]:
    """A row as `esa selftest` writes it."""
    return {
        "test": "needle", "method": method, "length": length, "sample": 0, "seed": 0,
        "question": "q", "depth": None, "prompt": "Who?", "answer": "Bottle",
        "expected": ["Bottle"], "score": score, "recall": None, "why": None, "tokens": {},
        "time": {"read_s": 10.0, "ask_s": 1.0}, "dense": False, **more,
    }  # fmt: skip


def dense(score: float = 1.0, **more: Any) -> dict[str, Any]:
    return row("dense", **{"length": 100, "score": score, "dense": True, **more})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"score": 1.5}, "score"),
        ({"score": float("nan")}, "score"),
        ({"length": "8k"}, "TypeError"),
        ({"why": ["x"]}, "TypeError"),
        ({"recall": {"mean": 0.5, "layers": 2}}, "TypeError"),
        ({"method": None}, "method"),
        ({}, ""),
    ],
)
def test_an_invalid_row_is_described(changes: dict[str, Any], says: str) -> None:
    found = describe_invalid_row(row(**changes))
    assert (says in found) if says else found == ""


def test_figures_worked_out_by_hand() -> None:
    recalls = [{"mean": 0.5, "layers": [1.0, 0.0]}, {"mean": 0.25, "layers": [0.5, None]}]
    other, scores, misses = make_score_tables(
        [
            row("b", 16000, 1.0, why="answered", recall=recalls[0]),
            row("b", 16000, 0.5, why="not selected", recall=recalls[1], depth=0.1),
            row("b", 16000, 0.0, why="not selected"),
            row("b", 8000, 1.0), row("a", 8000, 0.0, depth=1.0),
            dense(1.0), dense(0.5, length=200), row("a", 8000, 1.0, test="a test"),
        ]
    )  # fmt: skip
    assert other.rows == [["a", "100", "1"]]
    assert scores.headers == ["method", "8k", "16k", "n"]
    assert scores.rows == [["a", "0 (0)", "–", "1"], ["b", "100 (133)", "50 (67)", "1–3"]]
    assert scores.note.startswith("dense ceiling 75 at 100, 200, n 2")
    assert ["needle", "b", "1", "2", "0", "1", "38", "0"] in misses.rows, "one reason is unknown"
    assert make_score_tables([]) == []
