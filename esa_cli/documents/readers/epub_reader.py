"""EPUB books: the text in reading order, chapters from the table of contents or from headings.

Page numbers are those of the printed book where the file marks them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from esa_cli.documents.readers.html_reader import decode_markup, parse_html, write_html
from esa_cli.documents.readers.reader_registry import Reader, damage_error, register
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, label
from esa_cli.documents.readers.zip_parts import ZipParts
from esa_cli.errors import DocumentError

_CONTAINER = "META-INF/container.xml"
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


@register("epub")
class EpubReader(Reader):
    what = "an EPUB book"
    suffixes = (".epub",)
    binary = True

    def sniff(self, head: bytes) -> bool:
        return head.startswith(b"PK\3\4") and (
            head[30:58] == b"mimetypeapplication/epub+zip" or _CONTAINER.encode() in head
        )

    def read(self, data: bytes, name: str) -> ExtractedText:
        parts = ZipParts(data, name, self)
        package, pages, contents = _package(parts, name)
        _refuse_locked(parts, pages, name)
        chapters = _chapters(parts, contents)
        out, missing = TextBuilder(), []
        for page in pages:
            page_data = parts.read(page) if page in parts else b""
            if not page_data.strip():
                why = "has no text" if page in parts else "is named but not in the book"
                missing.append(f"{posixpath.relpath(page, package)} {why}")
                continue
            root = parse_html(decode_markup(page_data, name)[0], name, xml=True)
            titles = chapters.get(page, {})
            out.paragraph()
            if "" in titles:
                out.chapter = titles[""]
            write_html(root, out, titles if chapters else None)
        return out.text_of(name, self.what, missing)


def _package(parts: ZipParts, name: str) -> tuple[str, list[str], list[str]]:
    """The folder of the package file; the pages in reading order; the tables of contents."""
    path = parts.xml(_CONTAINER).find(".//{*}rootfile").get("full-path")
    root, folder = parts.xml(path), posixpath.dirname(path)
    items: dict[str, tuple[str, str]] = {}
    navigation, older = [], []
    for item in root.iterfind("{*}manifest/{*}item"):
        file, kind = _file(folder, item.get("href", "")), item.get("media-type", "")
        items[item.get("id", "")] = file, kind
        if "nav" in item.get("properties", "").split():
            navigation.append(file)
        if kind == "application/x-dtbncx+xml":
            older.append(file)
    spine = root.iterfind("{*}spine/{*}itemref")
    named = (items.get(itemref.get("idref", ""), ("", "")) for itemref in spine)
    # A page that is named again is not another one.
    pages = dict.fromkeys(file for file, kind in named if kind in _PAGES or (file and not kind))
    if not pages:
        raise damage_error(name, EpubReader.what, "it names no pages")
    return folder or ".", list(pages), [file for file in [*navigation, *older] if file in parts]


def _file(folder: str, href: str) -> str:
    return posixpath.normpath(posixpath.join(folder, unquote(href.partition("#")[0])))


def _chapters(parts: ZipParts, contents: Sequence[str]) -> dict[str, dict[str, str]]:
    """File -> the id of an element in it ("" for its beginning) -> the chapter's title, from the
    first table of contents that has entries; empty when there is none."""
    for file in contents:
        chapters: dict[str, dict[str, str]] = {}
        with suppress(Exception):  # damaged: headings take its place
            for href, words in _entries(parts.xml(file)):
                title = " ".join("".join(words.itertext()).split())
                if href and title:
                    target = _file(posixpath.dirname(file), href)
                    chapters.setdefault(target, {}).setdefault(href.partition("#")[2], title)
        if chapters:
            return chapters
    return {}


def _entries(root: Any) -> Iterator[tuple[str, Any]]:
    """Link and title of every entry of a table of contents, EPUB 3's and EPUB 2's."""
    for nav in root.iterfind(".//{*}nav"):
        kind = nav.get("{http://www.idpf.org/2007/ops}type", "toc")
        for link in nav.iterfind(".//{*}a") if "toc" in kind.split() else ():
            yield link.get("href", ""), link
    for point in root.iterfind(".//{*}navPoint"):
        content, words = point.find("{*}content"), point.find("{*}navLabel")
        if content is not None and words is not None:
            yield content.get("src", ""), words


def _refuse_locked(parts: ZipParts, pages: Sequence[str], name: str) -> None:
    """Fonts may be scrambled; a book with encrypted text has been locked by its seller."""
    encryption = parts.xml_if_any("META-INF/encryption.xml")
    encrypted = () if encryption is None else encryption.iterfind(".//{*}CipherReference")
    if {unquote(reference.get("URI", "")) for reference in encrypted}.intersection(pages):
        raise DocumentError(
            f"{label(name)} is locked (DRM): its text is encrypted",
            "ask its seller for a copy without a lock",
        )
