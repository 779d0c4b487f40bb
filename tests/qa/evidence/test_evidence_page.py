"""The page of an answer: the whole text, its heat, its passages, and nothing that could do harm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from selectolax.lexbor import LexborHTMLParser

from esa_cli.documents.document import Document
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.evidence.evidence_page import LEVELS, evidence_page
from esa_cli.qa.finding.books import Book
from esa_cli.qa.finding.passage import Passage

NASTY = "<script>alert(1)</script> & \"quotes\" 'too' <img src=x onerror=y>"
TEXT = "The gate opens at nine.\n\n  Nobody came.\tA bell rang.\n"


def shelf(text: str, first: int = 0, name: str = "a.txt") -> Book:
    at = torch.arange(len(text))
    document, rows = Document(name, text, name, "utf-8", 1), range(first, first + len(text))
    return Book(document, None, torch.stack([at, at + 1], 1), rows=rows)


def quote(book: Book, words: str, weight: float = 0.5, **place: Any) -> Passage:
    start = book.document.text.index(words)
    passage = Passage.of(book.document, start, start + len(words), weight=weight)
    return replace(passage, line=3, **place)


def page_of(books: Sequence[Book], weights: torch.Tensor, *evidence: Passage) -> LexborHTMLParser:
    reply = Reply(NASTY, evidence, True, 9, 3, 0.5, 1.0)
    return LexborHTMLParser(evidence_page(reply, NASTY, books, weights))


def blocks(page: LexborHTMLParser) -> list[str]:
    """The text of each block; numbers of passages are no part of it."""
    page.strip_tags(["a"])
    return [node.text() for node in page.css(".block")]


def shades(page: LexborHTMLParser) -> list[tuple[str | None, str]]:
    return [(node.attributes["class"], node.text()) for node in page.css(".block span")]


def test_the_whole_text_is_there_to_the_letter() -> None:
    book = shelf(TEXT * 300)
    weights = torch.rand(len(book.rows)) ** 8
    shown = blocks(page_of([book], weights, quote(book, "Nobody came.")))
    assert "".join(shown) == book.document.text
    assert len(shown) > 1
    assert all(block.endswith("\n") for block in shown[:-1])


def test_shades_follow_the_weights_and_cold_text_is_plain() -> None:
    weights = torch.zeros(len(TEXT))
    weights[4:8] = 1.0
    weights[9:14] = 0.25
    weights[30] = 0.001
    page = page_of([shelf(TEXT)], weights)
    assert shades(page) == [(f"h{LEVELS}", "gate"), (f"h{LEVELS // 2}", "opens")]


def test_passages_are_marked_and_linked_both_ways() -> None:
    first, second = shelf(TEXT), shelf("Bees sting.", len(TEXT), "b.txt")
    weights = torch.zeros(second.rows.stop)
    weights[4:6] = 1.0
    two = quote(second, "Bees sting.", 0.25, page=4, chapter="Two")
    page = page_of([first, second], weights, quote(first, "The gate opens at nine."), two)
    assert [node.attributes["id"] for node in page.css("a.number")] == ["passage-1", "passage-2"]
    links = {node.attributes["href"] for node in page.css("a")}
    assert links == {"#passage-1", "#passage-2", "#passages"}
    assert "b.txt, page 4, line 3, Two" in page.body.text()  # type: ignore[union-attr]
    assert "50 % of the attention" in page.body.text()  # type: ignore[union-attr]
    marked = [(kind, text) for kind, text in shades(page) if kind and "in" in kind.split()]
    assert "".join(text for _, text in marked) == "The gate opens at nine.Bees sting."
    assert marked[1] == (f"h{LEVELS} in", "ga")


def test_everything_is_escaped_and_nothing_is_fetched() -> None:
    book = shelf(f"One.\n{NASTY}\n", name=NASTY)
    page = page_of([book], torch.ones(len(book.rows)), quote(book, NASTY, chapter=NASTY))
    assert [node.attributes for node in page.css("script")] == [{}], "only our own"
    assert not page.css("img, link, iframe, object, [src], [onerror], [onload], [onclick]")
    html = page.html or ""
    assert "default-src 'none'" in html
    assert "http" not in html.replace("http-equiv", "")
    assert NASTY in "".join(blocks(page))
