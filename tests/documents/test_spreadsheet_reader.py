"""Excel workbooks: values, sheets, what is missing, refusals and bombs."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from typing import Any

import openpyxl
import pytest
import sample_files as make
from openpyxl.chart import BarChart
from openpyxl.comments import Comment
from reader_checks import refused

from esa_cli.documents import readers
from esa_cli.documents.readers import STDIN, ExtractedText

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100)


def chapters(found: ExtractedText) -> list[tuple[str, str | None]]:
    """The line each mark begins at, and its chapter."""
    return [(found.text[mark.start :].split("\n")[0], mark.chapter) for mark in found.marks]


def changed(data: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """The same zip with other parts; None leaves one out."""
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
        parts = {name: change(name, whole.read(name)) for name in whole.namelist()}
    return make.zipped({name: part for name, part in parts.items() if part is not None})


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
    return readers.read(saved(book), "a.xlsx")


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


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        (3.0, "", "3"),
        (0.1 + 0.2, "", "0.3"),
        (-1234567.5, "#,##0.00", "-1234567.5"),
        (12345678901234567890, "", "1.23456789012346e+19"),
        (1234567890123456, "", "1234567890123456"),
        (2.5e-7, "", "2.5e-07"),
        (0.07, "0.0%", "7%"),
        (7, '0"%"', "7"),
        (True, "", "TRUE"),
        (date(2024, 5, 1), "", "2024-05-01"),
        (datetime(2024, 5, 1, 13, 30), "", "2024-05-01 13:30:00"),
        (time(9, 5), "", "09:05:00"),
        (timedelta(hours=26, minutes=3), "[h]:mm:ss", "26:03:00"),
        ("#DIV/0!", "", "#DIV/0!"),
        (" two\nlines ", "", "two lines"),
        ("a_x000D_b", "", "a b"),
        ("  ", "", None),
    ],
)
def test_values_of_cells(value: Any, form: str, expected: str | None) -> None:
    book = workbook(A=(("key", "value"), ("x", value)))
    if form:
        book["A"]["B2"].number_format = form
    shown = f"; value: {expected}" if expected else ""
    assert read(book).text == f"Sheet: A\nkey: x{shown}\n"


def test_workbook_says_what_is_missing() -> None:
    book = workbook(A=(*TABLE, ("Cy", "=B2", "=SUM(C2:C3)")))
    sheet = book["A"]
    sheet["A1"].comment = Comment("why?", "me")
    sheet.add_chart(BarChart())
    sheet.oddHeader.center.text = "Draft"
    book.create_chartsheet("Pie").add_chart(BarChart())
    found = read(book)
    assert found.text == f"Sheet: A\n{LINES}name: Cy\n"
    assert found.missing == (
        "formulas without a stored value are left out: 2 (saving the file in a spreadsheet "
        "program computes them)",
        "charts are left out: 2",
        "comments are left out",
        "headers and footers are left out",
    )


def test_formulas_with_a_stored_value_are_none_that_is_missing() -> None:
    def compute(name: str, part: bytes) -> bytes:
        part = part.replace(b"<f>B2</f><v></v>", b"<f>B2</f><v>7</v>").replace(
            b"<f>B2</f><v />", b"<f>B2</f><v>7</v>"
        )
        for empty in (b'<c r="C4"><f>""</f><v></v></c>', b'<c r="C4"><f>""</f><v /></c>'):
            part = part.replace(empty, b'<c r="C4" t="str"><f>""</f><v></v></c>')
        return part

    data = changed(saved(workbook(A=(*TABLE, ("Cy", "=B2", '=""')))), compute)
    found = readers.read(data, "a.xlsx")
    assert found.text == f"Sheet: A\n{LINES}name: Cy; town: 7\n"
    assert found.missing == ()


def test_workbook_parts_that_are_not_cells() -> None:
    data = saved(workbook(A=TABLE))
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    more = {
        "xl/drawings/drawing1.xml": b"<wsDr><a:t>boxed</a:t></wsDr>",
        "xl/media/a.png": b"x", "xl/media/b.png": b"x", "xl/embeddings/o.bin": b"x",
        "docProps/core.xml": b"broken",
    }  # fmt: skip
    found = readers.read(make.zipped(parts | more), "a.xlsx")
    assert found.text == f"Sheet: A\n{LINES}"
    assert found.missing == (
        "pictures are left out: 2", "embedded files are left out: 1", "text boxes are left out",
    )  # fmt: skip


def test_workbook_whose_sheet_is_not_there_or_says_a_wrong_size() -> None:
    data = saved(workbook(A=TABLE, B=TABLE))
    without = changed(data, lambda name, part: None if "sheet2" in name else part)
    assert readers.read(without, "a.xlsx").missing == ("the sheet B is named but not in the file",)
    small = changed(data, lambda _, part: part.replace(b'ref="A1:C3"', b'ref="A1"'))
    assert readers.read(small, "a.xlsx").text == f"Sheet: A\n{LINES}\nSheet: B\n{LINES}"


def test_workbook_that_was_saved_as_strict() -> None:
    def strict(name: str, part: bytes) -> bytes:
        for usual, other in (
            (b"spreadsheetml/2006/main", b"spreadsheetml/main"),
            (b"officeDocument/2006/relationships", b"officeDocument/relationships"),
        ):
            part = part.replace(
                b"schemas.openxmlformats.org/" + usual, b"purl.oclc.org/ooxml/" + other
            )
        return part

    assert readers.read(changed(saved(workbook(A=TABLE)), strict), "a").text.endswith(LINES)


def test_workbook_is_told_by_content() -> None:
    data = saved(workbook(A=TABLE))
    for name in (STDIN, "table", "a.csv", "a.docx"):
        assert readers.read(data, name).text == f"Sheet: A\n{LINES}"
    around = make.docx(make.paragraph("Hello"))
    with zipfile.ZipFile(io.BytesIO(around)) as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:  # stored, so that its names can be seen
        for name, part in (parts | {"word/embeddings/table.xlsx": data}).items():
            archive.writestr(name, part)
    assert readers.read(out.getvalue(), STDIN).text == "Hello\n"


def test_workbook_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "old Office file (xls)" in refused(OLE, "a.xlsx").message
    locked = refused(OLE + "EncryptedPackage".encode("utf-16-le"), "a.xlsx")
    assert "protected by a password" in locked.message
    assert "damaged or cut off" in refused(saved(workbook(A=TABLE))[:-40], "a.xlsx").message
    assert "damaged or cut off" in refused(make.zipped({"x": "y"}), "a.xlsx").message
    empty = refused(saved(workbook(A=(("=1+1",),))), "a.xlsx")
    assert "never been computed" in empty.message
    assert "without a value" in refused(saved(workbook(A=())), "a.xlsx").message
    data = saved(workbook(A=TABLE))
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    assert refused(data, "a.xlsx").hint == "pip install openpyxl"


def test_workbook_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(workbook(A=[[f"{n}{'x' * 30_000}" for n in range(70)]]))
    assert len(data) < 1 << 15
    monkeypatch.setenv("ESA_READ_PART", "1MiB")
    assert "its part xl/" in refused(data, "a.xlsx").message
    monkeypatch.undo()
    monkeypatch.setenv("ESA_READ_BYTES", "1MiB")
    assert "at most 1 MiB" in refused(data, "a.xlsx").message
    monkeypatch.undo()
    laughs = b'<!DOCTYPE x [<!ENTITY a "ha">]><'
    bomb = changed(data, lambda n, part: part.replace(b"<", laughs, 1) if "sheet1" in n else part)
    assert "entities of its own" in refused(bomb, "a.xlsx").message
    far = changed(
        saved(workbook(A=TABLE)), lambda _, part: part.replace(b'r="3"', b'r="99999999999"')
    )
    assert "too many rows" in refused(far, "a.xlsx").message
    wide = workbook(A=[[None] * n + ["x"] for n in range(0, 300, 3)])
    monkeypatch.setattr(readers.spreadsheet_reader, "_CELLS", 1 << 12)
    assert "100 rows by 100 columns" in refused(saved(wide), "a.xlsx").message


def h(inside: str, level: int = 1, more: str = "") -> str:
    return f'<text:h text:outline-level="{level}" {more}>{inside}</text:h>'


def at(found: ExtractedText, words: str) -> tuple[int | None, str | None]:
    """Page and chapter where these words stand."""
    start = found.text.index(words)
    mark = [mark for mark in found.marks if mark.start <= start][-1]
    return mark.page, mark.chapter


def test_rows_and_cells_out_of_order_and_twice() -> None:
    rows = (
        '<row r="5"><c r="B5"><v>52</v></c><c r="A5"><v>51</v></c></row>'
        '<row r="2"><c r="C2"><v>1</v></c><c r="A2"><v>2</v></c><c r="A2"><v>3</v></c></row>'
        '<row r="5"><c r="C5"><v>53</v></c></row>'
    )

    def change(name: str, data: bytes) -> bytes:
        if name != "xl/worksheets/sheet1.xml":
            return data
        before, _, rest = data.partition(b"<sheetData>")
        return (
            before
            + b"<sheetData>"
            + rows.encode()
            + b"</sheetData>"
            + rest.split(b"</sheetData>")[1]
        )

    text = readers.read(changed(make.xlsx([["x", "y"]]), change), "a.xlsx").text
    assert text.splitlines()[1:] == [
        "column 1: 3; column 3: 1", "column 1: 51; column 2: 52; column 3: 53",
    ]  # fmt: skip


def test_years_name_the_columns_of_a_sheet() -> None:
    text = readers.read(make.xlsx([["Item", 2019, 2020], ["Revenue", 10, 12]]), "a.xlsx").text
    assert text.splitlines()[1:] == ["Item: Revenue; 2019: 10; 2020: 12"]
