"""Reads EPUB books in reading order. Chapters are taken from the table of contents, or else from
headings. Page numbers are those of the printed book, if the file has them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from esa_cli.documents.readers import text_builder
from esa_cli.documents.readers.html_reader import decode_markup, parse_html, write_html_text
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, label_document
from esa_cli.documents.readers.zip_parts import ZipDocument
from esa_cli.errors import DocumentError

_Contents = dict[str, dict[str, tuple[str, int]]]
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


def read_epub(data: bytes, name: str) -> ExtractedText:
    book = ZipDocument(data, name)
    folder, pages, contents = _find_epub_pages(book, name)
    encryption = book.parse_xml_if_any("META-INF/encryption.xml")  # encrypted fonts do not matter
    encrypted = encryption.iterfind(".//{*}CipherReference")
    if {unquote(reference.get("URI", "")) for reference in encrypted}.intersection(pages):
        hint = "ask the seller for a copy of the book without DRM"
        raise DocumentError(f"{label_document(name)} is locked (DRM): its text is encrypted", hint)
    chapters = _read_chapter_titles(book, contents)
    out, missing = TextBuilder(), []
    for page in pages:
        markup = book.read_file(page) if page in book else b""
        if not markup.strip():
            why = "has no text" if page in book else "is named but not in the book"
            missing.append(f"{posixpath.relpath(page, folder)} {why}")
            continue
        titles = chapters.get(page, {})
        out.start_paragraph()
        out.chapter, out.level = titles.get("", (out.chapter, out.level))
        root = parse_html(decode_markup(markup, name)[0], name, xml=True)
        write_html_text(root, out, titles if chapters else None)
    return out.result(missing)


def _find_epub_pages(book: ZipDocument, name: str) -> tuple[str, list[str], list[str]]:
    """Returns the package file's folder, the pages in reading order, and the tables of contents."""
    path = book.parse_xml("META-INF/container.xml").find(".//{*}rootfile").get("full-path")
    root, folder = book.parse_xml(path), posixpath.dirname(path)
    items: dict[str, tuple[str, str]] = {}
    contents: list[str] = []
    for item in root.iterfind("{*}manifest/{*}item"):
        file, kind = _resolve_link_in_book(folder, item.get("href", "")), item.get("media-type", "")
        items[item.get("id", "")] = file, kind
        if "nav" in item.get("properties", "").split():
            contents.insert(0, file)
        elif kind == "application/x-dtbncx+xml":
            contents.append(file)
    spine = root.iterfind("{*}spine/{*}itemref")
    named = (items.get(itemref.get("idref", ""), ("", "")) for itemref in spine)
    # A page that the book names twice is read once.
    pages = dict.fromkeys(file for file, kind in named if kind in _PAGES or (file and not kind))
    if not pages:
        raise text_builder.make_damage_error(name, "an EPUB book", "it names no pages")
    return folder or ".", list(pages), [file for file in contents if file in book]


def _resolve_link_in_book(book_folder: str, href: str) -> str:
    return posixpath.normpath(posixpath.join(book_folder, unquote(href.partition("#")[0])))


def _read_chapter_titles(book: ZipDocument, toc_paths: Sequence[str]) -> _Contents:
    """Returns chapter titles and levels by file and by the id of an element in the file ("" for
    its beginning), from the first table of contents that has entries."""
    for file in toc_paths:
        chapters: _Contents = {}
        with suppress(Exception):  # a damaged table of contents: headings take its place
            for href, words, level in _iterate_table_of_contents(book.parse_xml(file)):
                title = " ".join("".join(words.itertext()).split())
                if href and title:
                    target = _resolve_link_in_book(posixpath.dirname(file), href)
                    of_file = chapters.setdefault(target, {})
                    of_file.setdefault(href.partition("#")[2], (title, level))
        if chapters:
            return chapters
    return {}


def _iterate_table_of_contents(contents_root: Any) -> Iterator[tuple[str, Any, int]]:
    """Yields the link, title and level of every entry of a table of contents, in EPUB 3 and 2."""
    for nav in contents_root.iterfind(".//{*}nav"):
        kind = nav.get("{http://www.idpf.org/2007/ops}type", "toc")
        for link in nav.iterfind(".//{*}a") if "toc" in kind.split() else ():
            yield link.get("href", ""), link, len([*link.iterancestors("{*}ol")])
    for point in contents_root.iterfind(".//{*}navPoint"):
        content, words = point.find("{*}content"), point.find("{*}navLabel")
        if content is not None and words is not None:
            yield content.get("src", ""), words, 1 + len([*point.iterancestors("{*}navPoint")])
