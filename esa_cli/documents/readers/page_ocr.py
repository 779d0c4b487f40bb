"""Recognises the characters of PDF pages that are pictures, with RapidOCR (the extra `ocr`).

The models are part of the package rapidocr; nothing is downloaded."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from esa_cli.documents.readers.reading_process import SECONDS, look_up_reading_limit
from esa_cli.documents.readers.text_builder import import_package, shorten_name_list
from esa_cli.errors import DocumentError

INSTALL = "pip install 'esa-cli[ocr]'"
_DPI, _MAX_PIXELS = 200, 4000
"""The resolution of a page's picture, and the most pixels of its longer side."""
_MAX_THREADS = 4  # each thread takes some of the child process's memory
_SHARE = 0.8
"""The share of the CPU time for a document after which no other page is recognised."""
_MAX_LISTED = 12


class RecognisedPage(NamedTuple):
    """The text of a page, and the mean confidence of its lines from 0 to 1."""

    text: str
    confidence: float


class PageRecogniser:
    """Recognises the text of pages, until the CPU time for the document is short."""

    def __init__(self, document_name: str) -> None:
        self._name = document_name
        self._engine: Any = None
        self._end = time.process_time() + _SHARE * look_up_reading_limit(SECONDS)
        self.installed, self.stopped = True, False

    def recognise_page(self, page: Any) -> RecognisedPage | None:
        """Returns the text of a page; None if OCR is missing, time is short or nothing is found."""
        self.stopped = self.stopped or time.process_time() > self._end
        if self.stopped or not self.installed:
            return None
        if self._engine is None:
            try:
                import_package("onnxruntime", "onnxruntime", self._name, extra="ocr")
                rapidocr = import_package("rapidocr", "rapidocr", self._name, extra="ocr")
            except DocumentError:
                self.installed = False
                return None
            threads = min(_MAX_THREADS, os.cpu_count() or 1)
            options = {"EngineConfig.onnxruntime.intra_op_num_threads": threads}
            self._engine = rapidocr.RapidOCR(params=options)
        scale = min(_DPI / 72, _MAX_PIXELS / max(*page.get_size(), 1))
        found = self._engine(page.render(scale=scale).to_numpy())
        if not found.txts:
            return None
        confidence = sum(found.scores) / len(found.scores)
        return RecognisedPage(_join_lines(found.boxes, found.txts), confidence)


def _join_lines(boxes: Any, texts: Any) -> str:
    """Joins recognised pieces of text: those at one height to a line, and lines to paragraphs.
    Each box has the four corners (4, 2) of a piece in pixels, from the left and the top."""
    out, bottom, height = "", 0.0, 0.0
    for box, text in zip(boxes, texts, strict=True):
        top, end = float(box[:, 1].min()), float(box[:, 1].max())
        if out and top < bottom - height / 2:
            out += f" {text}"
        else:
            out += ("\n\n" if top - bottom > end - top else "\n") * bool(out) + text
        bottom, height = end, end - top
    return out


def describe_recognised_pages(pages: Mapping[int, RecognisedPage]) -> str:
    """Says which pages, by their number, were read by OCR, and how certain their text is."""
    numbers = shorten_name_list(list(map(str, pages)), _MAX_LISTED)
    worst = min(pages, key=lambda number: pages[number].confidence)
    least = f", least on page {worst}" if len(pages) > 1 else ""
    were = f"pages {numbers} were" if len(pages) > 1 else f"page {numbers} was"
    confidence = f"{pages[worst].confidence:.0%}{least}"
    return f"{were} read by OCR, and characters may be wrong (confidence {confidence})"
