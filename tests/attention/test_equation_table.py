"""The table of equations in `esa_cli/attention/__init__.py`: its files and tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import esa_cli.attention

ROOM = Path(esa_cli.attention.__file__).parent
TESTS = Path(__file__).parents[1]
TABLE = esa_cli.attention.__doc__ or ""


def test_every_equation_has_a_row() -> None:
    assert re.findall(r"^\((\d)\)", TABLE, re.MULTILINE) == [*"12345678"]
    for line in ("Section 3.2", "steps 10-11", "steps 12-14", "as a whole"):
        assert line in TABLE


def test_every_file_of_the_table_exists() -> None:
    rows = TABLE[TABLE.index("(1) ") :]
    files = set(re.findall(r"[\w/]+\.py(?!::)", rows))
    assert len(files) >= 12
    missing = [f for f in files if not any((at / f).is_file() for at in (ROOM, ROOM.parent))]
    assert not missing


def test_every_test_of_the_table_exists() -> None:
    named = re.findall(r"(test_\w+\.py)::(test_\w+)", TABLE)
    assert len(named) >= 15
    for file, name in named:
        (path,) = TESTS.rglob(file)
        assert f"\ndef {name}(" in path.read_text(encoding="utf-8"), f"{file}::{name}"
