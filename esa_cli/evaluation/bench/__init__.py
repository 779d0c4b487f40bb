"""Public benchmarks: `benchmarks` has files, prompts and scores, and `bench_run` asks questions."""

from esa_cli.evaluation.bench.benchmarks import (
    BENCHMARKS,
    Benchmark,
    BenchRecord,
    BenchTask,
    find_benchmark,
)

__all__ = ["BENCHMARKS", "BenchRecord", "BenchTask", "Benchmark", "find_benchmark"]
