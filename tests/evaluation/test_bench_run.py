"""A benchmark run: selected tasks, what a record is known by, tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_rows import longbench_row, rows_of, write

from esa_cli.errors import DocumentError
from esa_cli.evaluation.bench import bench_run, benchmarks
from esa_cli.evaluation.bench.bench_run import BenchRecordSelection
from esa_cli.evaluation.bench.benchmarks import BenchRecord


@pytest.mark.parametrize("second", [longbench_row("a"), longbench_row("b", input="")])
def test_records_of_one_name_or_without_a_question_are_refused(
    second: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path / "qasper.jsonl", [longbench_row("a"), second])
    selection = BenchRecordSelection(benchmarks.BENCHMARKS["longbench"], tmp_path, ["qasper"])
    if second["_id"] == "b":
        read = selection.benchmark.read
        blank = [replace(record, question=" ") for record in read(tmp_path, "qasper")]
        benchmark = replace(selection.benchmark, read=lambda folder, task: iter(blank))
        selection = replace(selection, benchmark=benchmark)
    with pytest.raises(DocumentError):
        selection.check_and_hash_records()


def test_all_of_a_record_but_its_name_counts() -> None:
    record = BenchRecord("longbench", "qasper", "0", "b", "d0", "q", ("yes",), 8)
    assert replace(record, id="another").compute_hash() == record.compute_hash()
    changes = {"before": "B", "document": "D", "question": "Q", "prime": "p", "chat": False}
    changes |= {"answers": ("no",), "longest": 9, "data": {"classes": ["a"]}}
    changed = [replace(record, **{name: value}) for name, value in changes.items()]
    changed.append(replace(record, before="bd0", document=""))  # it is cut elsewhere
    assert record.compute_hash() not in {other.compute_hash() for other in changed}


def test_table_has_means_averages_and_counts() -> None:
    rows = [*rows_of("ours", qasper=[0.5, 1.0], trec=[0.0]), *rows_of("theirs", trec=[1.0, 0.5])]
    scores = bench_run.group_scores_by_method(rows)
    headers, lines = bench_run.make_score_table(benchmarks.BENCHMARKS["longbench"], scores)
    assert headers == ["task", "records", "ours", "theirs"]
    assert lines == [
        ["Qasper", "2 / 0 of 200", "75.00", "-"],
        ["TREC", "1 / 2 of 200", "0.00", "75.00"],
        # (75 + 0) / 2: each task counts once, however many records
        ["LongBench average", "2 / 1 of 16 tasks", "37.50", "75.00"],
    ]
    data = bench_run.make_score_dict(benchmarks.BENCHMARKS["longbench"], scores)["ours"]
    assert data["tasks"]["qasper"] == {"score": 75.0, "records": 2, "of": 200}
    assert data["averages"] == {"LongBench": {"score": 37.5, "tasks": 2, "of": 16}}
