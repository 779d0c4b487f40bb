"""`benchmarks/gpu_scoring.py` on the processor, in a tiny size."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from python_file import module_of

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu_scoring.py"


def test_rows_of_each_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, out = module_of(BENCHMARK, "gpu_scoring_benchmark"), tmp_path / "rows.jsonl"
    monkeypatch.setattr(module, "PIECE", 256)
    options = [
        "--device",
        "cpu",
        "--middles",
        "600",
        "--chunks",
        "1,16",
        "--ranks",
        "8",
        "--runs",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", ["gpu_scoring.py", *options, "--out", str(out)])
    module.main()
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    assert [(row["M"], row["C"], row["R"]) for row in rows] == [(600, 1, 8), (600, 16, 8)]
    for row in rows:
        assert min(row["tiled_ms"], row["fused_ms"], row["product_ms"], row["top_k_ms"]) > 0
        assert row["difference"] < 0.1
        assert row["same_share"] > 0.95
        assert row["keys_mb"] == round(600 * 8 * 2 / 1e6, 1)
