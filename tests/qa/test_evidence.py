"""Weights of passages, shades, and the page of an answer, which could do no harm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from selectolax.lexbor import LexborHTMLParser

from esa_cli.documents.document import Document
from esa_cli.qa.answering.reply import Quotation, Reply
from esa_cli.qa.evidence import compute_passage_weights, make_evidence_page, make_heat_maps
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import Book, add_token_ranges

NASTY = "<script>alert(1)</script> & \"quotes\" 'too' <img src=x onerror=y>"
TEXT = "The gate opens at nine.\n\n  Nobody came.\tA bell rang.\n"


def shelf(text: str, first: int = 0, name: str = "a.txt", width: int = 1) -> Book:
    """A book whose tokens have `width` characters."""
    starts = range(0, len(text), width)
    spans = torch.tensor([(at, min(at + width, len(text))) for at in starts]).reshape(-1, 2)
    document, rows = Document(name, text, name, "utf-8", 1), range(first, first + len(spans))
    return Book(document, None, spans, rows=rows)


def quote(book: Book, words: str, weight: float = 0.5, **place: Any) -> Passage:
    start = book.document.text.index(words)
    passage = Passage.cut_from(book.document, start, start + len(words), weight=weight)
    return replace(passage, line=3, **place)


def page_of(
    books: Sequence[Book], *evidence: Passage, quotation: Quotation | None = None
) -> LexborHTMLParser:
    reply = Reply(NASTY, evidence, True, 9, 3, 0.5, 1.0, quotation=quotation)
    return LexborHTMLParser(make_evidence_page(reply, NASTY, books))


def test_weights_are_shared_by_the_tokens_of_a_passage() -> None:
    """Against a loop over tokens; passages may share some of them."""
    books = [shelf(TEXT, width=3), shelf(TEXT * 2, 18, "b.txt", width=3)]
    places = [(0, 2, 9, 1.5), (1, 7, 40, 0.5), (1, 30, 31, -1.0), (1, 3, 3, 2.0)]
    passages = [
        Passage.cut_from(books[book].document, start, end, score=score)
        for book, start, end, score in places
    ]
    weighed, weights = compute_passage_weights(passages, books)
    total = sum(math.exp(score) for *_, score in places)
    want = [0.0] * books[1].rows.stop
    for one, (book, start, end, score) in zip(weighed, places, strict=True):
        assert one.weight == pytest.approx(math.exp(score) / total)
        tokens = [
            at for at, (a, b) in zip(books[book].rows, books[book].spans.tolist(), strict=True)
            if a < end and start < b
        ]  # fmt: skip
        for at in tokens:
            want[at] += one.weight / len(tokens)
    assert weights.tolist() == pytest.approx(want, abs=1e-6)


def test_shades_are_of_the_heaviest_token_of_all() -> None:
    books = [shelf("abcd"), shelf("efgh", name="b.txt"), shelf("", name="c.txt")]
    weights = torch.tensor([0.0, 0.25, 0.25, 0.001, 1.0, 0.0, 0.0, 1 / 64])
    found = make_heat_maps(add_token_ranges(books), weights)
    assert [one.document for one in found] == ["a.txt", "b.txt", "c.txt"]
    assert found[0].spans == ((1, 3, 4),), "tokens of one shade are one span; cold ones none"
    assert found[1].spans == ((0, 1, 8), (3, 4, 1))
    assert found[2].spans == ()
    assert make_heat_maps(add_token_ranges(books), weights * 0)[0].spans == ()


def test_the_whole_text_is_there_to_the_letter_and_passages_are_linked_both_ways() -> None:
    first, second = shelf(TEXT * 3), shelf("Bees sting.", 3 * len(TEXT), "b.txt")
    one, two = quote(first, "The gate opens at"), quote(first, "opens at nine.")
    three = quote(second, "Bees sting.", 0.25, page=4, chapter="Two")
    quotation = Quotation("a.txt", 4, 8)
    page = page_of([first, second], one, two, three, quotation=quotation)
    links = {node.attributes["href"] for node in page.css("a")}
    assert links == {"#passage-1", "#passage-2", "#passage-3", "#passages"}
    shown = page.body.text()  # type: ignore[union-attr]
    assert "Bees sting.b.txt, page 4, Two" in shown
    assert "%" not in shown
    assert [node.text() for node in page.css("blockquote mark")] == ["gate"]
    page.strip_tags(["a"])
    assert [node.text() for node in page.css(".text")] == [TEXT * 3, "Bees sting."]
    marks = [(node.attributes["id"], node.text()) for node in page.css(".text mark")]
    assert marks == [
        ("passage-1", "The gate opens at"), ("passage-2", " nine."), ("passage-3", "Bees sting."),
    ]  # fmt: skip


def test_everything_is_escaped_and_nothing_is_fetched() -> None:
    book = shelf(f"One.\n{NASTY}\n\ud800", name=NASTY)
    page = page_of([book], quote(book, NASTY, chapter=NASTY))
    assert not page.css("script, img, link, iframe, object, [src], [onerror], [onload], [onclick]")
    html = page.html or ""
    assert "default-src 'none'" in html
    assert "http" not in html.replace("http-equiv", "")
    page.strip_tags(["a"])
    assert NASTY in page.css_first(".text").text()
