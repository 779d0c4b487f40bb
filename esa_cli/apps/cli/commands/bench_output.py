"""Output of `esa bench`: table or JSON on standard output, then the file that was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from esa_cli.apps.cli.options.output_paths import writing
from esa_cli.apps.cli.output.terminal import one_line, print_json, print_table, room

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.bench import Benchmark
    from esa_cli.evaluation.bench.bench_runner import TaskSelection
    from esa_cli.evaluation.report.bench_table import MeanScores
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.system.jsonl import Journal

Table = tuple[list[str], list[list[str]]]
"""Headers and rows."""
BESIDE = 2
"""The columns before the first method's."""
GAP = 2


class NoRoom(NamedTuple):
    """A record that a method's window has no room for, and why."""

    method: str
    task: str
    id: str
    why: str


def show(
    order: TaskSelection,
    journal: Journal,
    base: Preset,
    left_out: Sequence[NoRoom],
    *,
    complete: bool,
    as_json: bool,
    markdown: Path | None,
) -> None:
    """Prints first, so that a file that cannot be written costs nothing that was measured.

    Args:
        base: the preset that methods are laid over. left_out: is told below the table.

    Raises:
        DocumentError, ResourceError: the file cannot be written.
    """
    from esa_cli.evaluation.bench.bench_runner import titles
    from esa_cli.evaluation.report import bench_table as table

    found = table.scores(journal.rows)
    stretched = titles(base, found, journal.header["settings"]["length"])
    counts = Counter((one.method, one.task) for one in left_out).items()
    notes = [
        *order.notes(),
        *(f"{method}: {task}: {n:,} left out, for want of room" for (method, task), n in counts),
    ]
    if as_json:
        scores = table.as_dict(order.benchmark, found)
        result = {
            "complete": complete, "scores": scores, "notes": order.notes(),
            "left_out": [one._asdict() for one in left_out],
        }  # fmt: skip
        print_json({**journal.header, **result, "rows": journal.rows})
    else:
        for number, piece in enumerate(_pieces(order.benchmark, found, stretched, room())):
            if number:
                print()
            print_table(*piece)
        for note in notes:
            print(one_line(f"note: {note}"))
    if markdown is not None:
        below = "".join(f"\n{note}\n" for note in notes)
        text = table.markdown(*table.table(order.benchmark, found, stretched))
        with writing(markdown):
            markdown.write_text(text + below, encoding="utf-8")


def is_table(path: Path) -> bool:
    """True if the file is a table that `show` wrote."""
    with path.open("rb") as file:
        return file.readline().startswith(b"| task | records |")


def _pieces(
    benchmark: Benchmark, found: MeanScores, titles: Mapping[str, str], width: int
) -> list[Table]:
    """The table, divided by methods where it would be wider than `width`; at least one a piece."""
    from esa_cli.evaluation.report.bench_table import table

    pieces: list[Table] = []
    left = list(found)
    while left or not pieces:
        some = (
            table(benchmark, {name: found[name] for name in left[:taken]}, titles)
            for taken in range(max(len(left), 1), 0, -1)
        )
        piece = next(one for one in some if _width(one) <= width or len(one[0]) <= BESIDE + 1)
        pieces.append(piece)
        left = left[len(piece[0]) - BESIDE :]
    return pieces


def _width(piece: Table) -> int:
    """Columns that a table takes, with two between its columns."""
    from rich.cells import cell_len

    headers, lines = piece
    widths = (max(map(cell_len, column)) for column in zip(headers, *lines, strict=True))
    return sum(width + GAP for width in widths) - GAP


def tell_plain(journal: Journal, made: dict[str, Preset], reporter: Reporter) -> None:
    """Says which scores are not those of a selection: short prompts are attended to plainly."""
    from esa_cli.qa.presets.method_presets import FROM_TEXT
    from esa_cli.qa.presets.resolved_preset import resolve

    plain = {
        name: resolve(preset).method.window.dense_below
        for name, preset in made.items()
        if name != FROM_TEXT
    }
    asked = [row for row in journal.rows if row["method"] in plain]
    short = sum(row["tokens"] <= plain[row["method"]] for row in asked)
    if short:
        most = f"{max(plain.values()):,} tokens (window.dense)"
        reporter.note(f"esa: {short} of {len(asked)} prompts have at most {most}: plain attention")
