"""The benchmark of GPUs runs on a processor, with a tiny model: its rows, not its figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from python_file import module_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    benchmark = module_of(BENCHMARKS / "gpu.py", "gpu_benchmark")
    monkeypatch.setattr(sys.modules["gpu_kernels"], "SIZES", [(8, 8, True), (1, 64, False)])
    monkeypatch.setattr(benchmark, "DECODED", 3)
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments, "--device=cpu", f"--out={out}"])
    benchmark.main()
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


def test_dense_reading_is_the_models_own() -> None:
    benchmark = module_of(BENCHMARKS / "gpu.py", "gpu_benchmark")
    model = benchmark.random_model("tiny", torch.device("cpu"))
    reader, ids, seen = benchmark.Reader(model, None, 16), torch.arange(50)[None], []

    def logits_in_pieces(ids: torch.Tensor, cache: Any, ask: Any) -> dict[str, Any]:
        seen.append(model.config._attn_implementation)
        for piece in ids.split(16, dim=1):
            last = model(input_ids=piece, past_key_values=cache).logits
        return {"logits": last}

    reader._prefill = logits_in_pieces
    with torch.inference_mode():
        got, want = reader.read("dense", ids)["logits"], model(input_ids=ids).logits[:, 48:]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert (seen, model.config._attn_implementation) == ([benchmark.LOWER_RIGHT], "sdpa")


def test_a_way_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    benchmark = module_of(BENCHMARKS / "gpu.py", "gpu_benchmark")

    def refuse(*given: Any) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(benchmark, "hidden_states", refuse)
    options = ["--shape=tiny", "--preset=tiny-random", "--lengths=64", "--most=64", "--device=cpu"]
    out = tmp_path / "rows.jsonl"
    arguments = ["gpu.py", "texts", *options, "--ways=index,dense", f"--out={out}"]
    monkeypatch.setattr(sys, "argv", arguments)
    benchmark.main()
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()][1:]
    failures = [(row["way"], row.get("failed")) for row in rows]
    assert failures == 2 * [("index", "RuntimeError: no kernel"), ("dense", None)]
