"""Excel workbooks: values, sheets, what is missing, refusals and bombs."""

from __future__ import annotations

import csv
import io
import random
import re
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import openpyxl
import pptx
import pytest
import sample_files as make
from openpyxl.chart import BarChart
from openpyxl.comments import Comment
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches
from reader_checks import changed, chapters, refused, text_of

from esa_cli.documents import readers
from esa_cli.documents.document import Document, read_document
from esa_cli.documents.readers import ExtractedText
from esa_cli.documents.readers.text_builder import STDIN, Mark
from esa_cli.qa.finding.passage import Passage


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


ROOMS = (("Room", "Floor", "Since"), ("Hall", 2, 1999), ("Loft", 4, 2004))
ROOM_LINES = "Room: Hall; Floor: 2; Since: 1999\nRoom: Loft; Floor: 4; Since: 2004\n"
PAIRS = (("Item", "Price"), ("Rope", 7), ("Nail", 2))


def lines_of(*rows: Any) -> str:
    return read(workbook(A=rows)).text.removeprefix("Sheet: A\n")


def test_each_table_of_a_sheet_has_names_of_its_own() -> None:
    assert lines_of(*TABLE, (), *ROOMS) == LINES + ROOM_LINES
    assert lines_of(*TABLE, (), ("Rooms",), *ROOMS) == f"{LINES}Rooms\n{ROOM_LINES}"
    pairs = "Item: Rope; Price: 7\nItem: Nail; Price: 2\n"
    assert lines_of(*PAIRS, (), *PAIRS) == pairs * 2
    # The names go on below a group's title, a total, and rows that are no names.
    rest = (("Cy", "Bonn", 9), ("Di", "Kiel", 4))
    more = "name: Cy; town: Bonn; sum: 9\nname: Di; town: Kiel; sum: 4\n"
    assert lines_of(*TABLE, (), *rest) == LINES + more
    assert lines_of(*TABLE, (), ("North",), *rest) == f"{LINES}name: North\n{more}"
    assert lines_of(*TABLE, (), ("all", None, 5.5)) == f"{LINES}name: all; sum: 5.5\n"
    # A pair of words above a table is no table.
    assert lines_of(("Owner", "Ann"), ("Date", "1 May"), (), *TABLE) == (
        f"Owner; Ann\nDate; 1 May\n{LINES}"
    )


def test_rows_of_two_tables_have_the_numbers_of_the_sheet() -> None:
    found = read(workbook(A=[*TABLE, (), (), *ROOMS]))
    rows = {mark.row: found.text[mark.start :] for mark in found.marks if mark.row}
    assert rows[7].lstrip().startswith("Room: Hall")


def test_merged_cells_belong_to_each_row_and_name() -> None:
    book = workbook(
        A=[
            ("Site", "2025", None, "2026", None),
            (None, "Plan", "Spent", "Plan", "Spent"),
            ("Ulm", 1, 2, 3, 4),
            (None, 5, 6, 7, 8),
            ("note", None, None, None, None),
            ("Bonn", 9, 10, 11, 12),
        ]
    )
    for cells in ("A1:A2", "B1:C1", "D1:E1", "A3:A4", "A5:E5"):
        book["A"].merge_cells(cells)
    names = [f"{year} {kind}" for year in (2025, 2026) for kind in ("Plan", "Spent")]
    want = "Sheet: A\n"
    for site, *values in (
        ("Ulm", 1, 2, 3, 4),
        ("Ulm", 5, 6, 7, 8),
        ("note",),
        ("Bonn", 9, 10, 11, 12),
    ):
        cells = [f"Site: {site}", *(f"{n}: {v}" for n, v in zip(names, values, strict=False))]
        want += "; ".join(cells) + "\n"
    assert read(book).text == want


