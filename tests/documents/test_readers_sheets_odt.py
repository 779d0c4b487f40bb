"""Excel workbooks and OpenDocument texts: their text, what is missing, what each refusal says."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any

import openpyxl
import pytest
import sample_files as make
from openpyxl.chart import BarChart
from openpyxl.comments import Comment

from esa_cli.documents import readers, text_builder
from esa_cli.documents.readers import STDIN, ExtractedText
from esa_cli.errors import DocumentError

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100)


def refused(data: bytes, name: str) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        readers.read(data, name)
    return caught.value


def chapters(found: ExtractedText) -> list[tuple[str, str | None]]:
    """The line each mark begins at, and its chapter."""
    return [(found.text[mark.start :].split("\n")[0], mark.chapter) for mark in found.marks]


def changed(data: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """The same zip with other parts; None leaves one out."""
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
        parts = {name: change(name, whole.read(name)) for name in whole.namelist()}
    return make.zipped({name: part for name, part in parts.items() if part is not None})


# --- Excel ---


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
    monkeypatch.setattr(text_builder, "XML_LIMIT", 1 << 20)
    assert "its part xl/" in refused(data, "a.xlsx").message
    monkeypatch.undo()
    monkeypatch.setattr(text_builder, "UNPACKED_LIMIT", 1 << 20)
    assert "limit of 1 MiB" in refused(data, "a.xlsx").message
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


# --- OpenDocument ---

NUMBERED = (
    '<text:outline-style><text:outline-level-style text:level="1" style:num-format="1"/>'
    '<text:outline-level-style text:level="2" style:num-format="1" text:display-levels="2"/>'
    '</text:outline-style><text:list-style style:name="L">'
    '<text:list-level-style-number text:level="1" style:num-format="a" style:num-suffix=")"/>'
    '<text:list-level-style-bullet text:level="2"/></text:list-style>'
)


def odt(*body: str, styles: str = "", more: Mapping[str, str] | None = None) -> ExtractedText:
    parts = {name: make.odt_part("x", inside) for name, inside in (more or {}).items()}
    return readers.read(make.odt("".join(body), styles, parts), "a.odt")


def p(inside: str, style: str = "") -> str:
    return f'<text:p text:style-name="{style}">{inside}</text:p>'


def h(inside: str, level: int = 1, more: str = "") -> str:
    return f'<text:h text:outline-level="{level}" {more}>{inside}</text:h>'


def note(inside: str) -> str:
    cited = "<text:note-citation>1</text:note-citation>"
    return f"<text:note>{cited}<text:note-body>{inside}</text:note-body></text:note>"


def at(found: ExtractedText, words: str) -> tuple[int | None, str | None]:
    """Page and chapter where these words stand."""
    start = found.text.index(words)
    mark = [mark for mark in found.marks if mark.start <= start][-1]
    return mark.page, mark.chapter


def test_odt_headings_and_paragraphs() -> None:
    found = odt(
        p("lead"), "\n  ", h(f"One<text:tab/>1{note('no')}"),
        p(" a\n  <text:span>b </text:span><!-- c -->c<text:tab/>d<text:s text:c='3'/>e"),
        h("Sub", 2),
        p("x<text:line-break/>y<text:a>z</text:a>"), h(""), p(""), h("Two"),
    )  # fmt: skip
    assert found.text == ("lead\n\nOne\t1 [note: no]\n\na b c\td   e\n\nSub\n\nx\nyz\n\nTwo\n")
    assert chapters(found) == [("One\t1 [note: no]", "One 1"), ("Sub", "Sub"), ("Two", "Two")]
    assert found.missing == ()


def test_odt_numbers_of_headings_and_lists() -> None:
    item = "<text:list-item>{}</text:list-item>".format
    inner = f"<text:list>{item(p('deep'))}</text:list>"
    items = item(p("one") + p("more")) + item(p("two") + inner) + item(inner)
    first = f'<text:list text:style-name="L">{items}</text:list>'
    again = f'<text:list text:style-name="L" {{}}>{item(p("next"))}</text:list>'
    found = odt(
        h("A"), h("B", 2), h("C", 2, 'text:is-list-header="true"'), h("D", 2), h("E"), first,
        p("x"),
        again.format(""), again.format('text:continue-numbering="true"'),
        f"<text:list>{item(p('plain'))}<text:list-header>{p('head')}</text:list-header></text:list>",
        styles=NUMBERED,
    )  # fmt: skip
    assert found.text == (
        "1 A\n\n1.1 B\n\nC\n\n1.2 D\n\n2 E\n\na) one\nmore\nb) two\n- deep\n- deep\n\nx\n\n"
        "a) next\n\nb) next\n\n- plain\nhead\n"
    )
    assert [chapter for _, chapter in chapters(found)] == ["1 A", "1.1 B", "C", "1.2 D", "2 E"]


def test_odt_tables_notes_and_boxes() -> None:
    cell = "<table:table-cell>{}</table:table-cell>".format
    row = f"<table:table-row>{cell(p('x') + p('y'))}{cell('')}{cell(p('z'))}</table:table-row>"
    box = f"<draw:frame><draw:text-box>{p('boxed')}</draw:text-box></draw:frame>"
    found = odt(
        p(f"a{note(p('small') + p('words'))}, b"), f"<table:table>{row * 2}</table:table>",
        p(f"{box}behind"), p("10<text:span text:style-name='up'>6</text:span>"),
        styles='<style:style style:name="up" style:family="text">'
        '<style:text-properties style:text-position="super 58%"/></style:style>',
    )  # fmt: skip
    assert found.text == (
        "a [note: small words], b\n\nx y | | z\nx y | | z\n\nboxed\nbehind\n\n10^6\n"
    )


def test_odt_pages() -> None:
    turn = "<text:soft-page-break/>"
    new = '<style:paragraph-properties fo:break-before="{}" style:page-number="{}"/>'.format
    style = '<style:style style:name="{}" style:family="paragraph" {}>{}</style:style>'.format
    styles = (
        style("B", "", new("page", "auto")) + style("C", 'style:parent-style-name="B"', "")
        + style("N", "", new("page", "9"))
        + style("O", 'style:parent-style-name="B"', new("auto", ""))
    )  # fmt: skip
    body = [
        p("one", "B"), p(f"two {turn}half"), p("three", "C"), p("same", "O"), turn, p("four"),
        p("nine", "N"),
    ]  # fmt: skip
    found = odt(*body, styles=styles)
    words = ("one", "two", "half", "three", "same", "four", "nine")
    assert [at(found, word)[0] for word in words] == [1, 1, 2, 3, 3, 4, 9]
    without = odt(*(part.replace(turn, "") for part in body), styles=styles)
    assert without.marks == (), "pages of which some are not marked are no pages"


def test_odt_says_what_is_missing() -> None:
    picture = "<draw:frame><svg:title>Map</svg:title><draw:image/></draw:frame>"
    formula = '<draw:frame><draw:object xlink:href="./F"/><draw:image/></draw:frame>'
    deleted = "<text:deletion><text:p>old</text:p></text:deletion>"
    math = (
        '<math xmlns="http://www.w3.org/1998/Math/MathML"><msup><mi>x</mi><mn>2</mn></msup></math>'
    )
    found = odt(
        f"<text:tracked-changes>{deleted}</text:tracked-changes>",
        p(f"see{picture}<office:annotation>{p('why?')}</office:annotation> here"),
        p(f"{formula} and {formula.replace('./F', './G')}"),
        more={
            "styles.xml": f"<style:header>{p('running')}</style:header><style:footer/>",
            "F/content.xml": math,
        },
    )
    assert found.text == "see [picture: Map] here\n\nx^2 and\n"
    assert found.missing == (
        "pictures are left out: 1", "comments in the margin are left out: 1",
        "charts and other embedded objects are left out: 1", "headers and footers are left out",
    )  # fmt: skip


def test_odt_is_told_by_content_and_refused_in_words() -> None:
    data = make.odt(p("Hello"))
    for name in (STDIN, "a.txt", "a.docx"):
        assert readers.read(data, name).text == "Hello\n"
    lock = make.odt_part(
        "manifest:manifest",
        "<manifest:file-entry><manifest:encryption-data/></manifest:file-entry>",
    )
    locked = make.odt(p("x"), more={"META-INF/manifest.xml": lock, "content.xml": "\x01\x02"})
    assert "protected by a password" in refused(locked, "a.odt").message
    assert "without text" in refused(make.odt(p("<draw:frame/>")), "a.odt").message
    assert "damaged or cut off" in refused(data[:-30], "a.odt").message
    assert "it has no content.xml" in refused(make.zipped({"x": "y"}), "a.odt").message
    other = make.odt("", more={"content.xml": make.odt_part("office:document-content", "")})
    assert "holds no text document" in refused(other, "a.odt").message
    sheet = make.zipped({"mimetype": "application/vnd.oasis.opendocument.spreadsheet"})
    assert "ODS" in refused(sheet, "a.ods").message
