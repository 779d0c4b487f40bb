"""A benchmark's scores as a table: a row for each task in the paper's order, a column for each
method, and the average of each group, all in per cent.

Beside each score is its number of records, so that a part of a benchmark cannot pass for the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from esa_cli.evaluation.bench.bench_runner import Benchmark, BenchTask


class MeanScore(NamedTuple):
    """A mean from 0 to 1, and the number of its values."""

    mean: float
    of: int


MeanScores = Mapping[str, Mapping[str, MeanScore]]
"""Method -> task -> score."""


def scores(rows: Iterable[Mapping[str, Any]]) -> MeanScores:
    """The means over the rows of each method and task, methods in the order they first appear."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(row["method"], {}).setdefault(row["task"], []).append(row["score"])
    return {
        method: {task: MeanScore(sum(s) / len(s), len(s)) for task, s in tasks.items()}
        for method, tasks in found.items()
    }


def average(tasks: Sequence[BenchTask], done: Mapping[str, MeanScore]) -> MeanScore | None:
    """The mean of the tasks' means, each counting once; `of` is how many tasks."""
    means = [done[task.name].mean for task in tasks if task.name in done]
    return MeanScore(sum(means) / len(means), len(means)) if means else None


def groups(benchmark: Benchmark) -> dict[str, list[BenchTask]]:
    """Tasks by group; a group has one average."""
    found: dict[str, list[BenchTask]] = {}
    for task in benchmark.TASKS:
        found.setdefault(task.group, []).append(task)
    return found


def table(
    benchmark: Benchmark, found: MeanScores, titles: Mapping[str, str] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Headers and rows, without groups and tasks that have no scores.

    Args:
        titles: headings of methods that differ from their names.
    """
    methods = list(found)
    lines = []
    for group, tasks in groups(benchmark).items():
        asked = [task for task in tasks if any(task.name in found[m] for m in methods)]
        if not asked:
            continue
        for task in asked:
            cells = [found[m].get(task.name) for m in methods]
            lines.append([task.title, _counts(cells, task.size), *map(_cell, cells)])
        means = [average(tasks, found[m]) for m in methods]
        counted = _counts(means, len(tasks)) + " tasks"
        lines.append([f"{group} average", counted, *map(_cell, means)])
    return ["task", "records", *((titles or {}).get(m, m) for m in methods)], lines


def _cell(score: MeanScore | None) -> str:
    return "-" if score is None else f"{100 * score.mean:.2f}"


def _counts(cells: Sequence[MeanScore | None], whole: int | None) -> str:
    """`5 of 200`; `5 / 3 of 200` where columns differ."""
    counts = [0 if cell is None else cell.of for cell in cells]
    said = " / ".join(map(str, counts if len(set(counts)) > 1 else counts[:1]))
    return said if whole is None else f"{said} of {whole}"


def markdown(headers: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The table in Markdown."""
    rule = ["-"] + ["-:"] * (len(headers) - 1)
    rows = [headers, rule, *lines]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows)


def as_dict(benchmark: Benchmark, found: MeanScores) -> dict[str, Any]:
    """The same for JSON: method -> tasks and averages, in per cent, with their counts."""
    sizes = {task.name: task.size for task in benchmark.TASKS}
    out: dict[str, Any] = {}
    for method, done in found.items():
        tasks = {
            name: {"score": 100 * s.mean, "records": s.of, "of": sizes[name]}
            for name, s in done.items()
        }
        means = {}
        for group, members in groups(benchmark).items():
            mean = average(members, done)
            if mean is not None:
                means[group] = {"score": 100 * mean.mean, "tasks": mean.of, "of": len(members)}
        out[method] = {"tasks": tasks, "averages": means}
    return out
