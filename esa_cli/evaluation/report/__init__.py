"""Reports on the rows of `esa selftest` and `esa bench`: tables, heat maps, charts, one HTML page.

    statistics.summarise(rows)     rows -> Summary: means, intervals, recall, reasons
    terminal_tables.report(...)    Summary -> a rich renderable
    report_page.page(header, rows) a run -> a self-contained HTML page
    figures.picture(summary)       Summary -> Chart, saved as PNG or inserted as SVG

No model, preset or document is opened here. rich, jinja2 and matplotlib are imported only with the
module that uses them.
"""
