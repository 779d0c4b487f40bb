"""Converts the bytes of a document of any format to text with marks for pages and chapters."""

from __future__ import annotations

from esa_cli.documents.readers import reader_registry
from esa_cli.documents.readers.reader_registry import register
from esa_cli.documents.readers.text_builder import ExtractedText, Mark, TextBuilder, label_document
from esa_cli.errors import DocumentError

__all__ = ["ExtractedText", "Mark", "TextBuilder", "extract_text", "register"]


def extract_text(data: bytes, name: str) -> ExtractedText:
    """Returns the text of the document `name`, a path or "standard input". Raises DocumentError: it
    cannot be read, has no text, or exceeds a limit. PluginError: a plugin breaks the rules."""
    if not data:
        raise DocumentError(f"{label_document(name)} is empty (0 bytes)", "name a file with text")
    reader = reader_registry.choose_reader(data, name)
    if isinstance(reader, reader_registry.BuiltInReader) and reader.in_child:
        from esa_cli.documents.readers.reading_process import read_in_child_process

        extracted = read_in_child_process(reader, data, name)
    else:
        try:
            extracted = reader_registry.read_with_reader(reader, data, name)
        except MemoryError as error:
            problem = f"{label_document(name)} is too large for this machine's memory"
            raise DocumentError(problem, "split the document and ask about its parts") from error
    if not extracted.text or extracted.text.isspace():
        message = f"{label_document(name)} is {reader.what} without text, or with white space alone"
        hint = "save the document as a PDF and add text by OCR: ocrmypdf in.pdf text.pdf"
        raise DocumentError(message, hint)
    return extracted
