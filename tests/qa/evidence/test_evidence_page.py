"""The page of an answer: the whole text, its heat, its passages, and nothing that could do harm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import torch

from esa_cli.documents.document import Document
from esa_cli.qa.answering.reply import Passage, Reply
from esa_cli.qa.books import Book
from esa_cli.qa.evidence.evidence_page import BLOCK, LEVELS, evidence_page

NASTY = "<script>alert(1)</script> & \"quotes\" 'too' <img src=x onerror=y>"


class Page(HTMLParser):
    """What a browser would make of it: text of each block, shades, ids, links, tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self.shades: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._open: list[tuple[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append((tag, named))
        kind = named.get("class") or ""
        if tag not in ("meta", "link", "br"):
            self._open.append((tag, kind))
        if "id" in named:
            self.ids.append(named["id"] or "")
        if tag == "a":
            self.links.append(named.get("href") or "")
        if kind == "block":
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag, "tags are closed in order"

    def handle_data(self, data: str) -> None:
        inside = [kind for _, kind in self._open]
        if "block" in inside and "number" not in inside:
            self.blocks[-1] += data
            if self._open[-1][0] == "span":
                self.shades.append((self._open[-1][1], data))
        elif not {"style", "script"} & {tag for tag, _ in self._open}:
            self.words += data


def shelf(text: str, first: int = 0, name: str = "a.txt", size: int = 1) -> Book:
    spans = [(at, min(len(text), at + size)) for at in range(0, len(text), size)]
    document, rows = Document(name, text, name, "utf-8", 1), range(first, first + len(spans))
    return Book(document, None, torch.tensor(spans).reshape(-1, 2), rows=rows)


def quote(book: Book, words: str, weight: float = 0.5, **changes: Any) -> Passage:
    start = book.document.text.index(words)
    facts = {"page": None, "line": 3, "chapter": None, **changes}
    return Passage(
        document=book.document.name,
        source=book.document.name,
        start=start,
        end=start + len(words),
        text=words,
        weight=weight,
        **facts,
    )


def reply(*evidence: Passage, text: str = "At nine.", found: bool = True) -> Reply:
    return Reply(text, evidence, found, 9, 3, 0.5, 1.0)


def shown(books: Sequence[Book], weights: torch.Tensor, *evidence: Passage, **changes: Any) -> Page:
    return Page(evidence_page(reply(*evidence, **changes), "When?", books, weights))


TEXT = "The gate opens at nine.\n\n  Nobody came.\tA bell rang.\n"


def test_the_whole_text_is_there_to_the_letter() -> None:
    book = shelf(TEXT * 300)
    weights = torch.rand(len(book.rows)) ** 8
    page = shown([book], weights, quote(book, "Nobody came."))
    assert "".join(page.blocks) == book.document.text
    assert len(page.blocks) > 1
    assert all(block.endswith("\n") for block in page.blocks[:-1])


def test_shades_follow_the_weights_and_cold_text_is_plain() -> None:
    book = shelf(TEXT)
    weights = torch.zeros(len(book.rows))
    weights[4:8] = 1.0
    weights[9:14] = 0.25
    weights[30] = 0.001
    page = shown([book], weights)
    assert page.shades == [(f"h{LEVELS}", "gate"), (f"h{LEVELS // 2}", "opens")]


def test_passages_are_marked_and_linked_both_ways() -> None:
    first, second = shelf(TEXT), shelf("Bees sting.", len(TEXT), "b.txt")
    weights = torch.zeros(second.rows.stop)
    weights[4:6] = 1.0
    two = quote(second, "Bees sting.", 0.25, page=4, chapter="Two")
    page = shown([first, second], weights, quote(first, "The gate opens at nine."), two)
    assert [one for one in page.ids if one.startswith("passage-")] == ["passage-1", "passage-2"]
    assert set(page.links) == {"#passage-1", "#passage-2", "#passages"}
    assert "b.txt, page 4, line 3, Two" in page.words
    assert "50 % of the attention" in page.words
    marked = [(kind, text) for kind, text in page.shades if "in" in kind.split()]
    assert "".join(text for _, text in marked) == "The gate opens at nine.Bees sting."
    assert marked[1] == (f"h{LEVELS} in", "ga")


def test_everything_is_escaped_and_nothing_is_fetched() -> None:
    book = shelf(f"One.\n{NASTY}\n", name=NASTY)
    weights = torch.ones(len(book.rows))
    html = evidence_page(
        reply(quote(book, NASTY, chapter=NASTY), text=NASTY), NASTY, [book], weights
    )
    page = Page(html)
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert scripts == [{}], "only our own"
    assert not [tag for tag, _ in page.tags if tag in ("img", "link", "iframe", "object")]
    assert not [a for _, named in page.tags for a in named if a.startswith("on") or a == "src"]
    assert "default-src 'none'" in html
    assert "http" not in re.sub(r"http-equiv", "", html)
    assert "".join(page.blocks) == book.document.text


def test_evidence_of_another_text_is_not_marked() -> None:
    book = shelf(TEXT)
    other = shelf("The gate opens at nine.", name="c.txt")
    page = shown([book], torch.zeros(len(book.rows)), quote(other, "gate opens"))
    assert not [one for one in page.ids if one.startswith("passage-")]


def test_a_text_of_a_megabyte_stays_small() -> None:
    text = ("word " * 14 + "\n") * 15000
    book = shelf(text, size=4)
    weights = torch.zeros(len(book.rows))
    weights[5000:5100] = torch.rand(100)
    html = evidence_page(reply(), "When?", [book], weights)
    assert len(html) < 1.05 * len(text) + 40000
    page = Page(html)
    assert "".join(page.blocks) == text
    assert max(map(len, page.blocks)) < 2 * BLOCK


def test_a_text_without_lines_or_without_tokens() -> None:
    for book in (shelf("x" * 20000), shelf(""), shelf(" ")):
        page = shown([book], torch.ones(max(1, len(book.rows))))
        assert "".join(page.blocks) == book.document.text
