"""Pairs and their texts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SHIPPED = Path(__file__).parents[3] / "benchmarks" / "training"


@pytest.mark.parametrize("file", sorted((SHIPPED / "pairs").glob("*.jsonl")), ids=lambda f: f.stem)
def test_the_pairs_of_the_repository(file: Path) -> None:
    head, *rows = (json.loads(line) for line in file.read_text("utf-8").splitlines())
    assert set(head) - {"language"} == {"name", "source", "sha256", "characters"}
    assert head["name"] == file.stem
    assert len({row["id"] for row in rows}) == len({row["question"] for row in rows}) == len(rows)
    absent = sum(row["answer"] is None for row in rows)
    assert 0.1 <= absent / len(rows) <= 0.35
    for row in rows:
        start, end = row["passage"]
        first, last = row["answer"] or (start, end)
        assert 0 <= start <= first < last <= end <= head["characters"], row["id"]
        assert (row["answer"] is None) == (row["kind"] == "absent")
        assert row["kind"] in ("plain", "reworded", "absent")