def test_merged_cells_of_other_rows_name_no_columns() -> None:
    book = workbook(A=[*TABLE, ("Cy", "away", None), ("Di", "Ulm", "none")])
    book["A"].merge_cells("B4:C4")
    assert read(book).text == (
        f"Sheet: A\n{LINES}name: Cy; town: away\nname: Di; town: Ulm; sum: none\n"
    )


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        ("[$£-809]#,##0.00", 1200, "£1200"), ("#,##0.00 [$€-407]", -7.5, "-7.50 €"),
        ('_-"£"* #,##0.00_-;-"£"* #,##0.00_-', -3, "-£3"), ('"USD" #,##0', 4, "USD 4"),
        ("[$£-809]#,##0.00", 15.9, "£15.90"),
        ("[$CHF] #,##0", 4, "CHF 4"), ("[Red]#,##0", 4, "4"), ('0" km"', 4, "4"),
        ("[<10]0;0.0", 4, "4"), ("€", 4, "4"), ("0.0%", 0.5, "50%"),
    ],
)  # fmt: skip
def test_sums_have_the_currency_of_their_format(form: str, value: float, text: str) -> None:
    book = workbook(A=[("key", "sum"), ("x", value)])
    book["A"]["B2"].number_format = form
    assert read(book).text.splitlines()[1] == f"key: x; sum: {text}"


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


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_csv_rows_name_their_columns(sign: str) -> None:
    rows = [["name", "town"], ["Ann", '"a\nb"'], ["", "Rome"], ["Bo", "Ulm", "9"]]
    text = "\r\n".join(sign.join(row) for row in rows)
    assert text_of(text, "a.csv") == (
        "name: Ann; town: a b\ntown: Rome\nname: Bo; town: Ulm; column 3: 9\n"
    )


def test_csv_without_heading_and_what_is_no_table() -> None:
    assert text_of("1,2\n3,4\n", "a.csv") == "column 1: 1; column 2: 2\ncolumn 1: 3; column 2: 4\n"
    assert text_of(",b\n0,x\n", "a.csv") == "column 1: 0; b: x\n"
    assert text_of("just words\nand more\n", "a.csv") == "just words\nand more\n"
    assert text_of('a,b\n1,"open\n', "a.csv") == 'a,b\n1,"open\n', "no cell may swallow the rest"
    assert text_of("a,b\n1,2\n", "a.txt") == "a,b\n1,2\n"


def test_csv_with_lines_above_the_table() -> None:
    table = "Date,Payee,Sum\n1 May,Ann,12\n2 May,Bo,3\n"
    rows = "Date: 1 May; Payee: Ann; Sum: 12\nDate: 2 May; Payee: Bo; Sum: 3\n"
    assert text_of(table, "a.csv") == rows
    assert text_of(f"Statement\n\n{table}", "a.csv") == f"Statement\n{rows}"
    assert text_of(f"Statement,,\n{table}", "a.csv") == f"Statement\n{rows}"
    assert text_of(f"Statement\nOwner,Ann\n\n{table}\n", "a.csv") == (
        f"Statement\nOwner; Ann\n{rows}"
    )


@pytest.mark.parametrize(
    ("rows", "last"),
    [
        ("Item,2019,2020\nRevenue,10,12", "Item: Revenue; 2019: 10; 2020: 12"),
        ("Ann,1985,2020\nBob,1990,2021", "column 1: Bob; column 2: 1990; column 3: 2021"),
        ("Ann,1,2,3\nBob,4,5,6", "column 1: Bob; column 2: 4; column 3: 5; column 4: 6"),
    ],
)  # fmt: skip
def test_csv_numbers_that_name_columns(rows: str, last: str) -> None:
    assert readers.extract_text(rows.encode(), "a.csv").text.splitlines()[-1] == last


def test_csv_whose_heading_is_too_short_names_nothing() -> None:
    """As R writes it: the numbers of the rows have no name, and all others would be shifted."""
    assert text_of("name,town\n1,Ann,Ulm\n2,Bo,Rome\n", "a.csv") == (
        "column 1: name; column 2: town\n"
        "column 1: 1; column 2: Ann; column 3: Ulm\ncolumn 1: 2; column 2: Bo; column 3: Rome\n"
    )


def test_csv_with_as_many_commas_in_every_row() -> None:
    assert text_of("1,5;2,5\n3,5;4,5\n", "a.csv") == (
        "column 1: 1,5; column 2: 2,5\ncolumn 1: 3,5; column 2: 4,5\n"
    )
    assert text_of("Lee, Ann\tUlm, DE\nKay, Bo\tRome, IT\n", "a.tsv") == (
        "Lee, Ann: Kay, Bo; Ulm, DE: Rome, IT\n"
    )


@pytest.mark.parametrize("seed", range(5))
def test_csv_random_tables_give_each_value_the_name_of_its_column(seed: int) -> None:
    draw = random.Random(seed)
    names = [f"name {letter}" for letter in "abcdef"[: draw.randint(2, 6)]]
    rows = [[draw.choice(("", "x", "7", 'a "b"')) for _ in names] for _ in range(20)]
    quoted = [",".join('"' + c.replace('"', '""') + '"' for c in row) for row in (names, *rows)]
    want = ""
    for row in rows:
        cells = []
        for column in range(len(names)):
            if row[column]:
                cells.append(names[column] + ": " + row[column])
        want += "; ".join(cells) + "\n" if cells else ""
    assert text_of("\n".join(quoted), "a.csv") == want


