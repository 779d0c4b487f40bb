"""Public long-context benchmarks: prompts, files and scores.

One module a benchmark; `records.py` reads their files, `evaluation/metrics.py` has the scores,
`bench_run.py` asks the records by methods, `bench_table.py` makes the tables.
"""

from __future__ import annotations

from esa_cli.errors import UsageError
from esa_cli.evaluation.bench.counting_stars import COUNTING_STARS
from esa_cli.evaluation.bench.infinitebench import INFINITEBENCH
from esa_cli.evaluation.bench.longbench import LONGBENCH
from esa_cli.evaluation.bench.needlebench import NEEDLEBENCH
from esa_cli.evaluation.bench.records import Benchmark, BenchRecord, BenchTask
from esa_cli.system.registry import nearest

BENCHMARKS: dict[str, Benchmark] = {
    "longbench": LONGBENCH,
    "infinitebench": INFINITEBENCH,
    "counting-stars": COUNTING_STARS,
    "needlebench": NEEDLEBENCH,
}

__all__ = ["BENCHMARKS", "BenchRecord", "BenchTask", "Benchmark", "find"]


def find(name: str) -> Benchmark:
    """The benchmark called `name`. Raises UsageError: there is none; the hint names the nearest."""
    if name not in BENCHMARKS:
        raise UsageError(f"unknown benchmark {name!r}", nearest(name, [*BENCHMARKS]))
    return BENCHMARKS[name]
