"""Public long-context benchmarks: prompts, files and scores.

One module a benchmark; `evaluation/metrics.py` has the scores, `bench_runner.py` the loop that can
be resumed, `report/bench_table.py` the tables.
"""

from __future__ import annotations

from esa_cli.errors import UsageError
from esa_cli.evaluation.bench import counting_stars, infinitebench, longbench, needlebench, ruler
from esa_cli.evaluation.bench.bench_runner import Benchmark, BenchRecord, BenchTask
from esa_cli.system.registry import nearest

BENCHMARKS: dict[str, Benchmark] = {
    "longbench": longbench,
    "infinitebench": infinitebench,
    "ruler": ruler,
    "counting-stars": counting_stars,
    "needlebench": needlebench,
}

__all__ = ["BENCHMARKS", "BenchRecord", "BenchTask", "Benchmark", "find"]


def find(name: str) -> Benchmark:
    """The benchmark called `name`. Raises UsageError: there is none; the hint names the nearest."""
    if name not in BENCHMARKS:
        raise UsageError(f"unknown benchmark {name!r}", nearest(name, [*BENCHMARKS]))
    return BENCHMARKS[name]
