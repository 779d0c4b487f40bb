"""Reads mails (eml files) with Python's `email` library: the header fields, then the text.

If a mail has its text in plain and HTML form, the plain form is read, unless it is far shorter. A
mail inside a mail is a chapter of its own, and so is an attached file of a format that esa reads.
Other attached files are named."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from contextlib import suppress
from email import message_from_bytes, policy
from email.headerregistry import HeaderRegistry
from email.message import EmailMessage
from pathlib import PurePath
from typing import Any

from esa_cli.documents.readers import plain_text, reader_registry, text_builder
from esa_cli.documents.readers.html_reader import decode_markup, parse_html, write_html_text
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, label_document
from esa_cli.errors import DocumentError

_SHOWN_FIELDS = ("From", "To", "Cc", "Date", "Subject")
_MAIL_FIELDS = (
    *_SHOWN_FIELDS, "Received", "Return-Path", "Message-ID", "MIME-Version", "Content-Type",
    "Sender",
)  # fmt: skip
_ENCRYPTED = ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime")
_NO_WORDS = ("text/rtf", "text/css", "text/javascript")
_PAGES = ("text/html", "application/xhtml+xml")
_STUB = 0.5
"""Share of the words of a page that a plain text needs to be read in its place."""
_MAX_NAMES = 20
_MAX_FILES, _MAX_BYTES, _MAX_DEPTH = 100, 64 << 20, 3
"""Attached files that are read, the bytes of each, and how deep mails are attached to each other.
The limits of reading_process.py hold for all of them together."""
_MAX_FIELD = 1 << 14
"""Characters of a header field; parsing takes time and memory quadratic in them."""
_REGISTRY = HeaderRegistry()


def _decode_header_field(field_name: str, field_value: str) -> Any:
    """Decodes a header field; a field that is too long or breaks the rules is not decoded."""
    data = field_value.encode("utf-8", "surrogateescape")  # some programs do not encode the bytes
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    content = field_name.lower().startswith("content-")
    with suppress(Exception):  # the parser raises errors of many types
        if content or len(text) <= _MAX_FIELD:
            return _REGISTRY(field_name, text[: _MAX_FIELD // 4] if content else text)
    return _REGISTRY(field_name, "") if content else text


_POLICY = policy.default.clone(header_factory=_decode_header_field)


def read_mail(data: bytes, name: str) -> ExtractedText:
    """Reads a mail; a file without a mail's header fields is read as plain text."""
    message = message_from_bytes(data, policy=_POLICY)
    if not any(field in message for field in _MAIL_FIELDS):
        return plain_text.read_plain_text(data, name)
    if message.get_content_type() in _ENCRYPTED:
        problem = f"{label_document(name)} is a mail that is encrypted, or wrapped in a signature"
        hint = "open the mail in a mail program, and name a file with its text"
        raise DocumentError(problem, hint)
    writer = _MailReader(name)
    writer.write_mail_message(message)
    attached = text_builder.shorten_name_list(writer.attached, _MAX_NAMES)
    missing = [f"attached files are not read: {attached}"] if attached else []
    counts = writer.missing.items()
    missing += [*writer.notes, *(f"{what}: {n}" if n > 1 else what for what, n in counts)]
    return writer.out.result(missing)


