"""Word documents: text, pages, chapters, numbers, what is missing, refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import sample_files as make
from reader_checks import at, chapters, refused

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText
from esa_cli.documents.readers.text_builder import STDIN


def word(*body: str, pages: int | None = None, **more: str) -> ExtractedText:
    parts = {"word/styles.xml": make.STYLES, "word/numbering.xml": make.NUMBERING}
    parts |= {f"word/{name}.xml": text for name, text in more.items()}
    return readers.extract_text(make.docx("".join(body), parts, pages), "a.docx")


def listed(number: int, level: int) -> str:
    return f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>'


def test_docx_headings_are_numbered_as_word_numbers_them() -> None:
    p = make.paragraph
    found = word(
        p("Head", "H1"), p("w1"), p("Sub", "H2"), p("w2"), p("Sub two", "Mine"), p("w3"),
        p("Next", "H1"), p("Low", "H2"), p("w4"), p("End", "App"), p("More", "App"), p("w5"),
    )  # fmt: skip
    assert [at(found, f"w{number}")[1] for number in range(1, 6)] == [
        "1 Head", "1.1 Sub", "1.2 Sub two", "2.1 Low", "Appendix B: More",
    ]  # fmt: skip
    assert found.text.startswith("1 Head\n\nw1\n\n1.1 Sub\n\nw2\n")


def test_docx_lists_tables_and_signs() -> None:
    p, cell = make.paragraph, "<w:tc>{}</w:tc>"
    row = "<w:tr>{}</w:tr>".format(cell.format(p("x") + p("y")) + cell.format(p("z")))
    found = word(
        p("one", properties=listed(2, 0)), p("two", properties=listed(2, 0)),
        p("three", properties=listed(2, 1)), p("four", properties=listed(2, 1)), p("para"),
        f"<w:tbl>{row * 2}</w:tbl>", p("tab", before="<w:tab/>"),
        '<w:p><w:r><w:t>a</w:t><w:br/><w:t xml:space="preserve">  b</w:t><w:noBreakHyphen/>'
        '<w:sym w:char="F0E0"/></w:r></w:p>',
        p("I", "T1") + p("II", "T1"),
    )  # fmt: skip
    assert found.text == (
        "- one\n- two\n(iv) three\n(v) four\n\npara\n\nx y | z\nx y | z\n\ntab\n\na\nb-→\n\nI\nII\n"
    )


@pytest.mark.parametrize("title_is_heading", [False, True])
def test_docx_first_row_of_one_cell_is_a_title(title_is_heading: bool) -> None:
    cell = "<w:tc><w:tcPr><w:gridSpan w:val='{}'/></w:tcPr>{}</w:tc>".format
    mark = "<w:trPr><w:tblHeader/></w:trPr>" * title_is_heading
    rows = [mark + cell(3, make.paragraph("Rates"))]
    for words in (("Room", "Day", "Night"), ("Hall", "10", "20")):
        rows.append("".join(cell(1, make.paragraph(word)) for word in words))
    table = "".join(f"<w:tr>{row}</w:tr>" for row in rows)
    assert word(f"<w:tbl>{table}</w:tbl>").text == "Rates\n\nRoom: Hall; Day: 10; Night: 20\n"


def test_docx_boxes_of_symbol_fonts_are_read_as_such() -> None:
    found = word(
        "".join(f'<w:p><w:r><w:sym w:char="{code}"/></w:r></w:p>' for code in ("F0FE", "F0A8"))
    )
    assert found.text.split() == ["☑", "☐"]


def test_docx_hidden_places_of_text() -> None:
    """Content controls, links, insertions, notes and text boxes count; deletions do not."""
    run = "<w:r><w:t>{}</w:t></w:r>".format
    note = make.word_part(
        "footnotes", f'<w:footnote w:id="2">{make.paragraph("small")}</w:footnote>'
    )
    box = "<mc:Choice><w:txbxContent>{}</w:txbxContent></mc:Choice><mc:Fallback>{}</mc:Fallback>"
    found = word(
        f"<w:sdt><w:sdtContent>{make.paragraph('control')}</w:sdtContent></w:sdt><w:p>"
        f"<w:hyperlink>{run('link ')}</w:hyperlink><w:ins>{run('new')}</w:ins>"
        "<w:del><w:r><w:delText>old</w:delText></w:r></w:del>"
        f"<w:moveFrom>{run('moved')}</w:moveFrom>"
        '<w:r><w:instrText>PAGE</w:instrText><w:footnoteReference w:id="2"/></w:r>'
        "<m:oMath><m:r><m:t>x=1</m:t></m:r></m:oMath></w:p>",
        f"<w:p><mc:AlternateContent>{box.format(make.paragraph('box'), make.paragraph('twice'))}"
        "</mc:AlternateContent></w:p>",
        footnotes=note,
        comments=make.word_part("comments", "<w:comment/><w:comment/>"),
        header1=make.word_part("hdr", make.paragraph("running")),
        footer1=make.word_part("ftr", "<w:p/>"),
    )
    assert found.text == "running\n\ncontrol\n\nlink new [note: small]x=1\n\nbox\n"
    assert found.missing == ("2 comments in the margin are left out",)


def test_docx_headers_and_footers_are_read_once() -> None:
    p = make.paragraph
    field = "<w:p><w:r><w:t>Page </w:t><w:instrText>PAGE</w:instrText><w:t>3</w:t></w:r></w:p>"
    found = word(
        p("Head", "H1"), p("text"),
        header1=make.word_part("hdr", p("Contract no. 4711") + field),
        header2=make.word_part("hdr", p("Contract no. 4711")),
        footer1=make.word_part("ftr", p("Kiel office") + field),
    )  # fmt: skip
    assert found.text == "Contract no. 4711\n\n1 Head\n\ntext\n\nKiel office\n"
    chapters = [at(found, word)[1] for word in ("4711", "text", "Kiel")]
    assert chapters == [None, "1 Head", "Footers"]


def test_docx_rows_have_the_names_of_their_columns() -> None:
    rows = [("Town", "Contact", "Since"), ("Kiel", "Ann", "2003"), ("Ulm", "", "1999")]
    named = "Town: Kiel; Contact: Ann; Since: 2003\nTown: Ulm; Since: 1999\n"
    assert word(make.word_table(rows)).text == named
    # The same words without numbers may be a table without a heading, unless it is marked.
    words = [("Town", "Contact"), ("Kiel", "Ann"), ("Ulm", "Bo")]
    assert word(make.word_table(words)).text == "Town | Contact\nKiel | Ann\nUlm | Bo\n"
    marked = make.word_table(words, "<w:trPr><w:tblHeader/></w:trPr>")
    assert word(marked).text == "Town: Kiel; Contact: Ann\nTown: Ulm; Contact: Bo\n"
    bold, text = make.word_table(words), '<w:t xml:space="preserve">'
    for cell in words[0]:
        bold = bold.replace(f"{text}{cell}", f"<w:rPr><w:b/></w:rPr>{text}{cell}")
    assert word(bold).text == word(marked).text


def test_docx_cells_over_several_rows_stand_in_each() -> None:
    rows = [
        ("Wing", "Room", "Key"),
        ("North", "Archive", "7"),
        ("", "Cellar", "9"),
        ("S", "Hall", "3"),
    ]
    table = make.word_table(rows)
    for cell, value in (("North", ' w:val="restart"'), ("", "")):
        old = f"<w:tc>{make.paragraph(cell)}"
        assert table.count(old) == 1
        merged = old.replace("<w:tc>", f"<w:tc><w:tcPr><w:vMerge{value}/></w:tcPr>")
        table = table.replace(old, merged)
    assert word(table).text == (
        "Wing: North; Room: Archive; Key: 7\nWing: North; Room: Cellar; Key: 9\n"
        "Wing: S; Room: Hall; Key: 3\n"
    )


def test_docx_two_rows_of_names() -> None:
    rows = [("2025", "", "2026", ""), ("Plan", "Spent", "Plan", "Spent"), ("a", "b", "c", "d")]
    table = make.word_table(rows)
    span = '<w:tcPr><w:gridSpan w:val="2"/></w:tcPr>'
    table = table.replace(f"<w:tc>{make.paragraph('')}</w:tc>", "")
    for year in ("2025", "2026"):
        table = table.replace(
            f"<w:tc>{make.paragraph(year)}", f"<w:tc>{span}{make.paragraph(year)}"
        )
    table = table.replace("<w:tr>", "<w:tr><w:trPr><w:tblHeader/></w:trPr>", 2)
    assert word(table).text == "2025 Plan: a; 2025 Spent: b; 2026 Plan: c; 2026 Spent: d\n"


@pytest.mark.parametrize(
    ("look", "bold", "named"),
    [
        ('w:firstRow="1"', "<w:b/>", True), ('w:val="04A0"', "<w:b/>", True),
        ('w:firstRow="0"', "<w:b/>", False), ('w:val="0480"', "<w:b/>", False),
        ('w:firstRow="1"', '<w:b w:val="0"/>', False), ('w:firstRow="1"', "", False),
        ('w:val=""', "<w:b/>", False), ('w:val="damaged"', "<w:b/>", False),
    ],
)  # fmt: skip
def test_docx_first_row_that_the_style_of_the_table_makes_bold(
    look: str, bold: str, named: bool
) -> None:
    style = '<w:style w:type="table" w:styleId="{}">{}</w:style>'.format
    first = f'<w:tblStylePr w:type="firstRow"><w:rPr>{bold}</w:rPr></w:tblStylePr>'
    styles = style("Base", first) + style("Mine", '<w:basedOn w:val="Base"/>')
    table = make.word_table([("Town", "Contact"), ("Kiel", "Ann"), ("Ulm", "Bo")])
    properties = f'<w:tblPr><w:tblStyle w:val="Mine"/><w:tblLook {look}/></w:tblPr>'
    found = word(
        table.replace("<w:tbl>", f"<w:tbl>{properties}"), styles=make.word_part("styles", styles)
    )
    assert found.text.startswith("Town: Kiel; Contact: Ann\n" if named else "Town | Contact\n")


def test_docx_row_of_a_table_is_on_its_page() -> None:
    cells = [("Town", "Contact", "Since"), ("Kiel", "Ann", "2003"), ("Ulm", "Bo", "9")]
    cell = '<w:t xml:space="preserve">Ulm'
    found = word(make.word_table(cells).replace(cell, f"{make.PAGE}{cell}"))
    assert (at(found, "Kiel")[0], at(found, "Town: Ulm")[0]) == (1, 2)


def test_docx_exponents_are_told_from_digits() -> None:
    above = '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>{}</w:t></w:r>'.format
    run = '<w:r><w:t xml:space="preserve">{}</w:t></w:r>'.format
    body = run("10") + above("1") + above("2") + run(" m") + above("2") + run(", the 1")
    found = word(f"<w:p>{body}{above('st')}{run('; ')}{above('3')}</w:p>")
    assert found.text == "10^12 m^2, the 1st; 3\n"


def section(kind: str = "", start: int | None = None) -> str:
    inside = f'<w:type w:val="{kind}"/>' if kind else ""
    inside += "" if start is None else f'<w:pgNumType w:start="{start}"/>'
    return f"<w:sectPr>{inside}</w:sectPr>"


def pages_of(words: Sequence[str], found: ExtractedText) -> list[int | None]:
    return [at(found, word)[0] for word in words]


def test_docx_pages_begin_anew_with_sections() -> None:
    p = make.paragraph
    found = word(
        p("title", properties=section()), p("contents", before=make.PAGE),
        p("end", properties=section("oddPage")), p("body"), p("more", before=make.PAGE),
        p("x", properties=section("nextPage", 1)), p("even"), p("y", properties=section("oddPage")),
        p("flow"), section("continuous"),
    )  # fmt: skip
    assert pages_of(("title", "contents", "body", "more", "even", "flow"), found) == [
        1, 2, 1, 2, 3, 3,
    ]  # fmt: skip


def odt(*body: str, styles: str = "", more: Mapping[str, str] | None = None) -> ExtractedText:
    parts = {name: make.odt_part("x", inside) for name, inside in (more or {}).items()}
    return readers.extract_text(make.odt("".join(body), styles, parts), "a.odt")


def p(inside: str, style: str = "") -> str:
    return f'<text:p text:style-name="{style}">{inside}</text:p>'


def h(inside: str, level: int = 1, more: str = "") -> str:
    return f'<text:h text:outline-level="{level}" {more}>{inside}</text:h>'


def note(inside: str) -> str:
    cited = "<text:note-citation>1</text:note-citation>"
    return f"<text:note>{cited}<text:note-body>{inside}</text:note-body></text:note>"


def test_odt_headings_and_paragraphs() -> None:
    found = odt(
        p("lead"), "\n  ", h(f"One<text:tab/>1{note(p('no'))}"),
        p(" a\n  <text:span>b </text:span><!-- c -->c<text:tab/>d<text:s text:c='3'/>e"),
        h("Sub", 2),
        p("x<text:line-break/>y<text:a>z</text:a>"), h(""), p(""), h("Two"),
    )  # fmt: skip
    assert found.text == ("lead\n\nOne 1 [note: no]\n\na b c d e\n\nSub\n\nx\nyz\n\nTwo\n")
    assert chapters(found) == [(head, head) for head in ("One 1 [note: no]", "Sub", "Two")]
    assert found.missing == ()


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
        "a [note: small words], b\n\nx y | | z\nx y | | z\n\nboxed\n\nbehind\n\n10^6\n"
    )


def test_odt_cells_over_several_rows_and_columns() -> None:
    cell = "<table:table-cell {}>{}</table:table-cell>".format
    rows = [
        cell("", p("Town")) + cell("", p("Trains")) + cell("", p("Buses")),
        cell('table:number-rows-spanned="2"', p("Ulm")) + cell("", p("9")) + cell("", p("10")),
        "<table:covered-table-cell/>" + cell('table:number-columns-spanned="2"', p("11")),
    ]
    written = "".join(f"<table:table-row>{row}</table:table-row>" for row in rows)
    head, *rest = written.split("</table:table-row>", 1)
    head = f"<table:table-header-rows>{head}</table:table-row></table:table-header-rows>"
    found = odt(f"<table:table>{head}{rest[0]}</table:table>").text
    assert found == "Town: Ulm; Trains: 9; Buses: 10\nTown: Ulm; Trains: 11\n"


def test_odt_pages() -> None:
    turn = "<text:soft-page-break/>"
    new = '<style:paragraph-properties fo:break-before="{}" style:page-number="{}"/>'.format
    style = '<style:style style:name="{}" style:family="paragraph" {}>{}</style:style>'.format
    styles = (
        style("B", "", new("page", "auto")) + style("C", 'style:parent-style-name="B"', "")
        + style("N", 'style:master-page-name="Last"', "")
        + style("O", 'style:parent-style-name="B"', new("auto", ""))
    )  # fmt: skip
    body = [
        p("one", "B"), p(f"two {turn}half"), p("three", "C"), p("same", "O"), turn, p("four"),
        p("last", "N"),
    ]  # fmt: skip
    found = odt(*body, styles=styles)
    words = ("one", "two", "half", "three", "same", "four", "last")
    assert [at(found, word)[0] for word in words] == [1, 1, 2, 3, 3, 4, 5]
    without = odt(*(part.replace(turn, "") for part in body), styles=styles)
    assert without.marks == (), "pages of which some are not marked are no pages"


def test_odt_says_what_is_missing() -> None:
    picture = "<draw:frame><svg:title>Map</svg:title><draw:image/></draw:frame>"
    chart = '<draw:frame><draw:object xlink:href="./F"/><draw:image/></draw:frame>'
    deleted = "<text:deletion><text:p>old</text:p></text:deletion>"
    found = odt(
        f"<text:tracked-changes>{deleted}</text:tracked-changes>",
        p(f"see{picture}<office:annotation>{p('why?')}</office:annotation> here"),
        p(f"{chart} and"),
        more={
            "styles.xml": f"<style:header>{p('running')}</style:header>"
            f"<style:footer>{p('below')}</style:footer>"
        },
    )
    assert found.text == "running\n\nsee [picture: Map] here\n\nand\n\nbelow\n"
    assert found.missing == (
        "comments in the margin are left out: 1", "pictures are left out: 1",
        "charts and other embedded objects are left out: 1",
    )  # fmt: skip


def test_odt_is_told_by_content_and_refused_in_words() -> None:
    data = make.odt(p("Hello"))
    for name in (STDIN, "a.txt", "a.docx"):
        assert readers.extract_text(data, name).text == "Hello\n"
    lock = make.odt_part(
        "manifest:manifest",
        "<manifest:file-entry><manifest:encryption-data/></manifest:file-entry>",
    )
    locked = make.odt(p("x"), more={"META-INF/manifest.xml": lock, "content.xml": "\x01\x02"})
    assert "protected by a password" in refused(locked, "a.odt").message
    assert "without text" in refused(make.odt(p("<draw:frame/>")), "a.odt").message
    assert "damaged or cut off" in refused(make.zipped({"x": "y"}), "a.odt").message
    other = make.odt("", more={"content.xml": make.odt_part("office:document-content", "")})
    assert "damaged or cut off" in refused(other, "a.odt").message
    slides = make.zipped({"mimetype": "application/vnd.oasis.opendocument.presentation"})
    assert "docx" in refused(slides, "a.odp").hint
