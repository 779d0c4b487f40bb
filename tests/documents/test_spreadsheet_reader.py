"""Excel workbooks: values, sheets, what is missing, refusals and bombs."""

from __future__ import annotations

import csv
import io
import re
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import openpyxl
import sample_files as make
from openpyxl.chart import BarChart
from openpyxl.comments import Comment
from reader_checks import changed, chapters, refused

from esa_cli.documents import readers
from esa_cli.documents.document import read_document
from esa_cli.documents.readers import ExtractedText


def workbook(**sheets: Any) -> openpyxl.Workbook:
    """Rows by the name of their sheet."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    return book


def saved(book: openpyxl.Workbook) -> bytes:
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def read(book: openpyxl.Workbook) -> ExtractedText:
    return readers.extract_text(saved(book), "a.xlsx")


TABLE = (("name", "town", "sum"), ("Ann", "Ulm", 3.0), ("Bo", None, 2.5))


LINES = "name: Ann; town: Ulm; sum: 3\nname: Bo; sum: 2.5\n"


def test_every_sheet_is_a_chapter_with_rows_as_in_csv() -> None:
    book = workbook(People=TABLE, Empty=(), Old=((), ("Title",), (), *TABLE), List=(("a",), ("b",)))
    book["Old"].sheet_state = "veryHidden"
    book["Old"].insert_cols(2)
    found = read(book)
    assert found.text == (
        f"Sheet: People\n{LINES}\nSheet: Old (hidden)\nTitle\n{LINES}\nSheet: List\na\nb\n"
    )
    assert chapters(found) == [
        ("Sheet: People", "People"), ("Sheet: Old (hidden)", "Old (hidden)"),
        ("Sheet: List", "List"),
    ]  # fmt: skip
    assert found.missing == ()


def test_lines_have_the_numbers_of_their_rows(tmp_path: Path) -> None:
    book = workbook(
        A=[("Title",), (), *TABLE, (), (), ("Cy", "Bonn", 1)], B=[(), ("fig",), (), ("yew",)]
    )
    (path := tmp_path / "a.xlsx").write_bytes(saved(book))
    document = read_document(str(path))
    cells = [cell for sheet in book for row in sheet for cell in row if isinstance(cell.value, str)]
    for cell in cells:
        if cell.value not in TABLE[0]:
            start = document.text.index(cell.value)
            assert document.place(start).line == cell.row
            assert document.place(start).chapter == cell.parent.title


def test_lines_of_csv_have_the_numbers_of_their_rows(tmp_path: Path) -> None:
    written = 'name,town\nAnn,"Ulm\nDanube"\n\nBo,Bonn\n\n\nCy,Jena\nDi,Kiel\n'
    (path := tmp_path / "a.csv").write_text(written)
    document = read_document(str(path))
    for number, row in enumerate(csv.reader(io.StringIO(written)), 1):
        if row and number > 1:
            assert document.place(document.text.index(row[0])).line == number


def test_values_of_cells() -> None:
    values: list[tuple[Any, str, str]] = [
        (3.0, "", "3"), (0.1 + 0.2, "", "0.3"), (-1234567.5, "#,##0.00", "-1234567.5"),
        (12345678901234567890, "", "1.23456789012346e+19"),
        (1234567890123456, "", "1234567890123456"), (2.5e-7, "", "2.5e-07"), (0.07, "0.0%", "7%"),
        (7, '0"%"', "7"), (True, "", "TRUE"), (date(2024, 5, 1), "", "2024-05-01"),
        (datetime(2024, 5, 1, 13, 30), "", "2024-05-01 13:30:00"), (time(9, 5), "", "09:05:00"),
        (timedelta(hours=26, minutes=3), "[h]:mm:ss", "26:03:00"), ("#DIV/0!", "", "#DIV/0!"),
        (" two\nlines ", "", "two lines"), ("a_x000D_b", "", "a b"), ("  ", "", ""),
    ]  # fmt: skip
    book = workbook(A=[("key", "value"), *(("x", value) for value, _, _ in values)])
    for row, (_, form, _) in enumerate(values, 2):
        book["A"].cell(row, 2).number_format = form or book["A"].cell(row, 2).number_format
    lines = read(book).text.splitlines()[1:]
    assert lines == [f"key: x{f'; value: {text}' if text else ''}" for _, _, text in values]
    since_1904 = changed(
        saved(workbook(A=[("x", date(2024, 5, 1))])),
        lambda _, part: re.sub(rb"<workbookPr\b", b'<workbookPr date1904="1"', part),
    )
    assert "2028-05-02" in readers.extract_text(since_1904, "a.xlsx").text


def test_workbook_says_what_is_missing() -> None:
    book = workbook(A=(*TABLE, ("Cy", "=B2", "=SUM(C2:C3)")))
    sheet = book["A"]
    sheet["A1"].comment = Comment("why?", "me")
    sheet.add_chart(BarChart())
    book.create_chartsheet("Pie").add_chart(BarChart())
    found = read(book)
    assert found.text == f"Sheet: A\n{LINES}name: Cy\n"
    assert found.missing == (
        "charts are left out: 2",
        "sheets of comments are left out: 1",
        "formulas without a stored value are left out: 2 (saving the file in a spreadsheet "
        "program computes them)",
    )


def test_workbook_refusals() -> None:
    assert "damaged or cut off" in refused(make.zipped({"x": "y"}), "a.xlsx").message
    for sheet in ((("=1+1",),), ()):
        assert "without text" in refused(saved(workbook(A=sheet)), "a.xlsx").message


def test_rows_and_cells_out_of_order_and_twice() -> None:
    rows = (
        b'<row r="5"><c r="B5"><v>52</v></c><c r="A5"><v>51</v></c></row>'
        b'<row r="2"><c r="C2"><v>1</v></c><c r="A2"><v>2</v></c><c r="A2"><v>3</v></c></row>'
        b'<row r="5"><c r="C5"><v>53</v></c></row>'
    )

    def change(name: str, data: bytes) -> bytes:
        if name != "xl/worksheets/sheet1.xml":
            return data
        return re.sub(b"<sheetData>.*</sheetData>", b"<sheetData>%s</sheetData>" % rows, data)

    text = readers.extract_text(changed(make.xlsx([["x", "y"]]), change), "a.xlsx").text
    assert text.splitlines()[1:] == [
        "column 1: 3; column 3: 1", "column 1: 51; column 2: 52; column 3: 53",
    ]  # fmt: skip
