"""A benchmark's scores as a table: a row for each task in the paper's order, a column for each
method, and the average of each group, all in per cent.

Beside each score is its number of records, so that a part of a benchmark cannot pass for the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from esa_cli.evaluation.bench.records import Benchmark, BenchTask


class MeanScore(NamedTuple):
    """A mean from 0 to 1, and the number of its values."""

    mean: float
    of: int


MeanScores = Mapping[str, Mapping[str, MeanScore]]
"""Method -> task -> score."""


def mean_scores(rows: Iterable[Mapping[str, Any]]) -> MeanScores:
    """The means over the rows of each method and task, methods in the order they first appear."""
    scores: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        scores.setdefault(row["method"], {}).setdefault(row["task"], []).append(row["score"])
    return {
        method: {task: _mean(some) for task, some in tasks.items()}
        for method, tasks in scores.items()
    }


def _mean(values: Sequence[float]) -> MeanScore:
    return MeanScore(sum(values) / len(values), len(values))


def _groups(benchmark: Benchmark) -> Iterator[tuple[str, list[BenchTask]]]:
    for group in dict.fromkeys(task.group for task in benchmark.tasks):
        yield group, [task for task in benchmark.tasks if task.group == group]


def _average(tasks: Sequence[BenchTask], done: Mapping[str, MeanScore]) -> MeanScore | None:
    """The mean of the tasks' means, each counting once; `of` is how many tasks."""
    means = [done[task.name].mean for task in tasks if task.name in done]
    return _mean(means) if means else None


def table(benchmark: Benchmark, scores: MeanScores) -> tuple[list[str], list[list[str]]]:
    """Headers and rows, without groups and tasks that have no scores."""
    lines = []
    for group, tasks in _groups(benchmark):
        asked = [task for task in tasks if any(task.name in done for done in scores.values())]
        for task in asked:
            cells = [done.get(task.name) for done in scores.values()]
            lines.append(_line(task.title, cells, f"{task.size}"))
        if asked:
            means = [_average(tasks, done) for done in scores.values()]
            lines.append(_line(f"{group} average", means, f"{len(tasks)} tasks"))
    return ["task", "records", *scores], lines


def _line(title: str, cells: Sequence[MeanScore | None], whole: str) -> list[str]:
    """The count is `5 of 200`; `5 / 3 of 200` where columns differ."""
    counts = [0 if cell is None else cell.of for cell in cells]
    count = " / ".join(map(str, counts if len(set(counts)) > 1 else counts[:1]))
    means = ("-" if cell is None else f"{100 * cell.mean:.2f}" for cell in cells)
    return [title, f"{count} of {whole}", *means]


def markdown(headers: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The table in Markdown."""
    rule = ["-"] + ["-:"] * (len(headers) - 1)
    rows = [headers, rule, *lines]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows)


def as_dict(benchmark: Benchmark, scores: MeanScores) -> dict[str, Any]:
    """The same for JSON: method -> tasks and averages, in per cent, with their counts."""
    sizes = {task.name: task.size for task in benchmark.tasks}
    out: dict[str, Any] = {}
    for method, done in scores.items():
        tasks = {
            name: {"score": 100 * score.mean, "records": score.of, "of": sizes[name]}
            for name, score in done.items()
        }
        averages = {}
        for group, members in _groups(benchmark):
            mean = _average(members, done)
            if mean is not None:
                averages[group] = {"score": 100 * mean.mean, "tasks": mean.of, "of": len(members)}
        out[method] = {"tasks": tasks, "averages": averages}
    return out
