"""HTML pages: paragraphs, lists, tables, formulas; headings are chapters.

selectolax (lexbor) parses pages as browsers do; XHTML is parsed as XML. Both become trees of lxml.
Everything a page shows as text is kept, menus included: navigation and content cannot be told apart
for sure. Pictures give their description. The text is written by hand: inscriptis takes time
quadratic in the length of a paragraph, and fills the columns of tables with spaces.
"""

from __future__ import annotations

import html.entities
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from esa_cli.documents.encoding import BYTE_ORDER_MARKS, declared_codec, decode
from esa_cli.documents.readers.reader_registry import register
from esa_cli.documents.reading_process import check_html
from esa_cli.documents.text_builder import (
    ExtractedText,
    TextBuilder,
    label,
    optional_import,
    path_in_hint,
    printable,
)
from esa_cli.errors import DocumentError

_UNSEEN_TAGS = frozenset(
    ("script", "style", "template", "iframe", "noembed", "noframes", "noscript", "datalist")
)
"""Tags whose contents a browser that runs scripts never shows."""
_SKIPPED = _UNSEEN_TAGS | {"head", "annotation", "annotation-xml", "rp"}
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
_KEPT = {
    name: name
    for name in ("alt", "aria-hidden", "aria-label", "close", "hidden", "id", "open", "start",
                 "style", "title")
} | {"epub:type": _EPUB_TYPE}  # fmt: skip
"""Attribute of a page -> its name in the tree; no others are looked at."""
_NAME = re.compile(r"[a-z][a-z0-9.-]*")
_DTD = re.compile(r"\s*(?:<\?xml[^>]*>\s*)?<!DOCTYPE[^<>\[]*\[[^\]]*\]\s*>")
"""The beginning of an XML file with declarations of its own, which HTML has not."""

_EMPTY = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr)[\s/])"
    r"([A-Za-z][\w:.-]*)((?:\s[^<>]*)?)/>"
)
"""An XML tag that closes itself, as HTML has them for these names alone."""


def parse_html(text: str, name: str) -> Any:
    """The root element of an HTML text, repaired as browsers do it.

    Raises:
        DocumentError: it exceeds a limit. MemoryError.
    """
    lexbor = optional_import("selectolax.lexbor", "selectolax", name)
    check_html(text, name)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    without_events = lexbor.LexborDocumentOptions.WO_EVENTS.value  # quadratic in options of a list
    data = text.encode("utf-8", "replace")
    try:
        page = lexbor.LexborHTMLParser(data, options=without_events, scripting=True)
    except lexbor.SelectolaxError as error:  # it repairs whatever it is given
        raise MemoryError from error
    builder = optional_import("lxml.etree", "lxml", name).TreeBuilder()
    _build(page.root, builder)
    return builder.close()


def _build(node: Any, builder: Any) -> None:
    """Copies a parser's tree, without what no browser shows: it would fill the memory."""
    tags: list[str] = []
    while True:
        inner = None
        if node.is_element_node:
            tag = node.tag.lower()
            tags.append(tag if _NAME.fullmatch(tag) else "span")
            given = node.attributes
            builder.start(
                tags[-1], {_KEPT[n]: printable(v or "") for n, v in given.items() if n in _KEPT}
            )
            inner = None if tag in _UNSEEN_TAGS else node.first_child
        elif node.is_text_node:
            builder.data(printable(node.text_content or ""))
        if inner is not None:
            node = inner
            continue
        if node.is_element_node:
            builder.end(tags.pop())
        while tags and node.next is None:
            node = node.parent
            builder.end(tags.pop())
        if not tags:
            return
        node = node.next


