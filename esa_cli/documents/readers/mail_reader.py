"""Mail (eml), by the standard library's email: sender, addressees, date, subject, then the text.

Of a text in several forms the plain one is read, unless it is far shorter than the HTML beside it.
A mail inside a mail is read in place, as a chapter of its own. Attached files are named, not read.
"""

from __future__ import annotations

import codecs
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import ClassVar, cast

from esa_cli.documents.encoding import decode
from esa_cli.documents.readers.html_reader import WIDER, decode_markup
from esa_cli.documents.readers.html_text import parse_html, write_html
from esa_cli.documents.readers.reader_registry import register
from esa_cli.documents.readers.text_reader import plain_text
from esa_cli.documents.text_builder import (
    ExtractedText,
    TextBuilder,
    first_names,
    label,
    path_in_hint,
)
from esa_cli.errors import DocumentError

_SHOWN = ("From", "To", "Cc", "Date", "Subject")
_TELLING = (
    *_SHOWN, "Received", "Return-Path", "Message-ID", "MIME-Version", "Content-Type", "Sender",
)  # fmt: skip
_FIELD = rb"(?:[!-9;-~]+:[^\n]*(?:\n[ \t][^\n]*)*\n)"
_BEGINS = re.compile(_FIELD + rb"{2,}", re.IGNORECASE)
_SURE = re.compile(rb"^(?:message-id|received|mime-version):", re.IGNORECASE | re.MULTILINE)
_SENDER = re.compile(rb"^from:", re.IGNORECASE | re.MULTILINE)
_HEAD = 1 << 16
_ENCRYPTED = ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime")
_NO_WORDS = ("text/rtf", "text/css", "text/javascript")
_STUB = 0.5
_MOST_NAMES = 20


@register("mail")
class MailReader:
    """One mail, with what was forwarded in it."""

    what: ClassVar[str] = "a mail"
    suffixes: ClassVar[tuple[str, ...]] = (".eml",)
    binary: ClassVar[bool] = False

    def sniff(self, head: bytes) -> bool:
        begins = _BEGINS.match(head[:_HEAD].replace(b"\r\n", b"\n"))
        return begins is not None and bool(_SURE.search(begins[0]) and _SENDER.search(begins[0]))

    def read(self, data: bytes, name: str) -> ExtractedText:
        message = message_from_bytes(data, policy=policy.default)
        if not any(field in message for field in _TELLING):
            text, encoding = plain_text(data, name)
            return ExtractedText(text, encoding=encoding)
        if _kind(message) in _ENCRYPTED:
            raise DocumentError(
                f"{label(name)} is an encrypted mail, or one that is packed with its signature",
                "open it in a mail program, save its text, and give that",
            )
        reading = _MailWriter(name)
        reading.message(message)
        return reading.out.result(reading.missing())


