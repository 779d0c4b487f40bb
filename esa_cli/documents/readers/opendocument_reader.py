"""OpenDocument texts (odt): paragraphs, tables, lists and notes; headings are chapters.

Pages are counted by the marks of the program that saved the document last. Deleted text, comments,
headers and footers are left out; all but the first are reported.
"""

from __future__ import annotations

import re
from typing import Any

from esa_cli.documents.readers.html_reader import formula_text, parse_html
from esa_cli.documents.readers.reader_registry import Reader, register
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder
from esa_cli.documents.readers.zip_parts import ZipParts, password_error

_STYLES, _MANIFEST = "styles.xml", "META-INF/manifest.xml"
_MIMETYPE = b"mimetypeapplication/vnd.oasis.opendocument.text"
_OASIS = "urn:oasis:names:tc:opendocument:xmlns:"
_SPACES = {name: f"{_OASIS}{name}:1.0" for name in ("office", "style", "text", "table")} | {
    "draw": f"{_OASIS}drawing:1.0",
    "svg": f"{_OASIS}svg-compatible:1.0",
    "fo": f"{_OASIS}xsl-fo-compatible:1.0",
    "xlink": "http://www.w3.org/1999/xlink",
}
_PREFIXES = {space: prefix for prefix, space in _SPACES.items()}
_NOT_SHOWN = frozenset(
    ("text:tracked-changes", "text:note-citation", "text:index-title-template", "office:forms",
     "svg:title", "svg:desc")
)  # fmt: skip
_WORDS = frozenset(("text:p", "text:h", "text:span", "text:a"))
_RAISED = "//style:style[starts-with(style:text-properties/@style:text-position, 'super')]"
_STYLE = "//style:style[@style:family='paragraph']"
_EDGES = "//style:header | //style:footer"
_BREAK = "style:paragraph-properties/@fo:break-before"
_NEW_PAGE = f"{_BREAK}[.='page'] | @style:master-page-name[string()]"
_TITLE = (
    "descendant::node()[self::text() or self::text:s or self::text:tab or self::text:line-break]"
    "[not(ancestor::text:note or ancestor::office:annotation or ancestor::draw:frame)]"
)
_PREFIX = re.compile(r"(</?)[a-z]+:(?=[a-z])")
_MOST_SPACES = 1000


@register("odt")
class OpenDocumentReader(Reader):
    what = "an OpenDocument text"
    suffixes = (".odt", ".ott")
    binary = True

    def sniff(self, head: bytes) -> bool:
        return head.startswith(b"PK\3\4") and head[30:].startswith(_MIMETYPE)

    def read(self, data: bytes, name: str) -> ExtractedText:
        parts = ZipParts(data, name, self)
        if _MANIFEST in parts and b"encryption-data" in parts.read(_MANIFEST):
            raise password_error(name)
        content = parts.xml("content.xml")
        [body] = _select(content, "//office:body/office:text")
        roots = [content, *(parts.xml(part) for part in (_STYLES,) if part in parts)]
        writer = _OpenDocumentWriter(parts, roots)
        writer.write(body)
        return writer.out.text_of(name, self.what, writer.missing)


