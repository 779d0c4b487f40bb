"""OpenDocument texts: paragraphs, numbers, pages, notes, what is missing, refusals."""

from __future__ import annotations

from collections.abc import Mapping

import sample_files as make
from reader_checks import at, chapters, refused

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText
from esa_cli.documents.readers.text_builder import STDIN


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
    assert chapters(found) == [
        ("One 1 [note: no]", "One 1 [note: no]"),
        ("Sub", "Sub"),
        ("Two", "Two"),
    ]
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
    sheet = make.zipped({"mimetype": "application/vnd.oasis.opendocument.spreadsheet"})
    assert "xlsx" in refused(sheet, "a.ods").hint
