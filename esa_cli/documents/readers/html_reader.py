"""HTML pages: paragraphs, lists, tables, formulas; headings are chapters.

selectolax (lexbor) parses pages as browsers do, XHTML too. Everything a page shows as text is kept,
menus included: navigation and content cannot be told apart for sure. Pictures give their
description. The text is written by hand: inscriptis takes time quadratic in the length of a
paragraph, and fills the columns of tables with spaces.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from esa_cli.documents.readers.encoding import BYTE_ORDER_MARKS, WIDER, declared_codec, decode
from esa_cli.documents.readers.reader_registry import Reader, register
from esa_cli.documents.readers.text_builder import (
    ExtractedText,
    TextBuilder,
    label,
    optional_import,
    printable,
)
from esa_cli.errors import DocumentError

_SKIPPED = frozenset(
    ("script", "style", "template", "iframe", "noembed", "noframes", "noscript", "datalist", "head",
     "annotation", "annotation-xml", "rp")
)  # fmt: skip
"""Tags whose contents a browser that runs scripts never shows as text."""
_UNSEEN_STYLES = frozenset(("display:none", "visibility:hidden", "visibility:collapse"))
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_APART = _HEADINGS | {"p", "pre", "table", "ul", "ol", "dl", "blockquote", "figure", "hr"}
_BLOCKS = _APART | {
    "address", "article", "aside", "body", "caption", "center", "dd", "details", "dialog", "div",
    "dt", "fieldset", "figcaption", "footer", "form", "header", "legend", "main", "menu", "nav",
    "option", "section", "summary",
}  # fmt: skip
_BESIDE = frozenset(("button", "desc", "object", "svg", "text", "textarea", "title"))
"""Tags that are shown apart from the words around them, though on their line."""
_LISTS = ("ol", "ul", "menu")

_DTD = re.compile(r"\A\s*(?:<\?xml[^>]*>\s*)?<!DOCTYPE[^<>\[]*\[[^\]]*\]\s*>")
"""The beginning of an XML file with declarations of its own, which HTML has not."""
_EMPTY = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr)[\s/])"
    r"([A-Za-z][\w:.-]*)((?:\s[^<>]*)?)/>"
)
"""An XML tag that closes itself, as HTML has them for these names alone."""
_CDATA = re.compile(r"<!\[CDATA\[([^\]]*)\]\]>")


def parse_html(text: str, name: str, *, xml: bool = False) -> Any:
    """The root node of an HTML text, or with `xml` of XHTML, repaired as browsers do it."""
    lexbor = optional_import("selectolax.lexbor", "selectolax", name)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    if xml:
        text = _EMPTY.sub(r"<\1\2></\1>", _DTD.sub("", text, count=1))
        text = _CDATA.sub(lambda found: html.escape(found[1]), text)
    without_events = lexbor.LexborDocumentOptions.WO_EVENTS.value  # quadratic in options of a list
    data = text.encode("utf-8", "replace")
    try:
        return lexbor.LexborHTMLParser(data, options=without_events, scripting=True).root
    except lexbor.SelectolaxError as error:  # it repairs whatever it is given
        raise MemoryError from error


def html_text(text: str, name: str) -> str:
    """The text of a page inside another document."""
    out = TextBuilder()
    write_html(parse_html(text, name), out, {})
    return out.result().text


def write_html(root: Any, out: TextBuilder, chapters: Mapping[str, str] | None = None) -> None:
    """Appends the text of a parsed page.

    Args:
        chapters: chapter titles by the id of the element they begin at; None takes headings.
    """
    _HtmlWriter(out, chapters).write(root)


class _HtmlWriter:
    """Writes the text of HTML elements, with breaks by tag."""

    def __init__(self, out: TextBuilder, chapters: Mapping[str, str] | None) -> None:
        self._out, self._chapters = out, chapters
        self._inside: Counter[str] = Counter()  # elements around that are shown, by tag
        self._cells = 0  # of the current row
        self._lists: list[int | None] = []  # the next number; None has bullets

    def write(self, node: Any, *, hidden: bool = False) -> None:
        """A node and all in it; Python's stack has room for the nodes in the child process."""
        if not node.is_element_node:
            if node.is_text_node and not hidden:
                self._text(node.text_content or "")
            return
        tag, attributes = node.tag.lower(), node.attributes
        if tag in _SKIPPED:
            return
        hidden = hidden or _hidden(tag, attributes)
        if not hidden:
            self._space(tag)
        self._mark(node, tag, attributes, hidden)
        if tag == "math":  # hidden, too: then a picture of the formula is shown
            self._out.flow(formula_text(node))
            return
        if not hidden:
            self._begin(node, tag, attributes)
        kind = "h" if tag in _HEADINGS else tag
        self._inside[kind] += not hidden
        for child in node.iter(include_text=True):
            self.write(child, hidden=hidden)
        self._inside[kind] -= not hidden
        if not hidden:
            if tag == "q":
                self._text("’" if self._inside["q"] % 2 else "”")
            elif tag in _LISTS:
                self._lists.pop()
            self._space(tag)

    def _begin(self, node: Any, tag: str, attributes: Mapping[str, str | None]) -> None:
        """What stands before the contents of an element."""
        if tag == "sup" and not self._inside["sup"]:
            self._out.raised(node.text())
        elif tag == "img":
            described = " ".join(printable(attributes.get("alt") or "").split())
            self._out.flow(f" [picture: {described}] " if described else "")
        elif tag == "q":
            self._text("‘" if self._inside["q"] % 2 else "“")
        elif tag in _LISTS:
            start = attributes.get("start") or "1"
            first = int(start) if start.isdecimal() else 1
            self._lists.append(first if tag == "ol" else None)
        elif tag == "li":
            number = self._lists[-1] if self._lists else None
            self._out.lead("- " if number is None else f"{number}. ")
            if number is not None:
                self._lists[-1] = number + 1
        elif tag in ("td", "th"):
            self._out.flow(" | " if self._cells else "")
            self._cells += 1

    def _text(self, text: str) -> None:
        self._out.exact(text) if self._inside["pre"] else self._out.flow(text)

    def _space(self, tag: str) -> None:
        if tag in _BESIDE:
            self._out.flow(" ")
        elif tag == "tr":
            self._cells = 0
            self._out.end_line()
        elif tag == "li" or tag in _BLOCKS:
            if self._cells:
                self._out.flow(" ")
            elif tag in _APART and not self._lists:
                self._out.paragraph()
            else:
                self._out.end_line()

    def _mark(
        self, node: Any, tag: str, attributes: Mapping[str, str | None], hidden: bool
    ) -> None:
        """The line, chapter and page that begin with an element."""
        if tag == "br" and not hidden:
            self._out.flow(" ") if self._cells else self._out.line()
        if self._chapters is None:
            if tag in _HEADINGS and not (self._inside["h"] or hidden):
                title = " ".join(printable(_shown_text(node)).split())
                self._out.chapter = title or self._out.chapter
        else:
            begins = self._chapters.get(attributes.get("id") or "#")
            self._out.chapter = begins or self._out.chapter
        if "pagebreak" in (attributes.get("epub:type") or "").split():
            number = attributes.get("title") or attributes.get("aria-label") or ""
            if number.isdecimal():
                self._out.page = int(number)


