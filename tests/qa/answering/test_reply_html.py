"""A reply as a notebook shows it, parsed again by a parser of HTML."""

from __future__ import annotations

import pytest
from selectolax.lexbor import LexborHTMLParser

from esa_cli.qa.answering.reply import Quotation, Reply
from esa_cli.qa.finding.passage import Passage

NASTY = "<script>alert(1)</script> & \"<img src=x onerror='x'>"
TEXT = "The gate opens at nine.\nThe market closes at dusk."
PASSAGES = (
    Passage("gate.pdf", "gate.pdf", 3, 1207, "The Gate", 100, 100 + len(TEXT), TEXT),
    Passage("boat.txt", "boat.txt", None, 1, None, 100, 112, "A grey boat."),
)


def page(reply: Reply) -> LexborHTMLParser:
    return LexborHTMLParser(reply._repr_html_())


def test_the_quoted_words_are_marked_in_their_passage() -> None:
    start = 100 + TEXT.index("nine")
    reply = Reply("nine", PASSAGES, quotation=Quotation("gate.pdf", start, start + 4))
    shown = page(reply)
    assert shown.css_first("b").text() == "nine"
    assert [mark.text() for mark in shown.css("mark")] == ["nine"]
    assert [one.text() for one in shown.css("li > div")] == [TEXT, "A grey boat."]
    places = [one.text() for one in shown.css("small")]
    assert places == [one.describe_place() for one in PASSAGES]


@pytest.mark.parametrize(("start", "end"), [(0, 100), (90, 104), (140, 900), (900, 950), (99, 99)])
def test_a_quotation_that_leaves_the_passage_marks_what_is_in_it(start: int, end: int) -> None:
    shown = page(Reply("x", PASSAGES[:1], quotation=Quotation("gate.pdf", start, end)))
    inside = "".join(TEXT[at - 100] for at in range(100, 100 + len(TEXT)) if start <= at < end)
    assert "".join(mark.text() for mark in shown.css("mark")) == inside
    assert shown.css_first("li > div").text() == TEXT


def test_an_uncertain_answer_says_so() -> None:
    assert page(Reply("nine", certainty="perhaps")).css_first("b").text() == "perhaps: nine"
    nothing = Reply("Nothing found that answers.", PASSAGES, found=False, certainty="nothing")
    assert "The nearest passages:" in page(nothing).body.text()  # type: ignore[union-attr]
    assert "may not contain" in Reply("nine", found=False)._repr_html_()
    assert "passages" not in Reply("nine", found=False)._repr_html_()


def test_everything_is_escaped() -> None:
    passage = Passage(NASTY, NASTY, 1, 1, NASTY, 0, len(NASTY), NASTY)
    reply = Reply(NASTY + "\ud800", (passage,), quotation=Quotation(NASTY, 5, 20))
    shown = page(reply)
    assert not shown.css("script, img, [onerror]")
    assert shown.css_first("li > div").text() == NASTY
    assert shown.css_first("b").text().startswith(NASTY)
