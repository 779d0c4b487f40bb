"""Small PDF, EPUB, Word, Excel, PowerPoint and OpenDocument files, for the tests of the readers."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import openpyxl
import pptx

_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def pdf(
    pages: Sequence[str | None], bookmarks: Sequence[tuple[str, int]] = (), *,
    locked: bool = False, title: str = "",
) -> bytes:  # fmt: skip
    """Each page a text, "" an empty page, None a picture; bookmarks with their page from 0."""
    objects: list[bytes] = [b""] * 4
    objects[2] = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    objects[3] = (
        b"<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray"
        b" /BitsPerComponent 8 /Length 1 >>\nstream\n\x80\nendstream"
    )
    kids = []
    for text in pages:
        content = b"q 500 0 0 700 50 50 cm /I Do Q" if text is None else _content(text)
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents %d 0 R"
            b" /Resources << /Font << /F 3 0 R >> /XObject << /I 4 0 R >> >> >>" % len(objects)
        )
        kids.append(len(objects))
    outlines = b""
    if bookmarks:
        first = len(objects) + 2
        outlines = b" /Outlines %d 0 R" % (first - 1)
        last = first + len(bookmarks) - 1
        objects.append(b"<< /First %d 0 R /Last %d 0 R >>" % (first, last))
        for number, (title, page) in enumerate(bookmarks, first):
            after = b" /Next %d 0 R" % (number + 1) if number < last else b""
            objects.append(
                b"<< /Title (%s) /Parent %d 0 R /Dest [%d 0 R /Fit]%s >>"
                % (title.encode("latin-1"), first - 1, kids[page], after)
            )
    objects[0] = b"<< /Type /Catalog /Pages 2 0 R%s >>" % outlines
    listed = b" ".join(b"%d 0 R" % kid for kid in kids)
    objects[1] = b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(kids), listed)
    trailer = b""
    if title:
        objects.append(b"<< /Title (%s) >>" % title.encode("latin-1"))
        trailer = b" /Info %d 0 R" % len(objects)
    if locked:
        objects.append(
            b"<< /Filter /Standard /V 1 /R 2 /P -4 /O <%s> /U <%s> >>" % (b"11" * 32, b"22" * 32)
        )
        trailer = b" /Encrypt %d 0 R /ID [<00> <00>]" % len(objects)
    return assembled(objects, trailer)


def form(*annotations: str) -> bytes:
    """A PDF of one page, `Tenant:`, with annotations; those with /FT are fields of its form."""
    first = 6
    numbers = [f"{number} 0 R" for number in range(first, first + len(annotations))]
    fields = " ".join(n for n, one in zip(numbers, annotations, strict=True) if "/FT" in one)
    content = _content("Tenant:")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [%s] /DA (/F 12 Tf) >> >>"
        % fields.encode(),
        b"<< /Type /Pages /Count 1 /Kids [5 0 R] >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R"
        b" /Resources << /Font << /F 3 0 R >> >> /Annots [%s] >>" % " ".join(numbers).encode(),
    ]
    for one in annotations:
        objects.append(b"<< /Type /Annot /Rect [9 9 99 29] %s >>" % one.encode("latin-1"))
    return assembled(objects)


def pdf_page(content: str) -> bytes:
    """A PDF of one page with this content; the font /F is Helvetica."""
    data = content.encode("latin-1")
    return assembled(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Count 1 /Kids [5 0 R] >>",
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(data), data),
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R"
            b" /Resources << /Font << /F 3 0 R >> >> >>",
        ]
    )


def pdf_table(
    rows: Sequence[Sequence[str]], title: str, *, ruled: bool = True, more: str = ""
) -> bytes:
    """A PDF of one page with a title, a table with cells of 110 x 20 points, and a line below."""
    content = [f"BT /F 14 Tf 1 0 0 1 50 760 Tm ({title}) Tj ET"]
    for y, row in zip(range(720, 0, -20), rows, strict=False):
        for x, cell in zip(range(54, 600, 110), row, strict=False):
            content.append(f"BT /F 10 Tf 1 0 0 1 {x} {y} Tm ({cell}) Tj ET")
    bottom, right = 734 - 20 * len(rows), 50 + 110 * len(rows[0])
    if ruled:
        content += [f"50 {y} m {right} {y} l S" for y in range(734, bottom - 1, -20)]
        content += [f"{x} 734 m {x} {bottom} l S" for x in range(50, right + 1, 110)]
    content.append(f"BT /F 12 Tf 1 0 0 1 50 {bottom - 30} Tm (Tickets are sold on board.) Tj ET")
    return pdf_page("\n".join([*content, more]))


def _content(text: str) -> bytes:
    lines = [
        b"1 0 0 1 50 %d Tm (%s) Tj" % (760 - 20 * row, line.encode("latin-1"))
        for row, line in enumerate(text.split("\n"))
    ]
    return b"BT /F 12 Tf " + b" ".join(lines) + b" ET" if text else b""


def assembled(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    out, starts = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        starts.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % start for start in starts)
    size = len(objects) + 1
    return out + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R%s >>\n"
        b"startxref\n%d\n%%%%EOF\n" % (size, table, size, trailer, len(out))
    )


def zipped(parts: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            kind = zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            archive.writestr(name, content, kind)
    return out.getvalue()


def epub(
    chapters: Mapping[str, str],
    *,
    nav: str = "",
    ncx: str = "",
    more: Mapping[str, str] | None = None,
) -> bytes:
    """Bodies by file name, in reading order; `nav` and `ncx` are the insides of the contents."""
    items = "".join(
        f'<item id="{name}" href="{name}" media-type="application/xhtml+xml"/>' for name in chapters
    )
    items += '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
    items += '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'
    spine = "".join(f'<itemref idref="{name}"/>' for name in chapters)
    parts: dict[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": "<container"
        ' xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
        '<rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>',
        "OPS/book.opf": '<package xmlns="http://www.idpf.org/2007/opf">'
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>",
    }
    for name, body in chapters.items():
        parts[f"OPS/{name}"] = (
            '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops">'
            f"<head><title/><script src='x.js'/></head><body>{body}</body></html>"
        )
    if nav:
        parts["OPS/nav.xhtml"] = (
            '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops">'
            f'<body><nav epub:type="toc"><ol>{nav}</ol></nav></body></html>'
        )
    if ncx:
        parts["OPS/toc.ncx"] = (
            f'<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap>{ncx}</navMap></ncx>'
        )
    return zipped({**parts, **(more or {})})


def word_part(tag: str, inside: str) -> str:
    math = "http://schemas.openxmlformats.org/officeDocument/2006/math"
    compat = "http://schemas.openxmlformats.org/markup-compatibility/2006"
    spaces = f'xmlns:w="{_WORD}" xmlns:m="{math}" xmlns:mc="{compat}"'
    return f"<w:{tag} {spaces}>{inside}</w:{tag}>"


def docx(body: str, more: Mapping[str, str] | None = None, pages: int | None = None) -> bytes:
    """A Word document with this body, and other parts by their name."""
    parts: dict[str, str | bytes] = {
        "[Content_Types].xml": "<Types/>",
        "word/document.xml": word_part("document", f"<w:body>{body}</w:body>"),
    }
    if pages is not None:
        kind = "http://schemas.openxmlformats.org/officeDocument/2006/extended-properties"
        parts["docProps/app.xml"] = (
            f'<Properties xmlns="{kind}"><Pages>{pages}</Pages></Properties>'
        )
    return zipped({**parts, **(more or {})})


def paragraph(text: str, style: str = "", before: str = "", properties: str = "") -> str:
    """A Word paragraph; `before` stands before its text, `properties` beside its style."""
    named = f'<w:pStyle w:val="{style}"/>' if style else ""
    inner = f'<w:r>{before}<w:t xml:space="preserve">{text}</w:t></w:r>'
    return f"<w:p><w:pPr>{named}{properties}</w:pPr>{inner}</w:p>"


def word_table(rows: Sequence[Sequence[str]], properties: str = "") -> str:
    """A table of a Word document; `properties` stand in its first row."""
    written = []
    for number, row in enumerate(rows):
        cells = "".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row)
        written.append(f"<w:tr>{'' if number else properties}{cells}</w:tr>")
    return f"<w:tbl>{''.join(written)}</w:tbl>"


PAGE = "<w:lastRenderedPageBreak/>"
STYLES = word_part(
    "styles",
    "".join(
        f'<w:style w:type="paragraph" w:styleId="H{level}"><w:name w:val="heading {level}"/>'
        f'<w:pPr><w:numPr><w:ilvl w:val="{level - 1}"/><w:numId w:val="1"/></w:numPr>'
        f'<w:outlineLvl w:val="{level - 1}"/></w:pPr></w:style>'
        for level in (1, 2)
    )
    + '<w:style w:type="paragraph" w:styleId="Mine"><w:basedOn w:val="H2"/></w:style>'
    + '<w:style w:type="paragraph" w:styleId="App"><w:name w:val="App"/><w:pPr><w:numPr>'
    '<w:numId w:val="3"/></w:numPr><w:outlineLvl w:val="1"/></w:pPr></w:style>'
    + '<w:style w:type="paragraph" w:styleId="T1"><w:name w:val="toc 1"/></w:style>',
)


def _level(number: int, kind: str, text: str, start: str = "", style: str = "") -> str:
    values = (("start", start), ("numFmt", kind), ("pStyle", style), ("lvlText", text))
    inside = "".join(f'<w:{tag} w:val="{value}"/>' for tag, value in values if value)
    return f'<w:lvl w:ilvl="{number}">{inside}</w:lvl>'


def _list(number: int, inside: str) -> str:
    return f'<w:abstractNum w:abstractNumId="{number}0">{inside}</w:abstractNum>'


NUMBERING = word_part(
    "numbering",
    _list(1, _level(0, "decimal", "%1", "1") + _level(1, "decimal", "%1.%2", "1"))
    + _list(2, _level(0, "bullet", "o") + _level(1, "lowerRoman", "(%2)", "4"))
    + _list(
        3, _level(0, "upperLetter", "%1") + _level(1, "upperLetter", "Appendix %2:", style="App")
    )
    + "".join(f'<w:num w:numId="{n}"><w:abstractNumId w:val="{n}0"/></w:num>' for n in (1, 2, 3)),
)


def xlsx(rows: Sequence[Sequence[Any]]) -> bytes:
    """A workbook of one sheet."""
    book, out = openpyxl.Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    book.save(out)
    return out.getvalue()


def slides(*titles: str) -> bytes:
    """A presentation of slides with these titles."""
    show, out = pptx.Presentation(), io.BytesIO()
    for title in titles:
        show.slides.add_slide(show.slide_layouts[0]).shapes.title.text = title
    show.save(out)
    return out.getvalue()


_OPEN = {
    **{
        name: f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"
        for name in ("office", "style", "text", "table", "manifest")
    },
    "draw": "urn:oasis:names:tc:opendocument:xmlns:drawing:1.0",
    "svg": "urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0",
    "fo": "urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0",
    "xlink": "http://www.w3.org/1999/xlink",
}


def odt_part(tag: str, inside: str) -> str:
    spaces = " ".join(f'xmlns:{name}="{space}"' for name, space in _OPEN.items())
    return f"<{tag} {spaces}>{inside}</{tag}>"


def ods(tables: Mapping[str, str]) -> bytes:
    """An OpenDocument spreadsheet with these sheets, each of XML elements of rows."""
    sheets = (
        f'<table:table table:name="{name}">{rows}</table:table>' for name, rows in tables.items()
    )
    content = (
        f"<office:body><office:spreadsheet>{''.join(sheets)}</office:spreadsheet></office:body>"
    )
    return zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.spreadsheet",
            "content.xml": odt_part("office:document-content", content),
        }
    )


def odt(body: str, styles: str = "", more: Mapping[str, str] | None = None) -> bytes:
    """An OpenDocument text with this body, styles of its own, and other parts by their name."""
    content = (
        f"<office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:text>{body}</office:text></office:body>"
    )
    parts: dict[str, str | bytes] = {
        "mimetype": "application/vnd.oasis.opendocument.text",
        "content.xml": odt_part("office:document-content", content),
    }
    return zipped({**parts, **(more or {})})
