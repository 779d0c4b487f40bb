"""Readers: from the bytes of a document to its text, with marks for pages and chapters.

One file a format; `files` and `sources` find the bytes. Each library is imported when the first
document needs it.
"""

from esa_cli.readers import (
    docx,
    epub,
    files,
    html,
    ipynb,
    mail,
    odt,
    packed,
    pdf,
    sheets,
    tables,
    text,
)
from esa_cli.readers.extracted import STDIN, Extracted, Mark, TextBuilder, called
from esa_cli.readers.meaning import LeftOut, Meant, Source
from esa_cli.readers.registered import Reader, read, readers, register
from esa_cli.readers.sources import expand, find, is_several, meant

__all__ = [
    "STDIN",
    "Extracted",
    "LeftOut",
    "Mark",
    "Meant",
    "Reader",
    "Source",
    "TextBuilder",
    "called",
    "docx",
    "epub",
    "expand",
    "files",
    "find",
    "html",
    "ipynb",
    "is_several",
    "mail",
    "meant",
    "odt",
    "packed",
    "pdf",
    "read",
    "readers",
    "register",
    "sheets",
    "tables",
    "text",
]
