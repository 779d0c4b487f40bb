"""Readers: from the bytes of a document to its text, with marks for pages and chapters.

One file a format. Importing this package registers all of them; each library is imported when the
first document needs it.
"""

from esa_cli.documents.readers import (  # noqa: F401
    csv_reader,
    docx_reader,
    epub_reader,
    html_reader,
    mail_reader,
    notebook_reader,
    opendocument_reader,
    pdf_reader,
    presentation_reader,
    spreadsheet_reader,
    text_reader,
)
from esa_cli.documents.readers.reader_registry import Reader, choose, register
from esa_cli.documents.readers.reading_process import read
from esa_cli.documents.readers.text_builder import STDIN, ExtractedText, Mark, TextBuilder, label

__all__ = [
    "STDIN", "ExtractedText", "Mark", "Reader", "TextBuilder", "choose", "label", "read",
    "register",
]  # fmt: skip
