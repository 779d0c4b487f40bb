"""The tables of `esa selftest` are held to numbers worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from esa_cli.evaluation.selftest.score_tables import report, wilson, wrong


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


def many(methods: int = 4, lengths: int = 4, layers: int = 24, name: str = "method") -> list[Any]:
    """Rows of three tests, one of them without depths."""
    chance = random.Random(7)
    rows = [dense(chance.random(), test=test) for test in ("needle", "passkey", "words")]
    for test in ("needle", "passkey", "words"):
        for m in range(methods):
            for length in range(lengths):
                for tenth in range(10):
                    recall = [chance.random() for _ in range(layers)]
                    rows.append(
                        row(
                            f"{name}-{m}", 8000 + 7777 * length, chance.random(), test=test,
                            question=f"{test}-{tenth}",
                            depth=None if test == "words" else (tenth + 0.5) / 10,
                            why=chance.choice(["answered", "not selected", "selected, not used"]),
                            recall={"mean": sum(recall) / layers, "layers": recall},
                        )
                    )  # fmt: skip
    return rows


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"score": 1.5}, "'score'"),
        ({"score": float("nan")}, "'score'"),
        ({"score": True}, "'score'"),
        ({"depth": 45}, "'depth'"),
        ({"length": "8k"}, "'length'"),
        ({"why": ["x"]}, "'why'"),
        ({"time": {"read_s": "1"}}, "'time.read_s"),
        ({"recall": {"mean": 0.5, "layers": [2]}}, "'recall.layers.0'"),
        ({"method": None}, "'method'"),
        ({}, ""),
    ],
)
def test_an_invalid_row_is_described(changes: dict[str, Any], says: str) -> None:
    found = wrong(row(**changes))
    assert (says in found) if says else found == ""


def test_figures_worked_out_by_hand() -> None:
    recalls = [{"mean": 0.5, "layers": [1.0, 0.0]}, {"mean": 0.25, "layers": [0.5, None]}]
    text = printed(
        [
            row("b", 16000, 1.0, why="answered", recall=recalls[0]),
            row("b", 16000, 0.5, why="not selected", recall=recalls[1], depth=0.1),
            row("b", 16000, 0.0, why="not selected"),
            row("b", 8000, 1.0), row("a", 8000, 0.0, depth=1.0),
            dense(1.0), dense(0.5, length=200), row("a", 8000, 1.0, test="other"),
        ]
    )  # fmt: skip
    lines = [line.split() for line in text.splitlines()]
    assert ["b", "100", "(133)", "50", "(67)", "1–3"] in lines
    assert ["a", "0", "(0)", "–", "1"] in lines
    assert ["a", "100", "1"] in lines
    assert "dense ceiling 75 at 100, 200, n 2" in text
    assert ["needle", "b", "1", "2", "0", "1", "38", "0"] in lines, "one reason is not known"
    assert ["10–20", "–", "–", "10–20", "–", "50"] in lines
    assert ["90–100", "0", "–", "90–100", "–", "–"] in lines
    assert printed([]).strip() == "no questions were asked"


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 1, 0.2065, 1.0)],
)
def test_wilson_has_the_values_of_the_tables(right: int, n: int, low: float, high: float) -> None:
    assert wilson(right / n, n) == pytest.approx((low, high), abs=5e-5)


def printed(rows: list[Any], width: int = 80, **options: Any) -> str:
    console = Console(width=width + 40, **options)
    with console.capture() as capture:
        console.print(report(rows, width))
    return capture.get()


@pytest.mark.parametrize(
    ("methods", "lengths", "layers"), [(1, 1, 1), (1, 23, 24), (4, 4, 24), (9, 3, 126), (7, 17, 2)]
)
def test_nothing_is_wider_than_80_columns(methods: int, lengths: int, layers: int) -> None:
    rows = many(methods, lengths, layers, name="a-method-with-quite-a-long-name-方法")
    text = printed(rows)
    assert max(map(cell_len, text.splitlines())) <= 80
    evil = printed([row("\x1b[1m[i]x[/i]", depth=0.5, why="a\x1b[0m")])
    assert "\x1b" not in evil
    assert "[1m[i]x[/i]" in evil