def parse_xhtml(data: bytes, text: str, name: str) -> Any:
    """As XML where it is XML, which closes tags that HTML would leave open; else as HTML.

    Raises:
        DocumentError: it exceeds a limit.
    """
    check_html(text, name)
    etree = optional_import("lxml.etree", "lxml", name)
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    declared = _DTD.match(text)
    page = _EMPTY.sub(r"<\1\2></\1>", text[declared.end() :] if declared else text)
    try:
        root = etree.fromstring(_ENTITY.sub(_spelled, data), parser)
    except (etree.XMLSyntaxError, ValueError):
        return parse_html(page, name)
    foreign = next(root.iter(etree.Entity), None) is not None  # text after it would be lost
    return parse_html(page, name) if foreign else root


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
    walker = _HtmlWriter(out, chapters, etree)
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

    def __init__(self, out: TextBuilder, chapters: Mapping[str, str] | None, etree: Any) -> None:
        self._out, self._chapters, self._etree = out, chapters, etree
        self._inside: Counter[str] = Counter()  # elements around, of the tags that are counted
        self._unseen = 0  # elements around that are hidden, or inside a hidden one
        self._cells = 0  # of the current row
        self._lists: list[int | None] = []  # the next number; None has bullets

    def open(self, element: Any) -> bool:
        """Begins an element; True if its contents are to be written."""
        tag = _tag(element)
        if tag in _SKIPPED:
            return False
        hidden = self._unseen > 0 or _hidden(element, tag)
        if not hidden:
            self._space(tag)
        self._mark(element, tag)
        if tag == "math":  # hidden, too: then a picture of the formula is shown
            self._out.flow(formula_text(element))
            return False
        if hidden:
            self._unseen += 1
            return True
        if tag == "sup" and not self._inside["sup"]:
            self._out.raised("".join(element.itertext()))
        if tag == "img":
            self._picture(element)
        elif tag == "q":
            self.text("‘" if self._inside["q"] % 2 else "“")
        elif tag in ("ol", "ul", "menu"):
            start = element.get("start", "1")
            self._lists.append(None if tag != "ol" else int(start) if start.isdecimal() else 1)
        elif tag == "li":
            self._item()
        elif tag in ("td", "th"):
            if self._cells:
                self._out.flow(" | ")
            self._cells += 1
        self._inside[_counted(tag)] += 1
        if element.text:
            self.text(element.text)
        return True

    def close(self, element: Any) -> None:
        tag = _tag(element)
        if tag in _SKIPPED or tag == "math":
            return
        if self._unseen:
            self._unseen -= 1
            return
        self._inside[_counted(tag)] -= 1
        if tag == "q":
            self.text("’" if self._inside["q"] % 2 else "”")
        elif tag in ("ol", "ul", "menu") and self._lists:
            self._lists.pop()
        self._space(tag)

    def text(self, text: str) -> None:
        if self._unseen:
            return
        if self._inside["pre"]:
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
        if tag == "br" and not self._unseen:
            self._out.flow(" ") if self._cells else self._out.line()
        if self._chapters is None:
            first = tag in _HEADINGS and not (self._inside["h"] or self._unseen)
            if first and (title := self._title(element)):
                self._out.chapter(title)
        elif (begins := self._chapters.get(element.get("id") or "#")) is not None:
            self._out.chapter(begins)
        if "pagebreak" in element.get(_EPUB_TYPE, "").split():
            number = element.get("title") or element.get("aria-label") or ""
            if number.isdecimal():
                self._out.page(int(number))

    def _title(self, heading: Any) -> str:
        """The words of a heading that are shown."""
        parts = []
        events = self._etree.iterwalk(heading, events=("start", "end", "comment", "pi"))
        for event, element in events:
            if event == "start":
                parts.append(element.text or "")
                if (tag := _tag(element)) in _SKIPPED or _hidden(element, tag):
                    parts.pop()
                    events.skip_subtree()
            elif element is not heading:
                parts.append(element.tail or "")
        return " ".join("".join(parts).split())

    def _picture(self, element: Any) -> None:
        described = " ".join(element.get("alt", "").split())
        if described:
            self._out.flow(f" [picture: {described}] ")

    def _item(self) -> None:
        number = self._lists[-1] if self._lists else None
        self._out.lead("- " if number is None else f"{number}. ")
        if number is not None:
            self._lists[-1] = number + 1


def _counted(tag: str) -> str:
    return "h" if tag in _HEADINGS else tag


def _hidden(element: Any, tag: str) -> bool:
    """Whether an element's own attributes say that it is not shown."""
    attributes = element.attrib
    if tag == "dialog" and "open" not in attributes:
        return True
    if not attributes:
        return False
    if attributes.get("hidden", "until-found").lower() != "until-found":
        return True  # a search in the page shows what is hidden until it is found
    if attributes.get("aria-hidden", "").strip().lower() == "true":
        return True
    style = "".join(attributes.get("style", "").lower().split()).split(";")
    return any(one.removesuffix("!important") in _UNSEEN_STYLES for one in style)


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
    pieces, last = [text], ""
    for (kind, part), child in zip(parts, element.iterchildren("*"), strict=True):
        if last and part:
            words = kind in ("mi", "mtext") and last[-1:].isalpha() and len(last + part) > 2
            relation = part.strip()[:1] in _RELATIONS
            pieces.append(_BETWEEN.get(kind, "") * (not relation))
            pieces.append(" " * (words or kind in _BETWEEN))
        pieces += part, (child.tail or "").strip()
        last = part
    text = "".join(pieces)
    if tag == "mfenced":
        return f"{element.get('open', '(')}{text}{element.get('close', ')')}"
    return f"√({text})" if tag == "msqrt" else text


