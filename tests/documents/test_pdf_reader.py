"""PDF: text, pages, bookmarks, forms, what is missing, and what each refusal says."""

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
from esa_cli.documents.readers.pdf_reader import remove_running_heads, tidy_page_texts


def test_pdf_pages_and_bookmarks() -> None:
    data = make.pdf(
        ["Cover", "Intro here\nOne small step", "", "more\nTwo  ways\nend", "Last"],
        [("Intro", 1), ("One small", 1), ("Two ways", 3), ("Empty", 2)],
    )
    found = readers.extract_text(data, "a.pdf")
    assert found.text == "Cover\n\nIntro here\nOne small step\n\nmore\nTwo ways\nend\n\nLast\n"
    assert at(found, "Cover") == (1, None)
    assert at(found, "Intro here") == (2, "Intro")
    assert at(found, "One small") == (2, "One small")
    assert at(found, "more") == (4, "Empty"), "its page has no text, so it begins on the next"
    assert at(found, "Two") == (4, "Two ways")
    assert at(found, "Last") == (5, "Two ways")
    assert found.missing == (), "an empty page has nothing that could be missing"


def test_pdf_scanned_in_part() -> None:
    found = readers.extract_text(make.pdf(["a", None, "b", None, None]), "a.pdf")
    (missing,) = found.missing
    assert missing.startswith("pages 2, 4, 5 have no text, only pictures (")
    assert [mark.page for mark in found.marks] == [1, 3]


def test_pdf_refusals() -> None:
    scanned = refused(make.pdf([None, None]), "scan.pdf")
    assert "has no text: its pages (2) are pictures" in scanned.message
    assert "ocrmypdf scan.pdf" in scanned.hint
    locked = refused(make.pdf(["secret"], locked=True), "lock.pdf")
    assert "password" in locked.message
    assert "qpdf --decrypt" in locked.hint
    assert "damaged or cut off" in refused(make.pdf(["x"])[:200], "cut.pdf").message
    assert "damaged" in refused(b"%PDF-1.7\n", "cut.pdf").message


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        (["some trans\ufffelation here"], "some translation here"),
        (["a non\ufffeword; non-word"], "a non-word; non-word"),
        (["transfer of trans\ufffefer, ECMA\ufffe262"], "transfer of transfer, ECMA-262"),
        (["run\ufffetime, run-time, runtime, run-time"], "run-time, run-time, runtime, run-time"),
        (["Intro .............. 7\r\nA. . . . . . . 9"], "Intro ... 7\nA ... 9"),
        (["  \uf0b7 one \r\ntwo...  "], "• one\ntwo..."),
    ],
)
def test_pdf_text_is_tidied(pages: list[str], expected: str) -> None:
    assert tidy_page_texts(pages) == [expected]


def test_pdf_fields_that_are_filled_in() -> None:
    field = "/Subtype /Widget /F 4 /FT"
    found = readers.extract_text(
        make.form(
            f"{field} /Tx /T (a.tenant[0]) /V (Jo Quist)",
            f"{field} /Tx /T (x7) /TU (Rent in euros) /V (950)",
            f"{field} /Tx /T (empty)",
            f"{field} /Tx /T (hidden) /V (no) /F 2",
            "/Subtype /Text /F 4 /Contents (why so much?)",
        ),
        "a.pdf",
    )
    assert found.text.split() == ["Tenant:", "Jo", "Quist", "950"]
    assert found.missing == ()


def test_running_heads_are_left_out_but_for_the_first_and_feet_but_for_the_last() -> None:
    """A head that names the page's number; one that is alike on many pages; and no other line."""
    facts = [f"Invoice {n + 701}\nlamp {n}\nSum due {n * n + 90}" for n in range(12)]
    pages = [f"Rules of Ennick\n{fact}\npage {n + 1} of 16" for n, fact in enumerate(facts)]
    tidy = remove_running_heads(pages)
    assert tidy[0] == f"Rules of Ennick\n{facts[0]}"
    assert tidy[1:-1] == facts[1:-1]
    assert tidy[-1] == f"{facts[-1]}\npage 12 of 16"
    assert remove_running_heads(facts) == facts
    assert remove_running_heads([f"{n + 1}\n{fact}" for n, fact in enumerate(facts)]) == facts
    assert remove_running_heads(["5"] * 12) == ["5"] * 12