class _MailReader:
    """Extracts a mail's text, the names of attached files, and notes on `missing` contents."""

    def __init__(self, name: str) -> None:
        self.out = TextBuilder()
        self.attached: list[str] = []
        self.missing: Counter[str] = Counter()
        self.notes: list[str] = []
        self._files = self._depth = 0
        self._name = name

    def write_mail_message(self, message: EmailMessage) -> None:
        self.out.start_paragraph()
        around = self.out.chapter
        self.out.chapter = " ".join(str(message.get("Subject", "")).split()) or None
        for field in _SHOWN_FIELDS:
            for value in message.get_all(field, []):
                if words := " ".join(str(value).split()):
                    self.out.end_line()
                    self.out.add_exact_text(f"{field}: {words}")
        self._write_mail_part(message)
        self.out.chapter = around

    def _write_mail_part(self, part: Any) -> None:
        kind = part.get_content_type()
        if kind == "message/partial":
            self.missing["the mail is one of several parts of a longer mail"] += 1
        if kind in _ENCRYPTED:
            self.missing["an encrypted or signed part cannot be read"] += 1
        elif kind.startswith("message/") and part.is_multipart():
            for inner in part.get_payload():
                if not inner.keys() and str(part["Content-Transfer-Encoding"]).lower() == "base64":
                    data = b64decode(inner.get_payload())  # common, although forbidden
                    inner = message_from_bytes(data, policy=_POLICY)
                self.write_mail_message(inner)
        elif kind == "multipart/alternative" and part.is_multipart():
            self._write_plain_or_html_form(part)
        elif part.is_multipart():
            for inner in part.iter_parts():
                self._write_mail_part(inner)
        elif _is_text_part(part):
            text = self._extract_part_text(part)
            if text.strip():
                self.out.start_paragraph()
                self.out.add_exact_text(text.strip("\r\n"))
        else:
            self._write_attachment(part)
        if part.defects:  # also those found while the content was decoded
            self.missing["a part is damaged or cut off"] += 1

    def _write_plain_or_html_form(self, part: Any) -> None:
        """Writes the plain form of a mail's text, or the HTML form if it is far longer."""
        plain, page = part.get_body(("plain",)), part.get_body(("html",))
        texts = [leaf for leaf in part.walk() if _is_text_part(leaf) and not leaf.is_multipart()]
        best = plain or page or next(iter(texts), None)
        if plain and page:
            drafts = (_MailReader(self._name)._extract_part_text(form) for form in (plain, page))
            plain_words, page_words = (len(draft.split()) for draft in drafts)
            best = plain if plain_words > _STUB * page_words else page
        for form in part.iter_parts():
            leaves = [leaf for leaf in form.walk() if not leaf.is_multipart()]
            if any(leaf is best for leaf in leaves):
                self._write_mail_part(form)
            else:
                for leaf in leaves:
                    if not _is_text_part(leaf) or leaf.get_content_type() == "text/calendar":
                        self._write_attachment(leaf)

    def _write_attachment(self, part: Any) -> None:
        """Counts a picture that belongs to the text; writes the text of any other attached file, or
        lists the file by name if its format is unknown or a limit is exceeded."""
        if part.get_content_maintype() == "image" and not part.is_attachment():
            self.missing["pictures are left out"] += 1
            return
        name = " ".join((part.get_filename() or f"({part.get_content_type()})").split())
        data = b"" if part.is_multipart() else part.get_payload(decode=True) or b""
        self._files += 1
        reader = reader_registry.choose_reader(data, name)
        is_mail = reader is reader_registry.BUILT_IN["mail"]
        limited = self._files > _MAX_FILES or len(data) > _MAX_BYTES
        limited = limited or (is_mail and self._depth == _MAX_DEPTH)
        if limited or not data or not _is_format_known(part, reader, data, name):
            self.attached.append(name)
            return
        try:
            if is_mail:
                self._depth += 1
                self.write_mail_message(message_from_bytes(data, policy=_POLICY))
                self._depth -= 1
                return
            extracted = reader_registry.read_with_reader(reader, data, name)
        except DocumentError as error:
            self.notes.append(f"an attached file is not read: {error.message}")
        else:
            self.out.append_document(extracted, name)
            self.notes += [f"{name}: {note}" for note in extracted.missing]

    def _extract_part_text(self, part: Any) -> str:
        """Returns the text of a mail part; an HTML page is converted to the text that it shows."""
        data = part.get_payload(decode=True) or b""
        charset = part.get_content_charset()
        if part.get_content_type() not in _PAGES:
            return self._decode_text_of_part(data, charset)
        page = ""
        with suppress(DocumentError):
            page = decode_markup(data, self._name)[0] if data and not charset else ""
        page, shown = page or self._decode_text_of_part(data, charset), TextBuilder()
        write_html_text(parse_html(page, self._name), shown, chapters={})
        return shown.result().text

    def _decode_text_of_part(self, data: bytes, charset: str | None) -> str:
        """Decodes the text of a mail part by its declared encoding, or else by a guessed one."""
        encoding = "utf-8"
        with suppress(LookupError, ValueError):
            encoding = plain_text.look_up_encoding(charset or "ascii")
            return data.decode(encoding)
        with suppress(DocumentError):
            return plain_text.decode_text(data, self._name)[0]
        self.missing["characters are lost whose encoding cannot be told"] += 1
        return data.decode("utf-8" if encoding == "ascii" else encoding, "replace")


def _is_format_known(part: Any, reader: reader_registry.Reader, data: bytes, name: str) -> bool:
    """Whether the format of an attached file is known, and not only taken for plain text."""
    named = PurePath(name.lower()).suffix in reader.suffixes
    text = part.get_content_maintype() == "text" and part.get_content_type() not in _NO_WORDS
    return reader.binary or ((named or text) and not plain_text.describe_binary(data))


def _is_text_part(part: Any) -> bool:
    kind = part.get_content_type()
    if part.is_attachment() or kind in _NO_WORDS:
        return False
    # A part that is declared as multipart but has no parts is text.
    return part.get_content_maintype() in ("text", "multipart") or kind in _PAGES
