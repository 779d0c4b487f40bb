"""HTML trees as text: paragraphs, lists, tables, headings, formulas.

Everything a page shows as text is kept, menus included: navigation and content cannot be told apart
for sure. Pictures give their description. Written by hand: inscriptis takes time quadratic in the
length of a paragraph, fills the columns of tables with spaces, and needs longer preparation than
this.
"""

from __future__ import annotations

import html.entities
import re
from collections.abc import Mapping
from typing import Any

from esa_cli.documents.readers.reader_registry import damage_error
from esa_cli.documents.reading_limits import check_html
from esa_cli.documents.text_builder import TextBuilder, optional_import

_SKIPPED = frozenset({"script", "style", "template", "head", "annotation", "annotation-xml", "rp"})
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_APART = _HEADINGS | {"p", "pre", "table", "ul", "ol", "dl", "blockquote", "figure", "hr"}
_BLOCKS = _APART | {
    "address", "article", "aside", "body", "caption", "center", "dd", "details", "dialog", "div",
    "dt", "fieldset", "figcaption", "footer", "form", "header", "legend", "main", "menu", "nav",
    "option", "section", "summary",
}  # fmt: skip
_BESIDE = frozenset(
    ("button", "desc", "iframe", "noscript", "object", "svg", "text", "textarea", "title")
)
"""Tags that are shown apart from the words around them, though on their line."""
_SIGNS = {
    "msup": " ^", "msub": " _", "msubsup": " _^", "munder": " _", "mover": " ^",
    "munderover": " _^", "mfrac": " /",
}  # fmt: skip
"""Element of a formula -> the sign before its first, second and third part."""
_BETWEEN = {"mtr": ";", "mlabeledtr": ";", "mtd": ","}
_RELATIONS = frozenset("+=<>≤≥≠≈≡→⇒⇔∈⊆⊂")
_ENTITY = re.compile(rb"&([A-Za-z][A-Za-z0-9]*);")
_XML_ENTITIES = frozenset((b"amp", b"lt", b"gt", b"quot", b"apos"))
_EPUB_TYPE = "{http://www.idpf.org/2007/ops}type"
_DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>")


def parse_html(text: str, name: str) -> Any:
    """The root element of an HTML text, repaired where it is broken; None when nothing is left.

    Raises:
        DocumentError: it exceeds a limit, or the parser gave up, so that text would be lost.
    """
    etree = optional_import("lxml.etree", "lxml", name)
    text = _DECLARATION.sub("", text, count=1).replace("\0", "\ufffd")
    check_html(text, name)
    parser = etree.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True)
    try:
        root = etree.fromstring(text.encode("utf-8", "replace"), parser)
    except etree.ParserError:
        return None
    for entry in parser.error_log:
        if entry.level == etree.ErrorLevels.FATAL:
            raise damage_error(name, "HTML", entry.message)
    return root


def parse_xhtml(data: bytes, text: str, name: str) -> Any:
    """As XML where it is XML, which closes tags that HTML would leave open; else as HTML."""
    etree = optional_import("lxml.etree", "lxml", name)
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    try:
        root = etree.fromstring(_ENTITY.sub(_spelled, data), parser)
    except (etree.XMLSyntaxError, ValueError):
        return parse_html(text, name)
    foreign = next(root.iter(etree.Entity), None) is not None  # text behind it would be lost
    return parse_html(text, name) if foreign else root


def _spelled(found: re.Match[bytes]) -> bytes:
    """XML knows five names of characters, HTML two thousand."""
    text = html.entities.html5.get(found[1].decode() + ";")
    if found[1] in _XML_ENTITIES or text is None:
        return found[0]
    return "".join(f"&#{ord(letter)};" for letter in text).encode()


def write_html(
    root: Any, out: TextBuilder, name: str, chapters: Mapping[str, str] | None = None
) -> None:
    """Appends a tree's text.

    Args:
        chapters: chapter titles by the id of the element they begin at; None takes headings.
    """
    etree = optional_import("lxml.etree", "lxml", name)
    walker = _HtmlWriter(out, chapters)
    events = etree.iterwalk(root, events=("start", "end", "comment", "pi"))
    for event, element in events:
        if event == "start":
            if not walker.open(element):
                events.skip_subtree()
            continue
        if event == "end":
            walker.close(element)
        if element is not root and element.tail:
            walker.text(element.tail)


