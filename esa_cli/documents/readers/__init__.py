"""Readers: from the bytes of a document to its text, with marks for pages and chapters.

One file a format; `files` and `sources` find the bytes. Each library is imported when the first
document needs it.
"""

from esa_cli.documents import file_bytes as files
from esa_cli.documents.meaning import LeftOut, Meant, Source
from esa_cli.documents.readers import csv_reader as tables
from esa_cli.documents.readers import docx_reader as docx
from esa_cli.documents.readers import epub_reader as epub
from esa_cli.documents.readers import gzip_reader as packed
from esa_cli.documents.readers import html_reader as html
from esa_cli.documents.readers import ipynb, mail, odt, sheets
from esa_cli.documents.readers import pdf_reader as pdf
from esa_cli.documents.readers import text_reader as text
from esa_cli.documents.readers.reader_registry import Reader, read, readers, register
from esa_cli.documents.sources import expand, find, is_several, meant
from esa_cli.documents.text_builder import STDIN, Extracted, Mark, TextBuilder, called

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