class _MailWriter:
    """The text of a mail's parts, and what is left out of it."""

    def __init__(self, name: str) -> None:
        self.out = TextBuilder()
        self._name = name
        self._attached: list[str] = []
        self._said: Counter[str] = Counter()

    def message(self, message: EmailMessage) -> None:
        """A mail: its fields, then its parts."""
        fields = [(field, value) for field in _SHOWN for value in _values(message, field)]
        self.out.paragraph()
        self.out.chapter(dict(fields).get("Subject"))
        for field, value in fields:
            self.out.end_line()
            self.out.exact(f"{field}: {value}")
        self._part(message)

    def missing(self) -> Iterator[str]:
        """What the mail has and the text has not."""
        if self._attached:
            yield f"attached files are not read: {first_names(self._attached, _MOST_NAMES)}"
        for words, count in self._said.items():
            yield f"{words}: {count}" if count > 1 else words

    def _part(self, part: EmailMessage) -> None:
        kind = _kind(part)
        if any("Boundary" in type(defect).__name__ for defect in part.defects):
            self._said["the end of the mail is missing, or where a part of it ends"] += 1
        if kind in _ENCRYPTED:
            self._said["an encrypted or signed part cannot be read"] += 1
        elif kind == "message/delivery-status" and part.is_multipart():
            for block in cast(list[EmailMessage], part.get_payload()):
                self._words("\n".join(f"{field}: {value}" for field, value in block.raw_items()))
        elif kind == "message/rfc822" and part.is_multipart():
            self._inner(part)
        elif kind == "multipart/alternative" and part.is_multipart():
            self._best(part)
        elif part.is_multipart():
            for inner in part.iter_parts():
                self._part(cast(EmailMessage, inner))
            if (part.epilogue or "").strip():
                self._said["text behind the last part is left out"] += 1
        elif _is_text(part):
            self._words(self._text(part))
        elif part.get_content_maintype() == "image" and not part.is_attachment():
            self._said["pictures are left out"] += 1
        else:
            self._attach(part)

    def _inner(self, part: EmailMessage) -> None:
        """A mail inside this one, and back to this one's chapter."""
        around = self.out.here
        packed = str(part["Content-Transfer-Encoding"] or "").lower() == "base64"
        for inner in cast(list[EmailMessage], part.get_payload()):
            if packed and not inner.keys():  # against the rules, and common
                words = b64decode(str(inner.get_payload()))
                inner = message_from_bytes(words, policy=policy.default)
            self.message(inner)
        self.out.chapter(around)

    def _best(self, part: EmailMessage) -> None:
        """One of several forms of the same text."""
        forms = [cast(EmailMessage, form) for form in part.iter_parts()]
        inside = [_text_inside(form) for form in forms]
        words = [self._length(text) for text in inside]
        plain = next((n for n, t in enumerate(inside) if t and _kind(t) == "text/plain"), None)
        full = max(range(len(forms)), key=words.__getitem__, default=None)
        if plain is not None and full is not None and words[plain] > _STUB * words[full]:
            full = plain
        for number, form in enumerate(forms):
            if number == full:
                self._part(form)
                continue
            for leaf in form.walk():  # what the form has beside its text
                if not leaf.is_multipart() and not _is_words(leaf):
                    self._part(leaf) if not _is_text(leaf) else self._attach(leaf)

    def _length(self, text: EmailMessage | None) -> int:
        said = self._said.copy()
        try:
            return len(self._text(text).split()) if text else 0
        except DocumentError:
            return 0
        finally:
            self._said = said

    def _attach(self, part: EmailMessage) -> None:
        self._attached.append(_file_name(part))

    def _words(self, text: str) -> None:
        if text.strip():
            self.out.paragraph()
            self.out.exact(text.strip("\r\n"))

    def _text(self, part: EmailMessage) -> str:
        """A text part's words; those of a page as they are shown."""
        data = cast(bytes, part.get_payload(decode=True) or b"")
        if any("Base64" in type(defect).__name__ for defect in part.defects):
            self._said["a part is damaged or cut off"] += 1
        charset = part.get_content_charset()
        if _kind(part) not in ("text/html", "application/xhtml+xml"):
            return self._decoded(data, charset)
        try:
            page = decode_markup(data, self._name)[0] if data and not charset else ""
        except DocumentError:
            page = ""
        root = parse_html(page or self._decoded(data, charset), self._name)
        out = TextBuilder()
        if root is not None:
            write_html(root, out, self._name, {})
        return out.result().text

    def _decoded(self, data: bytes, charset: str | None) -> str:
        """By what it declares; where that does not fit, as a file of text would be."""
        encoding = "utf-8"
        with suppress(LookupError, ValueError):
            encoding = codecs.lookup(charset or "ascii").name
            encoding = encoding if encoding == "ascii" else WIDER.get(encoding, encoding)
            return data.decode(encoding)
        with suppress(DocumentError):
            return decode(data, label(self._name), path_in_hint(self._name))[0]
        self._said["characters are lost whose encoding cannot be told"] += 1
        with suppress(LookupError):  # what packs bytes, as zlib, is no encoding of letters
            return data.decode("utf-8" if encoding == "ascii" else encoding, "replace")
        return data.decode("utf-8", "replace")


def _is_text(part: EmailMessage) -> bool:
    kind = _kind(part)
    if part.is_attachment() or kind in _NO_WORDS:
        return False
    # A part that says it has parts and has none is text after all.
    return part.get_content_maintype() in ("text", "multipart") or kind == "application/xhtml+xml"


def _is_words(part: EmailMessage) -> bool:
    """Whether it is the text itself, not a date for a calendar that goes with it."""
    return _is_text(part) and _kind(part) != "text/calendar" and not part.is_multipart()


def _text_inside(form: EmailMessage) -> EmailMessage | None:
    """The text of one form, which may have its pictures beside it."""
    return next(filter(_is_words, form.walk()), None)


def _kind(part: EmailMessage) -> str:
    return part.get_content_type()


def _file_name(part: EmailMessage) -> str:
    name = None
    with suppress(Exception):  # of a field that breaks the rules
        name = part.get_filename()
    return " ".join(str(name or f"({_kind(part)})").split())


def _values(message: EmailMessage, field: str) -> Iterator[str]:
    """The values of a field, whole and in letters."""
    for key, value in message.raw_items():
        if key.lower() != field.lower():
            continue
        text = "".join(re.split(r"[\r\n]+", str(value)))
        letters = text.encode("ascii", "surrogateescape")  # some send them as they are
        try:
            text = letters.decode("utf-8")
        except UnicodeDecodeError:
            text = letters.decode("cp1252", "replace")
        with suppress(Exception):  # of an address that breaks the rules
            text = str(policy.default.header_factory(field, text))
        if text.strip():
            yield " ".join(text.split())
