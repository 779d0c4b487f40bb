"""Chooses the reader of a document among the built-in readers and those of plugins.

A reader of a binary format is chosen if the content leaves no doubt about the format. For other
files the name decides, then the content; if neither does, the file is read as plain text."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import PurePath
from typing import ClassVar, Protocol, TypeVar

from esa_cli.documents.readers.text_builder import ExtractedText, make_damage_error
from esa_cli.errors import NOT_BLAMED, EsaError, PluginError
from esa_cli.system.registry import PluginRegistry

T = TypeVar("T", bound=type)
READERS: PluginRegistry[type] = PluginRegistry("reader")
"""The readers of plugins; the reader that was registered last is asked first."""


class PluginReader(Protocol):
    """A plugin's reader of one document format; `what` is the name of the format in messages.
    `suffixes` are file endings in small letters with the dot, or whole file names. If `binary` is
    true, `sniff` alone chooses the reader by the content, and the file's name does not count."""

    what: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    binary: ClassVar[bool]

    def sniff(self, head: bytes) -> bool:
        """Returns True if a file that begins with `head` certainly has this reader's format."""
        return False

    def read(self, data: bytes, name: str) -> ExtractedText:
        """Returns the text of the document `name`, which has at least one byte. Raises
        DocumentError; any other exception is reported as damage."""
        ...


@dataclass(frozen=True)
class BuiltInReader:
    """A document format, and the function of this package that reads documents of this format."""

    format: str
    what: str
    suffixes: tuple[str, ...]
    module: str
    function: str
    binary: bool = False
    in_child: bool = True

    def read(self, data: bytes, name: str) -> ExtractedText:
        module = import_module(f"esa_cli.documents.readers.{self.module}")
        extracted: ExtractedText = getattr(module, self.function)(data, name)
        return extracted


Reader = PluginReader | BuiltInReader
_SOURCE_CODE = (
    ".txt", ".text", ".log", ".py", ".js", ".ts", ".jsx", ".tsx", ".vue", ".php", ".jinja",
    ".css", ".xml", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini", ".c", ".h", ".cpp",
    ".hpp", ".rs", ".go", ".java", ".kt", ".rb", ".sh", ".sql", ".rst", ".svelte",
)  # fmt: skip
_TEXT = BuiltInReader("text", "text", _SOURCE_CODE, "plain_text", "read_plain_text", in_child=False)
BUILT_IN = {
    reader.format: reader
    for reader in (
        _TEXT,
        BuiltInReader("markdown", "Markdown", (".md", ".markdown", ".mdown", ".mkd"),
                      "markdown_reader", "read_markdown", in_child=False),
        BuiltInReader("latex", "LaTeX", (".tex", ".ltx"), "plain_text", "read_latex", False, False),
        BuiltInReader("html", "HTML", (".html", ".htm", ".xhtml"), "html_reader", "read_html"),
        BuiltInReader("pdf", "a PDF", (".pdf",), "pdf_reader", "read_pdf", True),
        BuiltInReader("docx", "a Word document", (".docx", ".docm", ".dotx"),
                      "docx_reader", "read_docx", True),
        BuiltInReader("sheets", "an Excel workbook", (".xlsx", ".xlsm", ".xltx", ".xltm"),
                      "spreadsheet_reader", "read_workbook", True),
        BuiltInReader("presentation", "a PowerPoint presentation", (".pptx", ".pptm"),
                      "presentation_reader", "read_presentation", True),
        BuiltInReader("odt", "an OpenDocument text", (".odt", ".ott"),
                      "opendocument_reader", "read_odt", True),
        BuiltInReader("ods", "an OpenDocument spreadsheet", (".ods", ".ots"),
                      "opendocument_reader", "read_ods", True),
        BuiltInReader("epub", "an EPUB book", (".epub",), "epub_reader", "read_epub", True),
        BuiltInReader("mail", "a mail", (".eml",), "mail_reader", "read_mail"),
        BuiltInReader("calendar", "a calendar", (".ics", ".vcf"),
                      "calendar_reader", "read_calendar", in_child=False),
        BuiltInReader("ipynb", "a Jupyter notebook", (".ipynb",),
                      "notebook_reader", "read_notebook"),
        BuiltInReader("csv", "CSV", (".csv", ".tsv", ".tab"), "spreadsheet_reader", "read_csv"),
    )
}  # fmt: skip
TABLES = (BUILT_IN["csv"], BUILT_IN["sheets"], BUILT_IN["ods"])
"""The formats whose lines are rows."""

