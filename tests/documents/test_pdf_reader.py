"""PDF: text, pages, bookmarks, forms, what is missing, and what each refusal says."""

from __future__ import annotations

import pytest
import sample_files as make
from reader_checks import at, refused

from esa_cli.documents import readers
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
    assert [one.partition(" (")[0] for one in found.missing] == [
        "pages 2, 4, 5 have no text, only pictures",
    ]  # fmt: skip
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
