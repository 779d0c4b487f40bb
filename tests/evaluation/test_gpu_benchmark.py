"""The benchmark of GPUs runs on a processor, with a tiny model: its rows, not its figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from python_file import module_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    benchmark = module_of(BENCHMARKS / "gpu.py", "gpu_benchmark")
    monkeypatch.setattr(benchmark, "SIZES", [(8, 8, True), (1, 64, False)])
    monkeypatch.setattr(benchmark, "DECODED", 3)
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments, "--device=cpu", f"--out={out}"])
    benchmark.main()
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


def test_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, *rows = run(monkeypatch, tmp_path, "kernels")
    assert first["part"] == "ceilings"
    assert {(row["kernel"], row["keys"]) for row in rows} >= {("torch-cpu", 8), ("reference", 64)}
    assert all(row["error"] < 0.01 and row["lse_error"] < 0.05 for row in rows), rows


def test_texts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ("--shape=tiny", "--preset=tiny-random", "--lengths=200,260", "--dense=200")
    _, *rows = run(monkeypatch, tmp_path, "texts", *options, "--piece=128", "--most=260")
    measured = [(row["way"], row["tokens"]) for row in rows if not row["warm_up"]]
    ways = ["esa", "host", "index"]
    assert measured == [*((way, 200) for way in ["dense", *ways]), *((way, 260) for way in ways)]
    assert all(row["tokens_per_s"] > 0 and "failed" not in row for row in rows)