BOX = (Inches(1), Inches(1), Inches(4), Inches(3))


def saved_show(show: Any) -> bytes:
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
    found = readers.extract_text(saved_show(show), "a.pptx")
    assert found.text == (
        "Plan\n\none\ntwo\nhalf\n\nNotes: say it\nslowly\n\n"
        "Costs\n2024\n\narea: 10^6\n\nname: Ann; sum: 3\n\ngrouped\n\nlast\n"
    )
    assert [(mark.page, mark.chapter) for mark in found.marks] == [
        (1, "Plan"), (2, "Costs 2024"), (3, "(hidden)"),
    ]  # fmt: skip
    assert found.missing == ()
    assert readers.extract_text(saved_show(show), STDIN) == found, "content tells it"


def ods_row(*cells: str, times: int = 1) -> str:
    """A row of cells, each a text, or the attributes of a cell and its text after a bar."""
    made = ""
    for cell in cells:
        attributes, _, text = cell.rpartition("|")
        comment = "<office:annotation><text:p>no</text:p></office:annotation>" * (text == "Ulm")
        shown = f"{comment}<text:p>{text}</text:p>" * bool(text)
        made += f"<table:table-cell {attributes}>{shown}</table:table-cell>"
    return f'<table:table-row table:number-rows-repeated="{times}">{made}</table:table-row>'


def test_opendocument_spreadsheet_is_read_as_the_same_workbook() -> None:
    repeated, spans = 'table:number-columns-repeated="{}"|'.format, 'table:number-rows-spanned="2"|'
    empty = ods_row(repeated(16_384), times=1_000_000)
    sheets = {
        "A": ods_row("name", "town", "since")
        + ods_row("Ann", f"{spans}Ulm", 'office:date-value="2024-05-01"|05/01/24')
        + ods_row("Bob", "", 'office:date-value="2024-05-02T10:30:00"|05/02/24')
        + ods_row(repeated(2) + "Cy", "3", times=2) + empty,
        "B": empty, "C": empty[:0] + ods_row("", "x"),
    }  # fmt: skip
    book = workbook(
        A=[
            ("name", "town", "since"), ("Ann", "Ulm", date(2024, 5, 1)),
            ("Bob", None, datetime(2024, 5, 2, 10, 30)), ("Cy", "Cy", "3"), ("Cy", "Cy", "3"),
        ],
        B=[], C=[(None, "x")],
    )  # fmt: skip
    book["A"].merge_cells("B2:B3")
    for name in ("a.ods", STDIN):
        found = readers.extract_text(make.ods(sheets), name)
        assert (found.text, found.marks) == (read(book).text, read(book).marks)
        assert found.missing == ("comments are left out: 1",)
    document = Document("a.ods", found.text, "a.ods", "", 9, found.marks)
    at = found.text.index("name: Bob")
    assert Passage.cut_from(document, at, at + 9).describe_place() == "a.ods, A, row 3"


@pytest.mark.parametrize(
    ("first_row", "names", "text"),
    [
        (True, ("name", "sum"), "name: Ann; sum: 3"), (False, ("name", "sum"), "Ann | 3"),
        (True, ("", "sum"), "Ann | 3"), (True, ("sum", "sum"), "Ann | 3"),
    ],
)  # fmt: skip
def test_names_of_columns_on_a_slide(first_row: bool, names: Sequence[str], text: str) -> None:
    show = pptx.Presentation()
    table = slide(show, "Costs").shapes.add_table(2, 2, *BOX).table
    table.first_row = first_row
    for row, cells in enumerate((names, ("Ann", "3"))):
        for column, cell in enumerate(cells):
            table.cell(row, column).text = cell
    assert readers.extract_text(saved_show(show), "a.pptx").text.splitlines()[-1] == text


def test_presentation_says_what_is_missing() -> None:
    show = pptx.Presentation()
    data = CategoryChartData()
    data.categories = ["a"]
    data.add_series("s", (1,))
    slide(show, "Pie").shapes.add_chart(XL_CHART_TYPE.PIE, *BOX, data)
    found = readers.extract_text(saved_show(show), "a.pptx")
    assert found.text == "Pie\n"
    assert found.marks == (Mark(0, 1, "Pie"),)
    assert found.missing == ("charts are left out: 1",)
    assert "without text" in refused(saved_show(pptx.Presentation()), "a.pptx").message