def _tag(element: Any) -> str:
    return str(element.tag).rpartition("}")[2].lower()


_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s"';]+)""", re.IGNORECASE)
_XML = re.compile(rb"""\s*<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z0-9_.:-]+)["']""")
_HEAD = 1 << 14
"""Bytes in which a page's encoding is looked for. Browsers look at 1,024 first, and read again
when a declaration follows."""
WIDER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874",
    "tis-620": "cp874", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932",
    "euc_kr": "cp949",
}  # fmt: skip
"""Declared -> what browsers read it as, and pages rely on: the same characters, and more."""
_WEB = frozenset((
    "utf-8", "cp866", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "gb18030", "big5",
    "big5hkscs", "euc_jp", "iso2022_jp", "cp932", "cp949", "cp874",
    *(f"cp{number}" for number in range(1250, 1259)),
    *(f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
))  # fmt: skip
"""The encodings that browsers know; all have ASCII in them."""
_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html[\s>])", re.IGNORECASE)


@register("html")
class HtmlReader:
    """Web pages."""

    what: ClassVar[str] = "HTML"
    suffixes: ClassVar[tuple[str, ...]] = (".html", ".htm", ".xhtml")
    binary: ClassVar[bool] = False

    def sniff(self, head: bytes) -> bool:
        return _BEGINS.match(head) is not None

    def read(self, data: bytes, name: str) -> ExtractedText:
        text, encoding = decode_markup(data, name)
        xhtml = name.lower().endswith(".xhtml")
        root = parse_xhtml(data, text, name) if xhtml else parse_html(text, name)
        out = TextBuilder()
        out.chapter(" ".join((root.findtext("{*}head/{*}title") or "").split()) or None)
        write_html(root, out, name)
        extracted = out.result()
        if not extracted.text.strip():
            raise DocumentError(
                f"{label(name)} is a web page without text; a script may make its text",
                "open it in a browser and save it as text, or print it to PDF",
            )
        return ExtractedText(extracted.text, extracted.marks, extracted.missing, encoding)


def decode_markup(data: bytes, name: str) -> tuple[str, str]:
    """The text of an HTML or XML file, by its byte order mark, what it declares, or its letters.

    Raises:
        DocumentError: as `encoding.decode`.
    """
    if not data.startswith(BYTE_ORDER_MARKS):
        for charset in _declared(data[:_HEAD], name):
            encoding = _of_browsers(charset)
            try:
                return data.decode(encoding), encoding
            except (LookupError, ValueError):
                pass  # not what it declares
    return decode(data, label(name), path_in_hint(name))


def _declared(head: bytes, name: str) -> Iterator[str]:
    """What <meta> elements declare, as a browser's parser finds them, then XML's declaration."""
    lexbor = optional_import("selectolax.lexbor", "selectolax", name)
    for meta in lexbor.LexborHTMLParser(head.decode("latin-1")).css("meta"):
        given = meta.attributes
        if given.get("charset"):
            yield given["charset"]
        elif (given.get("http-equiv") or "").strip().lower() == "content-type":
            yield from _CHARSET.findall(given.get("content") or "")[:1]
    if declaration := _XML.match(head):
        yield declaration[1].decode()


def _of_browsers(charset: str) -> str:
    """The Python name of a declared encoding as browsers read it; empty if they know none."""
    charset = re.sub(r"^x-|-[ie]$", "", charset.strip().lower())
    charset = re.sub(r"^(?:windows|dos)-(\d+)$", r"cp\1", charset).replace("windows-31j", "cp932")
    try:
        encoding = declared_codec(charset)
    except (LookupError, ValueError):
        return ""
    encoding = WIDER.get(encoding, encoding)
    if encoding.startswith(("utf-16", "utf-32")):  # or the declaration could not be read as ASCII
        return "utf-8"
    return encoding if encoding in _WEB else ""
