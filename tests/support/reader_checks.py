"""What tests of every reader ask: the error of a refused document, and where words were found."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable

import pytest
from sample_files import zipped

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText
from esa_cli.errors import DocumentError


def refused(data: bytes, name: str) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        readers.extract_text(data, name)
    return caught.value


def text_of(data: bytes | str, name: str) -> str:
    return readers.extract_text(data.encode() if isinstance(data, str) else data, name).text


def changed(data: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """The same zip with other parts; None leaves one out."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: change(name, archive.read(name)) for name in archive.namelist()}
    return zipped({name: part for name, part in parts.items() if part is not None})


def chapters(found: ExtractedText) -> list[tuple[str, str | None]]:
    """The line each mark but those of rows begins at, and its chapter."""
    marks = (mark for mark in found.marks if mark.row is None)
    return [(found.text[mark.start :].split("\n")[0], mark.chapter) for mark in marks]


def at(found: ExtractedText, words: str) -> tuple[int | None, str | None]:
    """Page and chapter where these words stand, from the marks alone."""
    start = found.text.index(words)
    page, chapter = None, None
    for mark in found.marks:
        if mark.start <= start:
            page, chapter = mark.page, mark.chapter
    return page, chapter
