"""OpenDocument texts (odt), by odfdo: paragraphs, tables, lists and notes; headings are chapters.

Pages are counted by the marks of the program that saved the document last. Deleted text, comments,
headers and footers are left out; all but the first are reported.
"""

from __future__ import annotations

import io
from typing import Any, ClassVar

from esa_cli.documents.readers.html_reader import formula_text
from esa_cli.documents.readers.reader_registry import damage_error, register
from esa_cli.documents.readers.zip_parts import ZipParts
from esa_cli.documents.text_builder import ExtractedText, TextBuilder, label, optional_import
from esa_cli.errors import DocumentError

_STYLES, _MANIFEST = "styles.xml", "META-INF/manifest.xml"
_MIMETYPE = b"mimetypeapplication/vnd.oasis.opendocument.text"
_NOT_SHOWN = (
    "text:tracked-changes", "text:note-citation", "text:index-title-template", "office:forms",
    "svg:title", "svg:desc",
)  # fmt: skip
_WORDS = ("text:p", "text:h", "text:span", "text:a")
_RAISED = "//style:style[starts-with(style:text-properties/@style:text-position, 'super')]"
_STYLE = "//style:style[@style:family='paragraph']"
_EDGES = "//style:header | //style:footer"
_BREAK = "style:paragraph-properties/@fo:break-before"
_NEW_PAGE = f"{_BREAK}[.='page'] | @style:master-page-name[string()]"
_TITLE = (
    "descendant::node()[self::text() or self::text:s or self::text:tab or self::text:line-break]"
    "[not(ancestor::text:note or ancestor::office:annotation or ancestor::draw:frame)]"
)
_MOST_SPACES = 1000


@register("odt")
class OpenDocumentReader:
    """OpenDocument texts and their templates."""

    what: ClassVar[str] = "an OpenDocument text"
    suffixes: ClassVar[tuple[str, ...]] = (".odt", ".ott")
    binary: ClassVar[bool] = True

    def sniff(self, head: bytes) -> bool:
        return head.startswith(b"PK\3\4") and head[30:].startswith(_MIMETYPE)

    def read(self, data: bytes, name: str) -> ExtractedText:
        parts = ZipParts(data, name, self)
        parts.check()
        if _MANIFEST in parts and b"encryption-data" in parts.read(_MANIFEST):
            raise DocumentError(
                f"{label(name)} is protected by a password",
                "open it, save it without a password, and give that file",
            )
        odfdo = optional_import("odfdo", "odfdo", name, extra="office")
        document = odfdo.Document(io.BytesIO(data))
        body = document.content.get_element("//office:body/office:text")
        if body is None:
            raise damage_error(name, self.what, "content.xml has no text document")
        roots = [document.content, *([document.styles] if _STYLES in parts else [])]
        writer = _OpenDocumentWriter(parts, roots)
        writer.write(body)
        return writer.out.text_of(name, self.what, writer.missing)


class _OpenDocumentWriter:
    """Writes the text of odfdo's elements; `missing` is what it lacks besides what is counted."""

    def __init__(self, parts: ZipParts, roots: list[Any]) -> None:
        self.out = TextBuilder()
        self._parts = parts
        styles = [style for root in roots for style in root.get_elements(_STYLE)]
        self._styles = {style.name: style for style in reversed(styles)}
        self._raised = {style.name for root in roots for style in root.get_elements(_RAISED)}
        edges = (edge for root in roots[1:] for edge in root.get_elements(_EDGES))
        has_edges = any(edge.inner_text.strip() for edge in edges)
        self.missing = ["headers and footers are left out"] if has_edges else []
        self._page = 1 if roots[0].get_element("//text:soft-page-break") is not None else None
        self._lists = self._inline = 0  # how many are open: lists; cells and notes
        self._item = False  # its first paragraph is to come
        self.out.page(self._page)

    def write(self, parent: Any) -> None:
        """Everything inside an element, in order."""
        words = _tag(parent) in _WORDS
        for piece in parent.xpath("node()[self::* or self::text()]"):
            if not isinstance(piece, str):
                self._element(piece, _tag(piece))
            elif words or piece.strip():
                self.out.flow(piece)

    def _element(self, element: Any, tag: str) -> None:
        if tag in ("text:p", "text:h"):
            self._paragraph(element, tag)
        elif tag == "text:s":
            count = element.get_attribute_string("text:c") or "1"
            self.out.exact(" " * min(int(count), _MOST_SPACES))
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
            for number, cell in enumerate(element.get_elements("table:table-cell")):
                self.out.flow(" | " if number else "")
                self.write(cell)
        elif tag == "draw:frame" and element.get_element("draw:text-box") is None:
            self._frame(element)
        elif tag not in _NOT_SHOWN:
            if tag == "text:list-item":
                self._item = True
            elif tag == "text:span" and element.style in self._raised:
                self.out.raised("".join(element.xpath("descendant::text()")))
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
        if self._page and not self._inline and self._begins_page(element.style):
            self._next_page()
        pieces = element.xpath(_TITLE) if tag == "text:h" or self._item else ()
        words = " ".join("".join(p if isinstance(p, str) else " " for p in pieces).split())
        self.out.end_line() if self._lists and not self._inline else self._apart()
        if words and tag == "text:h":
            self.out.chapter(words)
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
        embedded = element.get_element("draw:object")
        href = embedded.get_attribute_string("xlink:href") if embedded else None
        part = f"{(href or '').removeprefix('./')}/content.xml"
        roots = self._parts.xml(part).iter("{*}math") if part in self._parts else ()
        words = " ".join(map(formula_text, roots))
        if not words:
            self.out.left_out["charts and other embedded objects" if embedded else "pictures"] += 1
            titles = element.get_elements("svg:title | svg:desc")
            described = " ".join(title.inner_text for title in titles)
            words = f"[picture: {described}]" if described.strip() else ""
        self.out.flow(f" {words} ")

    def _next_page(self) -> None:
        if self._page is not None and self.out.begun:
            self._page += 1
            self.out.page(self._page)

    def _begins_page(self, name: str | None) -> bool:
        """Whether paragraphs of this style begin a page, by it or one that it is based on."""
        style = self._styles.get(name)
        if style is None or style.xpath(_NEW_PAGE):
            return style is not None
        return not style.xpath(_BREAK) and self._begins_page(style.parent_style)


def _tag(element: Any) -> str:
    """Its name with odfdo's prefix; empty in a namespace that odfdo does not know."""
    try:
        return str(element.tag)
    except ValueError:
        return ""
