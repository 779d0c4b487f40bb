"""PDF, EPUB and Word files: text, pages, chapters, what is missing, and what each refusal says."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

import pypdfium2
import pytest
import sample_files as make

from esa_cli.documents import readers, text_builder
from esa_cli.documents.readers import ExtractedText, Mark
from esa_cli.documents.readers.docx_styles import Lists
from esa_cli.documents.readers.pdf_reader import _missing, _tidied
from esa_cli.errors import DocumentError


def refused(data: bytes, name: str) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        readers.read(data, name)
    return caught.value


def at(found: ExtractedText, words: str) -> tuple[int | None, str | None]:
    """Page and chapter where these words stand, from the marks alone."""
    start = found.text.index(words)
    page, chapter = None, None
    for mark in found.marks:
        if mark.start <= start:
            page, chapter = mark.page, mark.chapter
    return page, chapter


# --- PDF ---


def test_pdf_pages_and_bookmarks() -> None:
    data = make.pdf(
        ["Cover", "Intro here\nOne small step", "", "more\nTwo  ways\nend", "last"],
        [("Intro", 1), ("One small", 1), ("Two ways", 3), ("Empty", 2)],
    )
    found = readers.read(data, "a.pdf")
    assert found.text == "Cover\n\nIntro here\nOne small step\n\nmore\nTwo ways\nend\n\nlast\n"
    assert at(found, "Cover") == (1, None)
    assert at(found, "Intro here") == (2, "Intro")
    assert at(found, "One small") == (2, "One small")
    assert at(found, "more") == (4, "Empty"), "its page has no text, so it begins on the next"
    assert at(found, "Two") == (4, "Two ways")
    assert at(found, "last") == (5, "Two ways")
    assert found.missing == (), "an empty page has nothing that could be missing"


def test_pdf_with_a_title_that_is_not_on_its_page() -> None:
    found = readers.read(make.pdf(["a", "b"], [("Preface", 0), ("A chapter", 1)]), "a.pdf")
    assert found.marks == (Mark(0, 1, "Preface"), Mark(3, 2, "A chapter"))


def test_pdf_scanned_in_part() -> None:
    found = readers.read(make.pdf(["a", None, "b", None, None]), "a.pdf")
    assert found.missing == (
        "pages 2, 4 and 5 have no text, only pictures (ocrmypdf can recognise their characters)",
    )
    assert [mark.page for mark in found.marks] == [1, 3]


def test_pdf_without_its_end() -> None:
    data = make.pdf(["one", "two"])
    found = readers.read(data[:-6], "a.pdf")
    assert found.missing == ("the end of the file is missing, and perhaps pages with it",)


def test_pdf_refusals() -> None:
    scanned = refused(make.pdf([None, None]), "scan.pdf")
    assert "has no text: its pages (2) are pictures" in scanned.message
    assert "ocrmypdf scan.pdf" in scanned.hint
    locked = refused(make.pdf(["secret"], locked=True), "lock.pdf")
    assert "password" in locked.message
    assert "qpdf --decrypt" in locked.hint
    assert "damaged or cut off" in refused(make.pdf(["x"])[:200], "cut.pdf").message
    assert "damaged" in refused(b"%PDF-1.7\n", "cut.pdf").message


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        (["some trans\ufffelation here"], "some translation here"),
        (["a non\ufffeword; non-word"], "a non-word; non-word"),
        (["transfer of trans\ufffefer, ECMA\ufffe262"], "transfer of transfer, ECMA-262"),
        (["run\ufffetime, run-time, runtime, run-time"], "run-time, run-time, runtime, run-time"),
        (["Intro .............. 7\r\nA. . . . . . . 9"], "Intro ... 7\nA ... 9"),
        (["  \uf0b7 one \r\ntwo...  "], "• one\ntwo..."),
    ],
)
def test_pdf_text_is_tidied(pages: list[str], expected: str) -> None:
    assert _tidied(pages) == [expected]


def test_pdf_says_what_is_missing() -> None:
    pages = ["fine", "\ufffd\ufffda", "", "x"]
    assert _missing(pages, [], [3]) == [
        "page 3 has damage and cannot be read",
        "page 2 has letters of a font that does not say which characters they are",
    ]
    assert _missing([""] * 20, list(range(1, 21)), [])[0].startswith("20 pages (1 to 20) have")


# --- EPUB ---


def test_pdf_fields_that_are_filled_in_and_what_is_typed_onto_a_page() -> None:
    field = "/Subtype /Widget /F 4 /FT"
    box = f"{field} /Btn /AP << /N << /Yes 4 0 R /Off 4 0 R >> >>"
    found = readers.read(
        make.form(
            f"{field} /Tx /T (a.tenant[0]) /V (Jo Quist)",
            f"{field} /Tx /T (x7) /TU (Rent in euros) /V (950)",
            f"{field} /Tx /T (empty)",
            f"{field} /Tx /T (hidden) /V (no) /F 2",
            f"{field} /Ch /T (floor) /V (second) /Opt [(first) (second)]",
            f"{box} /T (pets) /V /Yes /AS /Yes",
            f"{box} /T (smoking) /V /Off /AS /Off",
            f"{field} /Btn /Ff 65536 /T (send) /V (Send)",
            "/Subtype /FreeText /F 4 /Contents (Keys handed over) /DA (/F 9 Tf)",
            "/Subtype /Text /F 4 /Contents (why so much?)",
            "/Subtype /Link /F 4 /Contents (a link)",
        ),
        "a.pdf",
    )
    assert found.text == (
        "Tenant:\ntenant: Jo Quist\nRent in euros: 950\nfloor: second\npets: checked\n"
        "Keys handed over\n"
    )
    assert found.missing == ("comments in the margin are left out: 1",)


def test_pdf_whose_form_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(document: object) -> None:
        raise pypdfium2.PdfiumError("no form")

    monkeypatch.setattr(pypdfium2.PdfDocument, "init_forms", fail)
    found = readers.read(make.form("/Subtype /Widget /F 4 /FT /Tx /T (x) /V (950)"), "a.pdf")
    assert found.text == "Tenant:\n"
    assert found.missing == ("the fields of its form cannot be read",)


def test_epub_order_and_chapters() -> None:
    data = make.epub(
        {
            "z.xhtml": "<h1>Not this</h1><p>first&nbsp;words</p>",
            "a b.xhtml": "<p>before</p><h2 id='s'>Part <i>2</i></h2><p>inside</p><p>deep</p>",
            "c.xhtml": "<p>after</p>",
        },
        nav='<li><a href="z.xhtml">One</a></li><li><a href="a%20b.xhtml">Two</a>'
        '<ol><li><a href="a%20b.xhtml#s"> Two\n b</a></li></ol></li>',
    )
    found = readers.read(data, "a.epub")
    assert found.text == (
        "Not this\n\nfirst words\n\nbefore\n\nPart 2\n\ninside\n\ndeep\n\nafter\n"
    )
    assert at(found, "first") == (None, "One")
    assert at(found, "before") == (None, "Two")
    assert at(found, "Part") == at(found, "deep") == (None, "Two b")
    assert at(found, "after") == (None, "Two b"), "a file without an entry goes on with the last"


def test_epub_older_contents_headings_and_printed_pages() -> None:
    point = "<navPoint><navLabel><text>Old</text></navLabel><content src='a.xhtml'/></navPoint>"
    body = "<p>x</p><span epub:type='pagebreak' title='12'/><h1>Head</h1><p>y</p>"
    older = readers.read(make.epub({"a.xhtml": body}, ncx=point), "a.epub")
    assert at(older, "y") == (12, "Old")
    without = readers.read(make.epub({"a.xhtml": body}), "a.epub")
    assert at(without, "x") == (None, None)
    assert at(without, "y") == (12, "Head")


def test_epub_that_is_no_clean_xml() -> None:
    parts = {"OPS/b.xhtml": "<html><body><p>un<br>closed &copy; <p>tags"}
    data = make.epub({"a.xhtml": "<p>fine</p>", "b.xhtml": ""}, more=parts)
    assert readers.read(data, "a.epub").text == "fine\n\nun\nclosed ©\n\ntags\n"


def test_epub_missing_parts_and_refusals() -> None:
    data = make.epub({"a.xhtml": "<p>x</p>", "b.xhtml": "<p>y</p>"})
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
        kept = {name: whole.read(name) for name in whole.namelist() if "b.xhtml" not in name}
    assert readers.read(make.zipped(kept), "a.epub").missing == (
        "b.xhtml is named but not in the book",
    )
    assert "without text" in refused(make.epub({"a.xhtml": "<img/>"}), "a.epub").message
    assert "names no pages" in refused(make.epub({}), "a.epub").message
    lock = (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container"'
        ' xmlns:e="http://www.w3.org/2001/04/xmlenc#">'
        '<e:CipherReference URI="OPS/{}"/></encryption>'
    )
    locked = make.epub({"a.xhtml": "x"}, more={"META-INF/encryption.xml": lock.format("a.xhtml")})
    assert "DRM" in refused(locked, "a.epub").message
    font = make.epub({"a.xhtml": "x"}, more={"META-INF/encryption.xml": lock.format("f.ttf")})
    assert readers.read(font, "a.epub").text == "x\n", "scrambled fonts do not matter"


# --- Word ---


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
        "- one\n- two\n(iv) three\n(v) four\n\npara\n\nx y | z\nx y | z\n\n\ttab\n\n"
        "a\n  b-→\n\nI\nII\n"
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


def test_docx_that_was_saved_as_strict() -> None:
    other = make.word_part("document", f"<w:body>{make.paragraph('one', 'T1')}</w:body>")
    for known, strict in (
        ("schemas.openxmlformats.org/wordprocessingml/2006/main", "wordprocessingml/main"),
        ("schemas.openxmlformats.org/officeDocument/2006/math", "officeDocument/math"),
    ):
        other = other.replace(known, f"purl.oclc.org/ooxml/{strict}")
    assert "2006/main" not in other
    assert word(document=other).text == "one\n"


def test_docx_says_what_else_is_left_out() -> None:
    more = {"charts/chart1": "<c/>", "diagrams/data1": "<d/>"}
    assert word(make.paragraph("one"), **more).missing == ("charts and diagrams are left out",)
    found = word(make.paragraph("one"), '<w:altChunk r:id="x" xmlns:r="r"/>')
    assert found.missing == ("files that were put into it as they are, are left out",)


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


def test_docx_pages_where_the_program_marked_them() -> None:
    p = make.paragraph
    found = word(
        p("alpha"), p("beta", "H1", make.PAGE), p("gamma", before=make.PAGE), make.BREAK,
        p("delta", before=make.PAGE), p("epsilon"),
    )  # fmt: skip
    words = ("alpha", "beta", "gamma", "delta", "epsilon")
    assert pages_of(words, found) == [1, 2, 3, 4, 4], "a break and its mark are one page"
    assert at(found, "1 beta") == (2, "1 beta"), "the number of a heading is on its page"


def test_docx_pages_begin_anew_with_sections() -> None:
    p = make.paragraph
    found = word(
        p("title", properties=section()), p("contents", before=make.PAGE),
        p("end", properties=section("oddPage")), p("body"), p("more", before=make.PAGE),
        p("x", properties=section("nextPage", 1)), p("even"), p("y", properties=section("oddPage")),
        p("flow"), section("continuous"),
    )  # fmt: skip
    assert pages_of(("title", "contents", "body", "more", "even", "flow"), found) == [
        1, 3, 1, 2, 3, 3,
    ]  # fmt: skip


def test_docx_pages_that_the_contents_know_better() -> None:
    p = make.paragraph
    link = '<w:p><w:hyperlink w:anchor="_Toc1"><w:r><w:t>{}</w:t></w:r></w:hyperlink></w:p>'.format
    mark = '<w:bookmarkStart w:name="_Toc1"/>'
    found = word(link("Late") + link("7"), p("x", before=make.PAGE), p("Late", "H1", mark), p("y"))
    assert pages_of(("x", "1 Late", "y"), found) == [2, 7, 7]
    back = word(link("1"), p("x", before=make.PAGE), p("Late", "H1", mark))
    assert pages_of(("x", "1 Late"), back) == [2, 2], "it never goes back"


@pytest.mark.parametrize(
    ("counted", "expected"), [(2, [1, 2]), (9, [None] * 2), (None, [None] * 2)]
)
def test_docx_pages_by_hand_count_only_if_they_are_all(
    counted: int | None, expected: list[int | None]
) -> None:
    found = word(make.paragraph("one"), make.BREAK, make.paragraph("two"), pages=counted)
    assert pages_of(("one", "two"), found) == expected


def test_docx_refusals() -> None:
    cfb = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100)
    assert "old Office file" in refused(cfb, "a.docx").message
    assert "password" in refused(cfb + "EncryptedPackage".encode("utf-16-le"), "a.docx").message
    assert "without text" in refused(make.docx("<w:p/>"), "a.docx").message
    bare = make.docx(make.paragraph("x"))
    assert "damaged or cut off" in refused(bare[:-40], "a.docx").message


def test_locked_and_bloated_zips(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(make.docx(make.paragraph("x")))
    for sign, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = 0
        while (start := data.find(sign, start)) >= 0:
            data[start + flags] |= 1
            start += 4
    assert "password" in refused(bytes(data), "a.docx").message
    monkeypatch.setattr(text_builder, "UNPACKED_LIMIT", 1 << 20)
    bomb = make.docx(make.paragraph("x" * (3 << 20)))
    assert len(bomb) < 1 << 14
    assert "limit of 1 MiB" in refused(bomb, "a.docx").message


def test_a_part_that_would_be_a_huge_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_builder, "XML_LIMIT", 1 << 20)
    for data, name in (
        (make.docx(make.paragraph("x" * (1 << 20))), "a.docx"),
        (make.epub({"a.xhtml": "<p>" + "x" * (1 << 20)}), "a.epub"),
    ):
        error = refused(data, name)
        assert "its part" in error.message
        assert "limit of 1 MiB" in error.message
    several = {f"{n}.xhtml": "<p>" + "x" * (1 << 19) for n in range(4)}
    assert len(readers.read(make.epub(several), "a.epub").text) > 1 << 21


def test_entities_are_refused_or_kept_as_they_are() -> None:
    laughs = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
    body = make.word_part("document", "<w:body><w:p><w:r><w:t>&b;ok</w:t></w:r></w:p></w:body>")
    data = make.docx("", {"word/document.xml": laughs + body})
    assert "entities of its own" in refused(data, "a.docx").message
    page = {"OPS/a.xhtml": f"{laughs}<html><body>one &b; two</body></html>"}
    text = readers.read(make.epub({"a.xhtml": ""}, more=page), "a.epub").text
    assert "one" in text
    assert "two" in text
    assert "haha" not in text


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("decimal", ["1", "2", "3"]),
        ("upperLetter", ["A", "B", "C"]),
        ("lowerRoman", ["i", "ii", "iii"]),
        ("none", ["", "", ""]),
        ("bullet", ["-", "-", "-"]),
    ],
)
def test_list_numbers(kind: str, counts: list[str]) -> None:
    from lxml import etree

    root = etree.fromstring(
        make.word_part(
            "numbering",
            '<w:abstractNum w:abstractNumId="1"><w:lvl w:ilvl="0">'
            f'<w:numFmt w:val="{kind}"/><w:lvlText w:val="%1"/></w:lvl></w:abstractNum>'
            '<w:num w:numId="5"><w:abstractNumId w:val="1"/></w:num>',
        )
    )
    lists = Lists.of(root)
    assert [lists.next("5", 0, "") for _ in counts] == counts
    assert lists.next("6", 0, "") == "", "no such list"