class _HtmlWriter:
    """Writes the text of HTML elements, with breaks by tag."""

    def __init__(self, out: TextBuilder, chapters: Mapping[str, str] | None) -> None:
        self._out, self._chapters = out, chapters
        self._exact = 0
        self._cells = 0  # of the current row
        self._lists: list[int | None] = []  # the next number; None has bullets

    def open(self, element: Any) -> bool:
        """Begins an element; True if its contents are to be written."""
        tag = _tag(element)
        if tag in _SKIPPED:
            return False
        self._space(tag)
        self._mark(element, tag)
        if tag == "math":
            self._out.flow(formula_text(element))
            return False
        if tag == "sup":
            self._out.raised("".join(element.itertext()))
        if tag == "img":
            self._picture(element)
        elif tag == "pre":
            self._exact += 1
        elif tag in ("ol", "ul", "menu"):
            start = element.get("start", "1")
            self._lists.append(None if tag != "ol" else int(start) if start.isdecimal() else 1)
        elif tag == "li":
            self._item()
        elif tag in ("td", "th"):
            if self._cells:
                self._out.flow(" | ")
            self._cells += 1
        if element.text:
            self.text(element.text)
        return True

    def close(self, element: Any) -> None:
        tag = _tag(element)
        if tag in _SKIPPED or tag == "math":
            return
        if tag == "pre":
            self._exact -= 1
        elif tag in ("ol", "ul", "menu") and self._lists:
            self._lists.pop()
        self._space(tag)

    def text(self, text: str) -> None:
        if self._exact:
            self._out.exact(text)
        else:
            self._out.flow(text)

    def _space(self, tag: str) -> None:
        if tag == "br":
            return
        if tag in _BESIDE:
            self._out.flow(" ")
        elif tag == "tr":
            self._cells = 0
            self._out.end_line()
        elif tag == "li" or (tag in _BLOCKS and (self._cells or self._lists)):
            if not self._cells:
                self._out.end_line()
            else:
                self._out.flow(" ")
        elif tag in _BLOCKS:
            self._out.paragraph() if tag in _APART else self._out.end_line()

    def _mark(self, element: Any, tag: str) -> None:
        if tag == "br":
            self._out.flow(" ") if self._cells else self._out.line()
        if self._chapters is None:
            if tag in _HEADINGS and (title := " ".join("".join(element.itertext()).split())):
                self._out.chapter(title)
        elif (begins := self._chapters.get(element.get("id") or "#")) is not None:
            self._out.chapter(begins)
        if "pagebreak" in element.get(_EPUB_TYPE, "").split():
            number = element.get("title") or element.get("aria-label") or ""
            if number.isdecimal():
                self._out.page(int(number))

    def _picture(self, element: Any) -> None:
        described = " ".join(element.get("alt", "").split())
        if described:
            self._out.flow(f" [picture: {described}] ")

    def _item(self) -> None:
        number = self._lists[-1] if self._lists else None
        self._out.lead("- " if number is None else f"{number}. ")
        if number is not None:
            self._lists[-1] = number + 1


def formula_text(element: Any) -> str:
    """MathML in one line: x^2, a_(i+1), (-1)/2, √(2), 1, 2; 3, 4."""
    try:
        return " ".join(_formula(element).split())
    except RecursionError:  # nested thousands deep
        return "".join(element.itertext())


def _formula(element: Any) -> str:
    tag, text = _tag(element), (element.text or "").strip()
    if tag in _SKIPPED:
        return ""
    parts = [(_tag(child), _formula(child)) for child in element if isinstance(child.tag, str)]
    if tag in _SIGNS and len(parts) == len(_SIGNS[tag]):
        return "".join(
            sign.strip() + (part if part.isalnum() or len(part) < 2 else f"({part})")
            for sign, (_, part) in zip(_SIGNS[tag], parts, strict=True)
        )
    if tag == "mo" and text in _RELATIONS:
        return f" {text} "
    last = ""
    for (kind, part), child in zip(parts, element.iterchildren("*"), strict=True):
        if last and part:
            words = kind in ("mi", "mtext") and last[-1:].isalpha() and len(last + part) > 2
            relation = part.strip()[:1] in _RELATIONS
            text += _BETWEEN.get(kind, "") * (not relation) + " " * (words or kind in _BETWEEN)
        text, last = text + part + (child.tail or "").strip(), part
    if tag == "mfenced":
        return f"{element.get('open', '(')}{text}{element.get('close', ')')}"
    return f"√({text})" if tag == "msqrt" else text


def _tag(element: Any) -> str:
    return str(element.tag).rpartition("}")[2].lower()