_MAIN_PARTS = {
    "xl/workbook.xml": "sheets", "ppt/presentation.xml": "presentation",
    "META-INF/container.xml": "epub", "word/document.xml": "docx",
}  # fmt: skip
_MIME_TYPES = {
    b"vnd.oasis.opendocument.text": "odt", b"vnd.oasis.opendocument.spreadsheet": "ods",
    b"epub+zip": "epub",
}  # fmt: skip
_MAX_PARTS = 1 << 16
"""Parts of a zip that are listed to recognise its format; more take minutes and gigabytes."""
_HTML = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html[\s>])", re.IGNORECASE)
_FIELDS = re.compile(rb"(?:[!-9;-~]+:[^\n]*(?:\n[ \t][^\n]*)*\n){2,}")
_MAIL_FIELD = re.compile(rb"^(?:message-id|received|mime-version):", re.IGNORECASE | re.MULTILINE)
_SENDER = re.compile(rb"^from:", re.IGNORECASE | re.MULTILINE)
_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
_NOTEBOOK = re.compile(rb'"nbformat"\s*:\s*\d')


def _recognise_zip_format(head: bytes) -> str:
    """Returns the format of a zip by its main file; without the directory, by names in `head`."""
    import io
    import zipfile

    for kind, zip_format in _MIME_TYPES.items():
        if head[30:].startswith(b"mimetypeapplication/" + kind):
            return zip_format
    found = [part for part in _MAIN_PARTS if part.encode() in head]
    if found and head.count(b"PK\1\2") <= _MAX_PARTS:
        with suppress(Exception):  # a damaged index, which the reader will report
            names = zipfile.ZipFile(io.BytesIO(head)).namelist()
            found = [part for part in found if part in names]
    return _MAIN_PARTS[found[0]] if found else ""


def _recognise_document_format(head: bytes) -> str:
    """Returns the format of a file that begins with `head`, or "" if the content leaves doubt."""
    if head.startswith(b"PK\3\4") and (zipped := _recognise_zip_format(head)):
        return zipped
    if head.startswith(b"%PDF-") or (b"%PDF-" in head[:1024] and b"\0" in head):
        return "pdf"
    if _OBJECT.match(head) and _NOTEBOOK.search(head):
        return "ipynb"
    fields = _FIELDS.match(head[: 1 << 16].replace(b"\r\n", b"\n"))
    if fields and _MAIL_FIELD.search(fields[0]) and _SENDER.search(fields[0]):
        return "mail"
    return "html" if _HTML.match(head) else ""


def register(name: str) -> Callable[[T], T]:
    """Returns a class decorator that registers a plugin's reader. Raises PluginError: the class
    lacks a member of `PluginReader`, or another reader has the name."""

    def register_reader_class(cls: T) -> T:
        members = ("what", "suffixes", "binary", "sniff", "read")
        missing = [member for member in members if not hasattr(cls, member)]
        if missing:
            problem = f"reader {name!r} has no {' and no '.join(missing)}"
            raise PluginError(problem, "see docs/readers.md")
        if name in BUILT_IN:
            raise PluginError(f"the reader {name!r} is built in", "choose another name")
        READERS.add(name, cls, cls)
        return cls

    return register_reader_class


@cache
def _load_readers_of_installed_packages() -> None:
    for point in entry_points(group="esa.readers"):
        try:
            point.load()
        except NOT_BLAMED:
            raise
        except BaseException as error:
            message = f"reader {point.name!r} ({point.value}) does not load: {error}"
            raise PluginError(message, "update or uninstall the package of this reader") from error


def choose_reader(head: bytes, name: str) -> Reader:
    """Returns the reader for the document `name` that begins with `head`. Raises PluginError."""
    _load_readers_of_installed_packages()
    path = PurePath(name.lower())
    plugins: list[PluginReader] = [READERS[key]() for key in reversed(list(READERS))]
    claims: list[Reader] = [one for one in plugins if one.sniff(head)]
    if recognised := BUILT_IN.get(_recognise_document_format(head)):
        claims.append(recognised)
    binary = [reader for reader in claims if reader.binary]
    known: list[Reader] = [*plugins, *BUILT_IN.values()]
    named = [r for r in known if path.suffix in r.suffixes or path.name in r.suffixes]
    return [*binary, *named, *claims, _TEXT][0]


def read_with_reader(reader: Reader, data: bytes, name: str) -> ExtractedText:
    """Returns the text of the document `name`, extracted in this process. Raises DocumentError,
    MemoryError; PluginError: the reader breaks the rules."""
    try:
        extracted = reader.read(data, name)
    except (EsaError, MemoryError, *NOT_BLAMED):
        raise
    except BaseException as error:  # a library's at unforeseen bytes, or a plugin's
        raise make_damage_error(name, reader.what, f"{type(error).__name__}: {error}") from error
    ends = (-1, *(mark.start for mark in extracted.marks), len(extracted.text) + 1)
    if any(a >= b for a, b in pairwise(ends)) or "\r" in extracted.text:
        raise PluginError(
            f"the reader for {reader.what} returns unordered marks, marks outside the text, or \\r",
            "return marks that ascend from 0 to the text's length, and end lines with \\n",
        )
    return extracted