def _shown_text(node: Any) -> str:
    """The words of a heading that are shown."""
    if not node.is_element_node:
        return node.text_content or ""
    tag = node.tag.lower()
    if tag in _SKIPPED or _hidden(tag, node.attributes):
        return ""
    return "".join([_shown_text(child) for child in node.iter(include_text=True)])


def _hidden(tag: str, attributes: Mapping[str, str | None]) -> bool:
    """Whether an element's own attributes say that it is not shown."""
    if tag == "dialog" and "open" not in attributes:
        return True
    if (attributes.get("hidden", "until-found") or "").lower() != "until-found":
        return True  # a search in the page shows what is hidden until it is found
    if (attributes.get("aria-hidden") or "").strip().lower() == "true":
        return True
    style = "".join((attributes.get("style") or "").lower().split()).split(";")
    return any(part.removesuffix("!important") in _UNSEEN_STYLES for part in style)


_SIGNS = {
    "msup": " ^", "msub": " _", "msubsup": " _^", "munder": " _", "mover": " ^",
    "munderover": " _^", "mfrac": " /",
}  # fmt: skip
"""Element of a formula -> the sign before its first, second and third part."""
_BETWEEN = {"mtr": ";", "mlabeledtr": ";", "mtd": ","}
_RELATIONS = frozenset("+=<>≤≥≠≈≡→⇒⇔∈⊆⊂")


