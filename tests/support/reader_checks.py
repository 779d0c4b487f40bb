"""What tests of every reader ask: the error of a refused document, and where words were found."""

from __future__ import annotations

import pytest

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText
from esa_cli.errors import DocumentError


def refused(data: bytes, name: str) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        readers.read(data, name)
    return caught.value


def at(found: ExtractedText, words: str) -> tuple[int | None, str | None]:
    """Page and chapter where these words stand, from the marks alone."""
    start = found.text.index(words)
    page, chapter = None, None
    for mark in found.marks:
        if mark.start <= start:
            page, chapter = mark.page, mark.chapter
    return page, chapter
