"""EPUB: reading order, chapters, printed pages, missing files, refusals."""

from __future__ import annotations

import io
import zipfile

import sample_files as make
from reader_checks import at, refused

from esa_cli.documents import readers


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
    found = readers.extract_text(data, "a.epub")
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
    older = readers.extract_text(make.epub({"a.xhtml": body}, ncx=point), "a.epub")
    assert at(older, "y") == (12, "Old")
    without = readers.extract_text(make.epub({"a.xhtml": body}), "a.epub")
    assert at(without, "x") == (None, None)
    assert at(without, "y") == (12, "Head")


def test_epub_that_is_no_clean_xml() -> None:
    parts = {"OPS/b.xhtml": "<html><body><p>un<br>closed &copy; <p>tags"}
    data = make.epub({"a.xhtml": "<p>fine</p>", "b.xhtml": ""}, more=parts)
    assert readers.extract_text(data, "a.epub").text == "fine\n\nun\nclosed ©\n\ntags\n"


def test_epub_missing_parts_and_refusals() -> None:
    data = make.epub({"a.xhtml": "<p>x</p>", "b.xhtml": "<p>y</p>"})
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
        kept = {name: whole.read(name) for name in whole.namelist() if "b.xhtml" not in name}
    assert readers.extract_text(make.zipped(kept), "a.epub").missing == (
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
    assert readers.extract_text(font, "a.epub").text == "x\n", "scrambled fonts do not matter"
