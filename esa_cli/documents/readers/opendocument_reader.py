"""OpenDocument texts (odt): paragraphs, tables, lists and notes; headings are chapters.

Pages are counted by the marks of the program that saved the document last. Deleted text, comments,
headers and footers are left out; all but the first are reported.
"""

from __future__ import annotations

from typing import Any

from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder
from esa_cli.documents.readers.zip_parts import ZipParts, password_error

_MANIFEST = "META-INF/manifest.xml"
_OASIS = "urn:oasis:names:tc:opendocument:xmlns:"
_SPACES = {name: f"{_OASIS}{name}:1.0" for name in ("office", "style", "text", "table")} | {
    "draw": f"{_OASIS}drawing:1.0",
    "svg": f"{_OASIS}svg-compatible:1.0",
    "fo": f"{_OASIS}xsl-fo-compatible:1.0",
}
_PREFIXES = {space: prefix for prefix, space in _SPACES.items()}
_NOT_SHOWN = frozenset(
    ("text:tracked-changes", "text:note-citation", "text:index-title-template", "office:forms",
     "svg:title", "svg:desc")
)  # fmt: skip
_INLINE = frozenset(("text:p", "text:h", "text:span", "text:a"))
"""Elements whose own white space counts as words."""
_RAISED = "//style:style[starts-with(style:text-properties/@style:text-position, 'super')]"
_STYLE = "//style:style[@style:family='paragraph']"
_EDGES = "//style:header | //style:footer"
_BREAK = "style:paragraph-properties/@fo:break-before"
_NEW_PAGE = f"{_BREAK}[.='page'] | @style:master-page-name[string()]"
_TITLE = (
    "descendant::node()[self::text() or self::text:s or self::text:tab or self::text:line-break]"
    "[not(ancestor::text:note or ancestor::office:annotation or ancestor::draw:frame)]"
)
_MAX_SPACES = 1000


def read_odt(data: bytes, name: str) -> ExtractedText:
    """Reads the body of an OpenDocument text."""
    parts = ZipParts(data, name)
    if _MANIFEST in parts and b"encryption-data" in parts.read(_MANIFEST):
        raise password_error(name)
    content, styles = parts.xml("content.xml"), parts.xml_if_any("styles.xml")
    [body] = _select(content, "//office:body/office:text")
    writer = _OdtWriter([content] if styles is None else [content, styles])
    writer.write_children(body)
    edges = () if styles is None else _select(styles, _EDGES)
    has_edges = any("".join(edge.itertext()).strip() for edge in edges)
    return writer.out.result(["headers and footers are left out"] * has_edges)


class _OdtWriter:
    """Writes the text of elements; `roots` are those of the content and of the styles."""

    def __init__(self, roots: list[Any]) -> None:
        self.out = TextBuilder()
        styles = [style for root in roots for style in _select(root, _STYLE)]
        self._styles = {_attribute(style, "style:name"): style for style in reversed(styles)}
        raised = [style for root in roots for style in _select(root, _RAISED)]
        self._raised = {_attribute(style, "style:name") for style in raised}
        self._lists = self._inline = 0  # the number of open lists; of open cells and notes
        self._item_begins = False  # the first paragraph of a list's item follows
        self.out.page = 1 if _select(roots[0], "//text:soft-page-break") else None

    def write_children(self, parent: Any) -> None:
        """Writes the text and the elements inside an element, in order."""
        self._write_words(parent.text, parent)
        for child in parent:
            if isinstance(child.tag, str):  # no comment
                self._write_element(child, _prefixed_tag(child))
            self._write_words(child.tail, parent)

    def _write_words(self, text: str | None, parent: Any) -> None:
        if text and (text.strip() or _prefixed_tag(parent) in _INLINE):
            self.out.flow(text)

    def _write_element(self, element: Any, tag: str) -> None:
        if tag in ("text:p", "text:h"):
            self._write_paragraph(element, tag)
        elif tag == "text:s":
            count = int(_attribute(element, "text:c") or "1")
            self.out.exact(" " * min(count, _MAX_SPACES))
        elif tag == "text:tab":
            self.out.exact("\t")
        elif tag == "text:line-break":
            self.out.flow(" ") if self._inline else self.out.exact("\n")
        elif tag == "text:soft-page-break":
            self._turn_page()
        elif tag == "office:annotation":
            self.out.left_out["comments in the margin"] += 1
        elif tag in ("text:note", "table:table"):
            note = tag == "text:note"
            self.out.flow(" [note: ") if note else self._separate()
            self._inline += 1
            self.write_children(element)
            self._inline -= 1
            self.out.exact("]") if note else self._separate()
        elif tag == "text:list":
            self._write_list(element)
        elif tag == "table:table-row":
            self.out.flow(" ") if self._inline > 1 else self.out.end_line()
            for number, cell in enumerate(_select(element, "table:table-cell")):
                self.out.flow(" | " if number else "")
                self.write_children(cell)
        elif tag == "draw:frame" and not _select(element, "draw:text-box"):
            embedded = _select(element, "draw:object")
            self.out.left_out["charts and other embedded objects" if embedded else "pictures"] += 1
            titles = _select(element, "svg:title | svg:desc")
            described = " ".join("".join(title.itertext()) for title in titles)
            self.out.flow(f" [picture: {described}] " if described.strip() else " ")
        elif tag not in _NOT_SHOWN:
            if tag == "text:list-item":
                self._item_begins = True
            elif tag == "text:span" and _attribute(element, "text:style-name") in self._raised:
                self.out.raised("".join(_select(element, "descendant::text()")))
            self.write_children(element)

    def _separate(self) -> None:
        self.out.flow(" ") if self._inline else self.out.paragraph()

    def _write_paragraph(self, element: Any, tag: str) -> None:
        if not self._inline and self._begins_page(_attribute(element, "text:style-name")):
            self._turn_page()
        pieces = _select(element, _TITLE) if tag == "text:h" or self._item_begins else ()
        words = " ".join("".join(p if isinstance(p, str) else " " for p in pieces).split())
        self.out.end_line() if self._lists and not self._inline else self._separate()
        if words and tag == "text:h":
            self.out.chapter = words
        if words and self._item_begins:
            self._item_begins = False
            self.out.lead("- ")
        self.write_children(element)
        if not self._inline:  # a drawn one may be inside another
            self.out.end_line()

    def _write_list(self, element: Any) -> None:
        if not self._lists:
            self._separate()
        self._lists += 1
        self.write_children(element)
        self._lists -= 1
        self._item_begins = False
        if not self._lists:
            self._separate()

    def _turn_page(self) -> None:
        if self.out.page is not None and self.out.begun:
            self.out.page += 1

    def _begins_page(self, name: str) -> bool:
        """True if paragraphs of this style, or of one that it is based on, begin a page."""
        style = self._styles.get(name)
        if self.out.page is None or style is None:
            return False
        if _select(style, _NEW_PAGE):
            return True
        parent = _attribute(style, "style:parent-style-name")
        return not _select(style, _BREAK) and self._begins_page(parent)


def _select(element: Any, path: str) -> Any:
    return element.xpath(path, namespaces=_SPACES)


def _prefixed_tag(element: Any) -> str:
    """An element's tag with the usual prefix of its namespace; with none for other namespaces."""
    space, _, name = element.tag[1:].rpartition("}")
    return f"{_PREFIXES.get(space, '')}:{name}"


def _attribute(element: Any, name: str) -> str:
    prefix, _, local = name.partition(":")
    return str(element.get(f"{{{_SPACES[prefix]}}}{local}", ""))