def formula_text(node: Any) -> str:
    """MathML in one line: x^2, a_(i+1), (-1)/2, √(2), 1, 2; 3, 4."""
    return " ".join(_formula(node).split())


def _formula(node: Any) -> str:
    if not node.is_element_node:
        return (node.text_content or "").strip()
    tag = node.tag.lower()
    if tag in _SKIPPED:
        return ""
    parts = [(child.tag.lower(), _formula(child)) for child in node.iter(include_text=True)]
    elements = [part for kind, part in parts if kind[0] != "-"]
    if tag in _SIGNS and len(elements) == len(_SIGNS[tag]):
        return "".join(
            sign.strip() + (part if part.isalnum() or len(part) < 2 else f"({part})")
            for sign, part in zip(_SIGNS[tag], elements, strict=True)
        )
    text = last = ""
    for kind, part in parts:
        if last and part and kind[0] != "-":  # it is no text of the element itself
            words = kind in ("mi", "mtext") and last[-1:].isalpha() and len(last + part) > 2
            text += _BETWEEN.get(kind, "") * (part.strip()[:1] not in _RELATIONS)
            text += " " * (words or kind in _BETWEEN)
        text += part
        last = part if kind[0] != "-" else last
    if tag == "mo" and text in _RELATIONS:
        return f" {text} "
    if tag == "mfenced":
        attributes = node.attributes
        return f"{attributes.get('open', '(') or ''}{text}{attributes.get('close', ')') or ''}"
    return f"√({text})" if tag == "msqrt" else text


_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s"';]+)""", re.IGNORECASE)
_XML = re.compile(rb"""\s*<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z0-9_.:-]+)["']""")
_HEAD = 1 << 14
"""Bytes in which a page's encoding is looked for. Browsers look at 1,024 first, and read again
when a declaration follows."""
_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html[\s>])", re.IGNORECASE)


@register("html")
class HtmlReader(Reader):
    what = "HTML"
    suffixes = (".html", ".htm", ".xhtml")
    binary = False

    def sniff(self, head: bytes) -> bool:
        return _BEGINS.match(head) is not None

    def read(self, data: bytes, name: str) -> ExtractedText:
        text, encoding = decode_markup(data, name)
        root, out = parse_html(text, name, xml=name.lower().endswith(".xhtml")), TextBuilder()
        title = root.css_first("head > title")
        out.chapter = " ".join(printable(title.text()).split()) or None if title else None
        write_html(root, out)
        extracted = out.result()
        if not extracted.text.strip():
            raise DocumentError(
                f"{label(name)} is a web page without text; a script may make its text",
                "open it in a browser and save it as text, or print it to PDF",
            )
        return replace(extracted, encoding=encoding)


def decode_markup(data: bytes, name: str) -> tuple[str, str]:
    """The text of an HTML or XML file, and the Python name of its encoding: by its byte order mark,
    what it declares, or its letters. Raises DocumentError: as `decode`."""
    if not data.startswith(BYTE_ORDER_MARKS):
        for charset in _declared(data[:_HEAD], name):
            with suppress(LookupError, ValueError):  # it is another one, or there is none
                encoding = _of_browsers(charset)
                return data.decode(encoding), encoding
    return decode(data, name)


def _declared(head: bytes, name: str) -> Iterator[str]:
    """What <meta> elements declare, as a browser's parser finds them, then XML's declaration."""
    lexbor = optional_import("selectolax.lexbor", "selectolax", name)
    for meta in lexbor.LexborHTMLParser(head.decode("latin-1")).css("meta"):
        attributes = meta.attributes
        if attributes.get("charset"):
            yield attributes["charset"]
        elif (attributes.get("http-equiv") or "").strip().lower() == "content-type":
            yield from _CHARSET.findall(attributes.get("content") or "")[:1]
    if declaration := _XML.match(head):
        yield declaration[1].decode()


def _of_browsers(charset: str) -> str:
    """The Python name of a declared encoding as browsers read it. Raises as `declared_codec`."""
    charset = re.sub(r"^x-|-[ie]$", "", charset.strip().lower())
    charset = re.sub(r"^(?:windows|dos)-(\d+)$", r"cp\1", charset).replace("windows-31j", "cp932")
    encoding = declared_codec(charset)
    if encoding.startswith(("utf-16", "utf-32")):  # or the declaration could not be read as ASCII
        return "utf-8"
    return WIDER.get(encoding, encoding)
