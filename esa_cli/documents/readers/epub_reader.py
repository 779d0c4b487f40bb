"""EPUB books: the text in reading order, chapters from the table of contents or from headings.

Page numbers are those of the printed book where the file marks them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import unquote

from esa_cli.documents.readers.html_reader import decode_markup, parse_xhtml, write_html
from esa_cli.documents.readers.reader_registry import damage_error, register
from esa_cli.documents.readers.zip_parts import ZipParts
from esa_cli.documents.text_builder import ExtractedText, TextBuilder, label
from esa_cli.errors import DocumentError

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")

Chapters = dict[str, dict[str, str]]
"""File to the id of an element in it ("" for the file's beginning) to the chapter's title."""


@register("epub")
class EpubReader:
    """Electronic books."""

    what: ClassVar[str] = "an EPUB book"
    suffixes: ClassVar[tuple[str, ...]] = (".epub",)
    binary: ClassVar[bool] = True

    def sniff(self, head: bytes) -> bool:
        return head.startswith(b"PK\3\4") and (
            head[30:58] == b"mimetypeapplication/epub+zip" or _CONTAINER.encode() in head
        )

    def read(self, data: bytes, name: str) -> ExtractedText:
        parts = ZipParts(data, name, self)
        package, spine, contents = _package(parts, name)
        _refuse_locked(parts, spine, name)
        chapters = _chapters(parts, contents)
        out, missing = TextBuilder(), []
        for file in spine:
            if file not in parts:
                missing.append(f"{posixpath.relpath(file, package)} is named but not in the book")
                continue
            root = _page(parts, file, name)
            if root is None:
                missing.append(f"{posixpath.relpath(file, package)} has no text")
                continue
            out.paragraph()
            of_file = chapters.get(file, {})
            if "" in of_file:
                out.chapter(of_file[""])
            write_html(root, out, name, of_file if chapters else None)
        return out.text_of(name, self.what, missing)


def _page(parts: ZipParts, file: str, name: str) -> Any:
    data = parts.read(file)
    return parse_xhtml(data, decode_markup(data, name)[0], name) if data.strip() else None


def _package(parts: ZipParts, name: str) -> tuple[str, list[str], list[str]]:
    """The folder of the package file; the files in reading order; the tables of contents."""
    found = parts.xml(_CONTAINER).find(".//{*}rootfile")
    path = "" if found is None else found.get("full-path", "")
    root, folder = parts.xml(path), posixpath.dirname(path)
    items: dict[str, tuple[str, str, str]] = {}
    for item in root.iterfind("{*}manifest/{*}item"):
        file = _file(folder, item.get("href", ""))
        items[item.get("id", "")] = (file, item.get("media-type", ""), item.get("properties", ""))
    spine = []
    for itemref in root.iterfind("{*}spine/{*}itemref"):
        file, kind, _ = items.get(itemref.get("idref", ""), ("", "", ""))
        if kind in _PAGES or (file and not kind):
            spine.append(file)
    spine = list(dict.fromkeys(spine))  # a page that is named again is not another one
    if not spine:
        raise damage_error(name, EpubReader.what, "it names no pages")
    navigation = [file for file, _, properties in items.values() if "nav" in properties.split()]
    older = [file for file, kind, _ in items.values() if kind == "application/x-dtbncx+xml"]
    return folder or ".", spine, [file for file in [*navigation, *older] if file in parts]


def _file(folder: str, href: str) -> str:
    return posixpath.normpath(posixpath.join(folder, unquote(href.partition("#")[0])))


def _chapters(parts: ZipParts, contents: list[str]) -> Chapters:
    """From the first table of contents that has entries; empty when there is none."""
    for file in contents:
        try:
            root = parts.xml(file)
        except DocumentError:
            continue  # a book is readable without it: headings take its place
        chapters: Chapters = {}
        for href, title in _entries(root):
            target = _file(posixpath.dirname(file), href)
            chapters.setdefault(target, {}).setdefault(href.partition("#")[2], title)
        if chapters:
            return chapters
    return {}


def _entries(root: Any) -> Iterator[tuple[str, str]]:
    """Link and title of every entry of a table of contents, EPUB 3's and EPUB 2's."""
    for nav in root.iterfind(".//{*}nav"):
        kind = nav.get("{http://www.idpf.org/2007/ops}type", "toc")
        for link in nav.iterfind(".//{*}a") if "toc" in kind.split() else ():
            title = " ".join("".join(link.itertext()).split())
            if title and link.get("href"):
                yield link.get("href"), title
    for point in root.iterfind(".//{*}navPoint"):
        content, label = point.find("{*}content"), point.find("{*}navLabel")
        title = "" if label is None else " ".join("".join(label.itertext()).split())
        if content is not None and title and content.get("src"):
            yield content.get("src"), title


def _refuse_locked(parts: ZipParts, spine: list[str], name: str) -> None:
    """Fonts may be scrambled; text that is has been locked by its seller."""
    if _ENCRYPTION not in parts:
        return
    locked = {
        unquote(reference.get("URI", ""))
        for reference in parts.xml(_ENCRYPTION).iterfind(".//{*}CipherReference")
    }
    if locked.intersection(spine):
        raise DocumentError(
            f"{label(name)} is locked (DRM): its text is encrypted",
            "ask its seller for a copy without a lock",
        )