class _OpenDocumentWriter:
    """Writes the text of elements; `missing` is what it lacks besides what is counted."""

    def __init__(self, parts: ZipParts, roots: list[Any]) -> None:
        self.out = TextBuilder()
        self._parts = parts
        styles = [style for root in roots for style in _select(root, _STYLE)]
        self._styles = {_attribute(style, "style:name"): style for style in reversed(styles)}
        self._raised = {
            _attribute(style, "style:name") for root in roots for style in _select(root, _RAISED)
        }
        edges = (edge for root in roots[1:] for edge in _select(root, _EDGES))
        has_edges = any("".join(edge.itertext()).strip() for edge in edges)
        self.missing = ["headers and footers are left out"] * has_edges
        self._page = 1 if _select(roots[0], "//text:soft-page-break") else None
        self._lists = self._inline = 0  # how many are open: lists; cells and notes
        self._item = False  # its first paragraph is to come
        self.out.page = self._page

    def write(self, parent: Any) -> None:
        """Everything inside an element, in order."""
        words = _tag(parent) in _WORDS
        self._text(parent.text, words)
        for child in parent:
            if isinstance(child.tag, str):  # no comment
                self._element(child, _tag(child))
            self._text(child.tail, words)

    def _text(self, text: str | None, words: bool) -> None:
        if text and (words or text.strip()):
            self.out.flow(text)

    def _element(self, element: Any, tag: str) -> None:
        if tag in ("text:p", "text:h"):
            self._paragraph(element, tag)
        elif tag == "text:s":
            count = int(_attribute(element, "text:c") or "1")
            self.out.exact(" " * min(count, _MOST_SPACES))
        elif tag == "text:tab":
            self.out.exact("\t")
        elif tag == "text:line-break":
            self.out.flow(" ") if self._inline else self.out.exact("\n")
        elif tag == "text:soft-page-break":
            self._next_page()
        elif tag == "office:annotation":
            self.out.left_out["comments in the margin"] += 1
        elif tag in ("text:note", "table:table"):
            self._note_or_table(element, note=tag == "text:note")
        elif tag == "text:list":
            self._list(element)
        elif tag == "table:table-row":
            self.out.flow(" ") if self._inline > 1 else self.out.end_line()
            for number, cell in enumerate(_select(element, "table:table-cell")):
                self.out.flow(" | " if number else "")
                self.write(cell)
        elif tag == "draw:frame" and not _select(element, "draw:text-box"):
            self._frame(element)
        elif tag not in _NOT_SHOWN:
            if tag == "text:list-item":
                self._item = True
            elif tag == "text:span" and _attribute(element, "text:style-name") in self._raised:
                self.out.raised("".join(_select(element, "descendant::text()")))
            self.write(element)

    def _note_or_table(self, element: Any, *, note: bool) -> None:
        self.out.flow(" [note: ") if note else self._apart()
        self._inline += 1
        self.write(element)
        self._inline -= 1
        self.out.exact("]") if note else self._apart()

    def _apart(self) -> None:
        self.out.flow(" ") if self._inline else self.out.paragraph()

    def _paragraph(self, element: Any, tag: str) -> None:
        style = _attribute(element, "text:style-name")
        if self._page and not self._inline and self._begins_page(style):
            self._next_page()
        pieces = _select(element, _TITLE) if tag == "text:h" or self._item else ()
        words = " ".join("".join(p if isinstance(p, str) else " " for p in pieces).split())
        self.out.end_line() if self._lists and not self._inline else self._apart()
        if words and tag == "text:h":
            self.out.chapter = words
        if words and self._item:
            self._item = False
            self.out.lead("- ")
        self.write(element)
        if not self._inline:  # a drawn one may be inside another
            self.out.end_line()

    def _list(self, element: Any) -> None:
        self._lists += 1
        if self._lists == 1:
            self._apart()
        self.write(element)
        self._lists -= 1
        self._item = False
        if not self._lists:
            self._apart()

    def _frame(self, element: Any) -> None:
        """A picture with its description, or an object, which may be a formula."""
        embedded = _select(element, "draw:object")
        href = _attribute(embedded[0], "xlink:href") if embedded else ""
        part = f"{href.removeprefix('./')}/content.xml"
        words = ""
        if part in self._parts:  # a formula, if it has MathML
            markup = _PREFIX.sub(r"\1", self._parts.read(part).decode("utf-8", "replace"))
            formulas = parse_html(markup, part, xml=True).css("math")
            words = " ".join(map(formula_text, formulas))
        if not words:
            self.out.left_out["charts and other embedded objects" if embedded else "pictures"] += 1
            titles = _select(element, "svg:title | svg:desc")
            described = " ".join("".join(title.itertext()) for title in titles)
            words = f"[picture: {described}]" if described.strip() else ""
        self.out.flow(f" {words} ")

    def _next_page(self) -> None:
        if self._page is not None and self.out.begun:
            self._page += 1
            self.out.page = self._page

    def _begins_page(self, name: str) -> bool:
        """Whether paragraphs of this style begin a page, by it or one that it is based on."""
        style = self._styles.get(name)
        if style is None or _select(style, _NEW_PAGE):
            return style is not None
        parent = _attribute(style, "style:parent-style-name")
        return not _select(style, _BREAK) and self._begins_page(parent)


def _select(element: Any, path: str) -> Any:
    return element.xpath(path, namespaces=_SPACES)


def _tag(element: Any) -> str:
    """Its name with the usual prefix, or with none in another namespace."""
    space, _, name = element.tag[1:].rpartition("}")
    return f"{_PREFIXES.get(space, '')}:{name}"


def _attribute(element: Any, name: str) -> str:
    prefix, _, local = name.partition(":")
    return str(element.get(f"{{{_SPACES[prefix]}}}{local}", ""))
