"""Tables in a pipe are written without rich, with the same characters."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from esa_cli.apps.cli import terminal

CELLS = (
    *("", "a", "bb ccc", "東京 x", " lead", "trail  ", "[bold]a", "a\u0301b", "1,234", "x" * 70),
    *("two\nlines", "a\tb", "\x1b[31mred"),
)


def printed(capsys: pytest.CaptureFixture[str], show: Callable[[], None]) -> str:
    show()
    return str(capsys.readouterr().out)


def test_plain_tables_are_those_of_rich(capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(1)
    for _ in range(200):
        columns, count = draw.randrange(1, 6), draw.randrange(6)
        rows = [draw.choices(CELLS, k=columns) for _ in range(count)]
        headers = draw.choices(("", "id", "size"), k=columns)
        plain = printed(capsys, lambda: terminal.print_table(headers, rows))  # noqa: B023
        assert plain == printed(capsys, lambda: terminal._print_grid(headers, rows))  # noqa: B023
