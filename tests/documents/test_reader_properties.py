"""Random pages, mails and Markdown: every word of the page is in the text, in the encoding that the
page declares, and headings are those of another parser."""

from __future__ import annotations

import random
import sys
from html import escape

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from properties import EXAMPLES
from reader_fuzz import Mutant, read_here, verdict
from reader_samples import SAMPLES

from esa_cli.documents.readers.markdown_reader import find_headings

assert EXAMPLES >= 0
TAGS = (
    "a", "article", "aside", "b", "blockquote", "body", "br", "button", "caption", "center", "col",
    "dd", "details", "div", "dl", "dt", "figure", "footer", "form", "h1", "h2", "header", "hr",
    "html", "i", "img", "label", "li", "link", "main", "meta", "nav", "object", "ol", "option", "p",
    "pre", "q", "select", "section", "span", "summary", "sup", "svg", "table", "tbody", "td", "th",
    "thead", "tr", "u", "ul", "video", "x-y",
)  # fmt: skip
MARKUP = st.sampled_from([*TAGS, "head"]).map("<{}>".format) | st.sampled_from(
    [*(f"</{tag}>" for tag in TAGS), "<!doctype html>", "<!-- <p>x -->", "<!-->", "<p/>", "<?x?>",
     "&lt;p&gt;", "&#x80;", "&nope;", "<div class='a>b'>", "<script>'<p>'</script>", "\n"]
)  # fmt: skip
PIECES = st.lists(MARKUP | st.none(), max_size=30)


@given(PIECES, st.sampled_from(["a.html", "a.xhtml", "a.eml"]))
@example(["<body>", None, "</body>", "</html>", None, "<html>", "<body>", None], "a.html")
@example(["<!doctype html>", "<section>", None, "</section>", "<p>", None], "a.html")
def test_every_word_of_a_page_is_in_its_text(pieces: list[str | None], name: str) -> None:
    words = [f"w{i}w" for i, piece in enumerate(pieces) if piece is None]
    assume(words)
    left = iter(words)
    page = "".join(next(left) if piece is None else piece for piece in pieces)
    head = "From: a\nContent-Type: text/html; charset=utf-8\n\n" if name == "a.eml" else ""
    text = read_here(f"{head}{page}".encode(), name).text
    assert [text.count(word) for word in words] == [1] * len(words), (page, text)


CODECS = st.sampled_from([("utf-8", "utf-8"), ("windows-1251", "cp1251"), ("koi8-r", "koi8-r")])
NAMES = st.sampled_from(["utf-8", "koi8-r", "gbk", "cp500", "utf-16", "idna", "x", "iso-8859-1"])
PLACES = (
    "<!-- charset={} -->", "<!-- <meta charset={}> -->", "<script src=a charset={}></script>",
    "<script>'<meta charset={}>'</script>", "<link rel=stylesheet href=a charset='{}'>",
    "<a href='/x?charset={}'>x</a>", "<img src='/x?encoding={}'>", "<p>charset={} in words",
    "<pre>&lt;meta charset={}></pre>", "<meta name=x content='charset={}'>",
    "<style>/* <meta charset={}> */</style>", "<title>charset={}</title>",
)  # fmt: skip


@given(CODECS, st.lists(st.tuples(st.sampled_from(PLACES), NAMES), max_size=3), st.booleans())
@example(("utf-8", "utf-8"), [("<!-- <meta charset={}> -->", "koi8-r")], False)
@example(("utf-8", "utf-8"), [("<meta name=x content='charset={}'>", "koi8-r")], True)
def test_only_a_declaration_says_the_encoding(
    codec: tuple[str, str], beside: list[tuple[str, str]], old: bool
) -> None:
    others = "".join(place.format(name) for place, name in beside)
    declared = f"charset={codec[0]}"
    if old:
        declared = f"http-equiv=Content-Type content='text/html; {declared}'"
    page = f"{others}<meta {declared}><p>Привет, мир"
    assert "Привет, мир" in read_here(page.encode(codec[1]), "a.html").text


LINES = st.sampled_from(
    ["# one", "## two ##", "   # four", "#", "# five #six", "#\tseven", "# ## ##", "# a\\#",
     "####### no\n", "words", "", "three\n===", "eight\n---", "---", "```", "```sh", "~~~ x",
     "``` ```", "# a" + " " * 99 + "b", "# " + "#" * 99, "\n    # code\n"]
)  # fmt: skip


@given(st.lists(LINES, max_size=12))
@example(["``` ```", "# one"])
def test_headings_are_those_of_another_parser(lines: list[str]) -> None:
    """A line above an underline counts alone: CommonMark takes its whole paragraph."""
    text = "\n".join(["", *lines, ""])
    tokens = MarkdownIt().parse(text)
    expected = [
        tokens[i + 1].content.rpartition("\n")[2]
        for i, token in enumerate(tokens)
        if token.type == "heading_open" and tokens[i + 1].content
    ]
    assert [escape(mark.chapter or "") for mark in find_headings(text)] == [*map(escape, expected)]


EACH = EXAMPLES or 60


@pytest.mark.parametrize("name", SAMPLES)
def test_mutants_are_read_or_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidocr", None)  # which takes a second a page
    seed = random.randrange(1 << 30) if EXAMPLES else 1
    mutants = [Mutant(seed, name, number) for number in range(EACH)]
    verdicts = {mutant: verdict(mutant.data(), name, read_here) for mutant in mutants}
    assert {m: v for m, v in verdicts.items() if v not in ("text", "refused")} == {}
    assert "text" in verdicts.values(), "mutants that are all refused test nothing"
