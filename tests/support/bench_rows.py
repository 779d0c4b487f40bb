"""Invented records in the shapes that the public benchmarks publish theirs in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from esa_cli.evaluation.bench import benchmarks
from esa_cli.evaluation.bench.bench_run import BenchRecordSelection
from esa_cli.evaluation.bench.benchmarks import BenchRecord


def write(path: Path, rows: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def longbench_row(name: str, **changes: Any) -> dict[str, Any]:
    row = {
        "input": "Who opens the gate?",
        "context": "The keeper opens the gate. " * 30,
        "answers": ["the keeper", "keeper"],
        "length": 150,
        "dataset": "hotpotqa",
        "language": "en",
        "all_classes": None,
        "_id": name,
    }
    return row | changes


def records(name: str, folder: Path, *tasks: str, limit: int | None = None) -> list[BenchRecord]:
    benchmark = benchmarks.BENCHMARKS[name]
    return list(BenchRecordSelection(benchmark, folder, tasks, limit).load_records())


def whole(record: BenchRecord) -> str:
    return record.before + record.document + record.question


def rows_of(method: str, **scores: list[float]) -> Iterator[dict[str, Any]]:
    for task, values in scores.items():
        for value in values:
            yield {"method": method, "task": task, "score": value}


def stars_row(reasoning: bool) -> dict[str, Any]:
    right, mistaken = [15, 117, 42], [5, 100, 40]
    asked = "\n\n\n\nPlease help the little penguin."
    text = ""
    for a, r in zip(right, mistaken, strict=True):
        text += f"An essay. \nThe little penguin counted {r if reasoning else a} ★"
        again = ", but found that a mistake had been made, so the counting was done again, and this"
        text += f"{again} time {a} ★ was counted correctly.\n" if reasoning else "\n"
    return {
        "question": text + asked,
        "context_size": 3200,
        "retrieval_question": asked,
        "reference_counting_results": right,
        "parameters": {"temperature": 0.0},
    }
