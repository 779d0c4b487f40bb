"""PowerPoint presentations: text, slides as pages, what is missing, and what each refusal says."""

from __future__ import annotations

import io
from typing import Any

import pptx
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches
from reader_checks import refused

from esa_cli.documents import readers
from esa_cli.documents.readers.text_builder import STDIN, Mark

BOX = (Inches(1), Inches(1), Inches(4), Inches(3))


def saved(show: Any) -> bytes:
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()


def slide(show: Any, title: str, words: str = "") -> Any:
    new = show.slides.add_slide(show.slide_layouts[1])
    new.shapes.title.text = title
    new.placeholders[1].text = words
    return new


def test_slides_are_pages_and_their_titles_chapters() -> None:
    show = pptx.Presentation()
    slide(show, "Plan", "one\ntwo\vhalf").notes_slide.notes_text_frame.text = "say it\nslowly"
    second = slide(show, "Costs\n2024", "area: 10")
    raised = second.placeholders[1].text_frame.paragraphs[0].add_run()
    raised.text = "6"
    raised.font._element.set("baseline", "30000")
    table = second.shapes.add_table(2, 2, *BOX).table
    for row, cells in enumerate((("name", "sum"), ("Ann", "3"))):
        for column, cell in enumerate(cells):
            table.cell(row, column).text = cell
    group = second.shapes.add_group_shape()
    group.shapes.add_textbox(*BOX).text_frame.text = "grouped"
    slide(show, "", "last")._element.set("show", "0")
    found = readers.extract_text(saved(show), "a.pptx")
    assert found.text == (
        "Plan\n\none\ntwo\nhalf\n\nNotes: say it\nslowly\n\n"
        "Costs\n2024\n\narea: 10^6\n\nname | sum\nAnn | 3\n\ngrouped\n\nlast\n"
    )
    assert [(mark.page, mark.chapter) for mark in found.marks] == [
        (1, "Plan"), (2, "Costs 2024"), (3, "(hidden)"),
    ]  # fmt: skip
    assert found.missing == ()
    assert readers.extract_text(saved(show), STDIN) == found, "content tells it"


def test_presentation_says_what_is_missing() -> None:
    show = pptx.Presentation()
    data = CategoryChartData()
    data.categories = ["a"]
    data.add_series("s", (1,))
    slide(show, "Pie").shapes.add_chart(XL_CHART_TYPE.PIE, *BOX, data)
    found = readers.extract_text(saved(show), "a.pptx")
    assert found.text == "Pie\n"
    assert found.marks == (Mark(0, 1, "Pie"),)
    assert found.missing == ("charts are left out: 1",)
    assert "without text" in refused(saved(pptx.Presentation()), "a.pptx").message
