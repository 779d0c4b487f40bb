"""Word documents: text, pages, chapters, numbers, what is missing, refusals."""

from __future__ import annotations

from collections.abc import Sequence

import sample_files as make
from reader_checks import at

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText


def word(*body: str, pages: int | None = None, **more: str) -> ExtractedText:
    parts = {"word/styles.xml": make.STYLES, "word/numbering.xml": make.NUMBERING}
    parts |= {f"word/{name}.xml": text for name, text in more.items()}
    return readers.read(make.docx("".join(body), parts, pages), "a.docx")


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
    assert found.text == "control\n\nlink new [note: small]x=1\n\nbox\n"
    assert found.missing == (
        "headers and footers are left out",
        "2 comments in the margin are left out",
    )


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