def test_heads_of_several_lines_and_heads_that_a_browser_writes_next_to_the_foot() -> None:
    facts = [f"Net {net}\nlies on\nboat {n * n + 70}" for n, net in enumerate("abcdefghi")]
    beside = [f"{fact}\nRules of Ennick\n{n}" for n, fact in enumerate(facts, 1)]
    assert remove_running_heads(beside) == [*facts[:-1], f"{facts[-1]}\nRules of Ennick"]
    above = [f"{n} of 9\nEnnick\nRules of the port\n{fact}" for n, fact in enumerate(facts, 1)]
    assert remove_running_heads(above) == [above[0], *facts[1:]]


@pytest.mark.parametrize("head", ["Chapter 2 Geese", "{} CHAPTER 2. GEESE", "2.1. GEESE {}"])
def test_heads_that_name_a_chapter_are_left_out_but_for_the_first(head: str) -> None:
    facts = [f"Net {net}\nlies on\nboat {n * n + 70}" for n, net in enumerate("abcdefghi")]
    pages = [*facts[:3], *(f"{head.format(n)}\n{facts[n]}" for n in range(3, 6)), *facts[6:]]
    assert remove_running_heads(pages) == [*facts[:3], pages[3], *facts[4:]]
    rows = [
        f"Chapter 2 {net.upper()}\n{fact}" for net, fact in zip("abcdefghi", facts, strict=True)
    ]
    assert remove_running_heads(rows) == rows


@pytest.mark.parametrize("count", [2, 3])
def test_short_pdfs_lose_lines_that_are_surely_page_numbers_alone(count: int) -> None:
    facts = [f"Lamp {n}\nstands in\nhall {n * n + 5}" for n in range(count)]
    for foot in ("Lease, 52 Mill Road page {}", "Lease 7 | {} / {count}", "- {} -"):
        feet = [foot.format(n + 1, count=count) for n in range(count)]
        pages = [f"{fact}\n{foot}" for fact, foot in zip(facts, feet, strict=True)]
        assert remove_running_heads(pages) == [*facts[:-1], pages[-1]]
    assert remove_running_heads([f"{n + 1}\n{fact}" for n, fact in enumerate(facts)]) == facts
    for line in ("Signed: Jo Quist", "Day {}", "Paid in {}", "See page 4", "12{}", "Flat 2"):
        pages = [f"{fact}\n{line.format(n + 1)}" for n, fact in enumerate(facts)]
        assert remove_running_heads(pages) == pages, line


def test_a_sentence_runs_on_across_pdf_pages() -> None:
    pages = ["Rules\nOne part is\npage 1", "divided by\nfour.\npage 2", "Bikes\nare kept\npage 3"]
    text = readers.extract_text(make.pdf(pages), "a.pdf").text
    assert text == "Rules\nOne part is\ndivided by\nfour.\n\nBikes\nare kept\npage 3\n"


ROWS = [
    ("Vessel", "Departure", "Master"),
    ("Gannet", "06:40", "A. Holm"),
    ("Fulmar", "08:15", ""),
    ("Petrel", "09:50", "C. Juul"),
]


def read(data: bytes) -> str:
    return readers.extract_text(data, "a.pdf").text


def test_pdf_rows_have_the_names_of_their_columns() -> None:
    assert read(make.pdf_table(ROWS, "Boats")) == (
        "Boats\n\nVessel: Gannet; Departure: 06:40; Master: A. Holm\n"
        "Vessel: Fulmar; Departure: 08:15\nVessel: Petrel; Departure: 09:50; Master: C. Juul\n\n"
        "Tickets are sold on board.\n"
    )


def test_pdf_tables_in_doubt_keep_their_text() -> None:
    """No lines; no numbers below a name; a page of many lines, as drawings have."""
    plain = "Boats\nVessel Departure Master\nGannet 06:40 A. Holm\n"
    assert read(make.pdf_table(ROWS, "Boats", ruled=False)).startswith(plain)
    words = [("Vessel", "Berth", "Master"), ("Gannet", "North", "Holm"), ("Fulmar", "East", "Rask")]
    assert "Vessel Berth Master\nGannet North Holm\n" in read(make.pdf_table(words, "Boats"))
    lines = "\n".join(f"{x} 10 m {x} 30 l S" for x in range(700))
    crowded = read(make.pdf_table(ROWS, "Boats", more=lines))
    assert crowded.startswith(plain)


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
