"""Public long-context benchmarks: `benchmarks` has files, prompts and scores, `bench_run` asks."""

from esa_cli.evaluation.bench.benchmarks import BENCHMARKS, Benchmark, BenchRecord, BenchTask, find

__all__ = ["BENCHMARKS", "BenchRecord", "BenchTask", "Benchmark", "find"]
