"""Pages that are pictures, read by the extra `ocr`; skipped without it."""

from __future__ import annotations

import io
import sys

import pytest
import sample_files as make
from PIL import Image, ImageDraw, ImageFont
from reader_checks import at, refused

from esa_cli.documents import readers
from esa_cli.documents.readers import pdf_reader
from esa_cli.documents.readers.page_ocr import RecognisedPage, describe_recognised_pages

LINES = ["The owner gives Mette Lund the right to sell", "the house for no less than EUR 412,500."]


def scan(*pages: list[str]) -> bytes:
    """A PDF whose pages are pictures of lines."""
    font, pictures = ImageFont.load_default(size=30), []
    for lines in pages:
        picture = Image.new("L", (900, 400), 255)
        for number, line in enumerate(lines):
            ImageDraw.Draw(picture).text((80, 80 + 50 * number), line, font=font, fill=0)
        pictures.append(picture)
    out = io.BytesIO()
    pictures[0].save(out, "PDF", resolution=150, save_all=True, append_images=pictures[1:])
    return out.getvalue()


@pytest.mark.process
@pytest.mark.timeout(300)
def test_scan_is_read_by_ocr() -> None:
    pytest.importorskip("rapidocr")
    found = readers.extract_text(scan(LINES, [], ["Signed in Aarhus"]), "scan.pdf")
    first, _, last = found.text.partition("\n\n")
    assert first.split("\n") == LINES
    assert last == "Signed in Aarhus\n"
    assert at(found, "Mette")[0] == 1
    assert at(found, "Signed")[0] == 3
    assert found.missing[0].startswith("pages 1, 3 were read by OCR")
    assert found.missing[1].startswith("page 2 has no text")


@pytest.mark.timeout(300)
def test_ocr_stops_before_the_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rapidocr")
    monkeypatch.setattr("esa_cli.documents.readers.page_ocr._SHARE", 0.0)
    data = make.pdf(["text", None])
    [missing] = pdf_reader.read_pdf(data, "a.pdf").missing
    assert (
        missing == "page 2 has no text, only pictures (ESA_READ_SECONDS=3600 gives OCR more time)"
    )


def test_without_ocr_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    [missing] = pdf_reader.read_pdf(make.pdf(["text", None]), "a.pdf").missing
    assert missing == "page 2 has no text, only pictures (OCR: pip install 'esa-cli[ocr]')"
    assert "ocrmypdf scan.pdf" in refused(make.pdf([None]), "scan.pdf").hint


def test_confidence_is_the_lowest_of_the_pages() -> None:
    pages = {2: RecognisedPage("a", 0.984), 7: RecognisedPage("b", 0.812)}
    assert describe_recognised_pages(pages) == (
        "pages 2, 7 were read by OCR, and characters may be wrong (confidence 81%, least on page 7)"
    )
