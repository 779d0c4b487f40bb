"""Output of `esa selftest`: tables or JSON on standard output, a page, a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options.output_paths import writing
from esa_cli.apps.cli.output.terminal import clean, make_console, print_json

if TYPE_CHECKING:
    from esa_cli.apps.cli.commands.selftest_request import SelftestRequest
    from esa_cli.evaluation.report.statistics import Summary
    from esa_cli.system.jsonl import Journal


def show(request: SelftestRequest, journal: Journal, *, complete: bool) -> None:
    """Tables on standard output, then the files that were asked for.

    Raises:
        DocumentError, ResourceError: a file cannot be written.
    """
    from esa_cli.evaluation.report.statistics import summarise

    summary = summarise(journal.rows)
    if request.as_json:
        print_json({**journal.header, "complete": complete, "rows": journal.rows})
    else:
        _print(summary, journal)
    if request.report is not None:
        from esa_cli.evaluation.report.report_page import write_html

        with writing(request.report):
            write_html(request.report, journal.header, journal.rows)
    if request.png is not None:
        from esa_cli.evaluation.report.figures import picture

        with writing(request.png):
            picture(summary).write_png(request.png)


def _print(summary: Summary, journal: Journal) -> None:
    from rich.text import Text

    from esa_cli.evaluation.report.terminal_tables import report

    console = make_console(sys.stdout)
    console.print(report(summary, min(console.width, 120)))
    for line in _readings(journal.rows):
        console.print(Text(line, style="dim"), soft_wrap=not console.is_terminal)


def _readings(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Whose rule the documents were read by: it is part of what a score means."""
    rules = {
        "shared": "first and local tokens of the preset",
        "own": "by its own rule",
        "text": "for the finder alone",
    }
    out = []
    for reading, rule in rules.items():
        found = (row for row in rows if row.get("reading") == reading and not row.get("dense"))
        names = ", ".join(dict.fromkeys(row["method"] for row in found))
        if names:
            out.append(f"reading: {reading} ({rule}): {clean(names)}")
    return out
