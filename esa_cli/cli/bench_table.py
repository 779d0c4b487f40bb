"""What `esa bench` shows: table or JSON on standard output, then the file that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .files import writing
from .render import print_json, print_table

if TYPE_CHECKING:
    from ..bench.order import Order
    from ..journal import Journal
    from ..preset import Preset


def show(
    order: Order,
    journal: Journal,
    base: Preset,
    *,
    complete: bool,
    as_json: bool,
    markdown: Path | None,
) -> None:
    """Prints first, so that a file that cannot be written costs nothing that was measured.

    Args:
        base: the preset that methods are laid over.

    Raises:
        DocumentError, ResourceError: the file cannot be written.
    """
    from ..bench import table
    from ..bench.order import titles

    found = table.scores(journal.rows)
    stretched = titles(base, found, journal.header["settings"]["length"])
    headers, lines = table.table(order.benchmark, found, stretched)
    if as_json:
        scores = table.as_dict(order.benchmark, found)
        result = {"complete": complete, "scores": scores, "notes": order.notes()}
        print_json({**journal.header, **result, "rows": journal.rows})
    else:
        print_table(headers, lines)
        for note in order.notes():
            print(f"note: {note}")
    if markdown is not None:
        notes = "".join(f"\n{note}\n" for note in order.notes())
        with writing(markdown):
            markdown.write_text(table.markdown(headers, lines) + notes, encoding="utf-8")
