"""Mail (eml), by the standard library's email: sender, addressees, date, subject, then the text.

Of a text in several forms the plain one is read, unless it is far shorter than the HTML beside it.
A mail inside a mail is read in place, as a chapter of its own. Attached files are named, not read.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections import Counter
from contextlib import suppress
from email import message_from_bytes, policy
from email.headerregistry import HeaderRegistry
from email.message import EmailMessage
from typing import Any

from esa_cli.documents.readers.encoding import WIDER, declared_codec, decode
from esa_cli.documents.readers.html_reader import decode_markup, html_text
from esa_cli.documents.readers.reader_registry import Reader, register
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, first_names, label
from esa_cli.documents.readers.text_reader import plain_text
from esa_cli.errors import DocumentError

_SHOWN = ("From", "To", "Cc", "Date", "Subject")
_OF_MAIL = (
    *_SHOWN, "Received", "Return-Path", "Message-ID", "MIME-Version", "Content-Type", "Sender",
)  # fmt: skip
_BEGINS = re.compile(rb"(?:[!-9;-~]+:[^\n]*(?:\n[ \t][^\n]*)*\n){2,}", re.IGNORECASE)
_SURE = re.compile(rb"^(?:message-id|received|mime-version):", re.IGNORECASE | re.MULTILINE)
_SENDER = re.compile(rb"^from:", re.IGNORECASE | re.MULTILINE)
_HEAD = 1 << 16
_ENCRYPTED = ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime")
_NO_WORDS = ("text/rtf", "text/css", "text/javascript")
_PAGES = ("text/html", "application/xhtml+xml")
_STUB = 0.5
"""Share of the words of a page that a plain text needs to be read in its place."""
_MOST_NAMES = 20
_LONGEST = 1 << 14  # characters of a field; parsing takes time and memory quadratic in them
_REGISTRY = HeaderRegistry()


def _decode_field(name: str, value: str) -> Any:
    """A header field, decoded; one that is too long or breaks the rules is left as it is."""
    data = value.encode("utf-8", "surrogateescape")  # some send bytes as they are
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    content = name.lower().startswith("content-")
    with suppress(Exception):  # the parser raises what it meets
        if content or len(text) <= _LONGEST:
            return _REGISTRY(name, text[: _LONGEST // 4] if content else text)
    return _REGISTRY(name, "") if content else text


_POLICY = policy.default.clone(header_factory=_decode_field)


@register("mail")
class MailReader(Reader):
    what = "a mail"
    suffixes = (".eml",)
    binary = False

    def sniff(self, head: bytes) -> bool:
        begins = _BEGINS.match(head[:_HEAD].replace(b"\r\n", b"\n"))
        return begins is not None and bool(_SURE.search(begins[0]) and _SENDER.search(begins[0]))

    def read(self, data: bytes, name: str) -> ExtractedText:
        message = message_from_bytes(data, policy=_POLICY)
        if not any(field in message for field in _OF_MAIL):
            text, encoding = plain_text(data, name)
            return ExtractedText(text, encoding=encoding)
        if message.get_content_type() in _ENCRYPTED:
            raise DocumentError(
                f"{label(name)} is an encrypted mail, or one that is packed with its signature",
                "open it in a mail program, save its text, and give that",
            )
        writer = _MailWriter(name)
        writer.message(message)
        attached = first_names(writer.attached, _MOST_NAMES)
        missing = [f"attached files are not read: {attached}"] if attached else []
        for what, count in writer.missing.items():
            missing.append(f"{what}: {count}" if count > 1 else what)
        return writer.out.result(missing)


class _MailWriter:
    """The text of a mail's parts, the names of its attached files, and what else is `missing`."""

    def __init__(self, name: str) -> None:
        self.out = TextBuilder()
        self.attached: list[str] = []
        self.missing: Counter[str] = Counter()
        self._name = name

    def message(self, message: EmailMessage) -> None:
        """Writes a mail: its fields, then its parts."""
        self.out.paragraph()
        self.out.chapter = " ".join(str(message.get("Subject", "")).split()) or None
        for field in _SHOWN:
            for value in message.get_all(field, []):
                if words := " ".join(str(value).split()):
                    self.out.end_line()
                    self.out.exact(f"{field}: {words}")
        self._part(message)

    def _part(self, part: Any) -> None:
        kind, several = part.get_content_type(), part.is_multipart()
        if any("Boundary" in type(defect).__name__ for defect in part.defects):
            self.missing["the end of the mail is missing, or where a part of it ends"] += 1
        if kind in _ENCRYPTED:
            self.missing["an encrypted or signed part cannot be read"] += 1
        elif kind == "message/delivery-status" and several:
            for block in part.get_payload():
                self._words("\n".join(f"{field}: {value}" for field, value in block.raw_items()))
        elif kind in ("message/rfc822", "message/partial") and several:
            self._inner(part)
        elif kind == "multipart/alternative" and several:
            self._best(part)
        elif several:
            for inner in part.iter_parts():
                self._part(inner)
            if (part.epilogue or "").strip():
                self.missing["text after the last part is left out"] += 1
        elif _is_text(part):
            self._words(self._text(part))
        elif part.get_content_maintype() == "image" and not part.is_attachment():
            self.missing["pictures are left out"] += 1
        else:
            self._attach(part)

    def _inner(self, part: Any) -> None:
        """A mail inside this one, and back to this one's chapter."""
        around = self.out.chapter
        base64 = str(part["Content-Transfer-Encoding"]).lower() == "base64"
        for inner in part.get_payload():
            if base64 and not inner.keys():
                data = b64decode(inner.get_payload())  # against the rules, and common
                inner = message_from_bytes(data, policy=_POLICY)
            self.message(inner)
        self.out.chapter = around

    def _best(self, part: Any) -> None:
        """The form with the plain text, or with the page if that is far longer; files of others."""
        plain, page = part.get_body(("plain",)), part.get_body(("html",))
        text = plain if self._length(plain) > _STUB * self._length(page) else page
        if text is None:
            first = (leaf for leaf in part.walk() if _is_text(leaf) and not leaf.is_multipart())
            text = next(first, None) if plain is None else plain
        for form in part.iter_parts():
            leaves = [leaf for leaf in form.walk() if not leaf.is_multipart()]
            if any(leaf is text for leaf in leaves):
                self._part(form)
                continue
            for leaf in leaves:
                if leaf.get_content_type() == "text/calendar":
                    self._attach(leaf)
                elif not _is_text(leaf):
                    self._part(leaf)

    def _length(self, text: Any) -> int:
        """The number of words of a text part."""
        return 0 if text is None else len(_MailWriter(self._name)._text(text).split())

    def _attach(self, part: Any) -> None:
        name = part.get_filename() or f"({part.get_content_type()})"
        self.attached.append(" ".join(name.split()))

    def _words(self, text: str) -> None:
        if text.strip():
            self.out.paragraph()
            self.out.exact(text.strip("\r\n"))

    def _text(self, part: Any) -> str:
        """A text part's words; those of a page as they are shown."""
        data = part.get_payload(decode=True) or b""
        if any("Base64" in type(defect).__name__ for defect in part.defects):
            self.missing["a part is damaged or cut off"] += 1
        charset = part.get_content_charset()
        if part.get_content_type() not in _PAGES:
            return self._decoded(data, charset)
        page = ""
        with suppress(DocumentError):
            page = decode_markup(data, self._name)[0] if data and not charset else ""
        return html_text(page or self._decoded(data, charset), self._name)

    def _decoded(self, data: bytes, charset: str | None) -> str:
        """By what it declares; where that does not fit, as a file of text would be."""
        encoding = "utf-8"
        with suppress(LookupError, ValueError):
            encoding = declared_codec(charset or "ascii")
            encoding = encoding if encoding == "ascii" else WIDER.get(encoding, encoding)
            return data.decode(encoding)
        with suppress(DocumentError):
            return decode(data, self._name)[0]
        self.missing["characters are lost whose encoding cannot be told"] += 1
        return data.decode("utf-8" if encoding == "ascii" else encoding, "replace")


def _is_text(part: Any) -> bool:
    kind = part.get_content_type()
    if part.is_attachment() or kind in _NO_WORDS:
        return False
    # A part that says it has parts and has none is text after all.
    return part.get_content_maintype() in ("text", "multipart") or kind in _PAGES
