"""Public long-context benchmarks: prompts, files and scores.

`benchmarks.py` has the four, `records.py` reads their files, `evaluation/metrics.py` has the
scores, `bench_run.py` asks the records by methods, `bench_table.py` makes the tables.
"""

from esa_cli.evaluation.bench.benchmarks import BENCHMARKS, find
from esa_cli.evaluation.bench.records import Benchmark, BenchRecord, BenchTask

__all__ = ["BENCHMARKS", "BenchRecord", "BenchTask", "Benchmark", "find"]
