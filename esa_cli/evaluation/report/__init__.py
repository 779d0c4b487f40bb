"""From the rows of `esa selftest` to tables, heat maps, one HTML page and PNG pictures.

    rows.read(path)          a JSON-lines file -> Run: its header and its rows
    summary.summarise(rows)  rows -> Summary: means, intervals, recall, reasons
    terminal.report(...)     Summary -> something rich prints
    html.page(run)           Run -> one self-contained page
    png.picture(...)         Summary -> a picture (needs matplotlib)

`recall_chart` of `html` and `png` draws recall per layer for any named series. It does not know how
a row was made: no model, no preset and no document is opened here. rich, jinja2 and matplotlib are
imported only with the module that uses them.
"""

from __future__ import annotations

from esa_cli.evaluation.report.result_rows import Row, Run, read
from esa_cli.evaluation.report.statistics import Cell, DepthBin, Summary, summarise

__all__ = ["Cell", "DepthBin", "Row", "Run", "Summary", "read", "summarise"]
