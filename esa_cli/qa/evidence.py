"""Weighs the passages that an answer rests on, and shows them as heat maps and HTML pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

import torch
from torch import Tensor

from esa_cli.documents.sources import WRITTEN_BY_ESA
from esa_cli.qa.answering.passage_choice import choose_passages
from esa_cli.qa.answering.reply import HeatMap, Reply, ShadedSpan, mark_quotations, mark_spans
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import Book, find_token_bounds

LIGHT = {
    "page": "#ffffff", "raised": "#f4f5f7", "text": "#1b1d22", "soft": "#555b66",
    "line": "#cfd3da", "grid": "#e6e8ec", "link": "#0059a8", "none": "#eceef1",
}  # fmt: skip
DARK = {
    "page": "#14161a", "raised": "#1e2127", "text": "#e8eaee", "soft": "#a7aebb",
    "line": "#3d434e", "grid": "#2a2e36", "link": "#7cc0ff", "none": "#23272e",
}  # fmt: skip


def format_css_variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


LEVELS = 8
"""The number of shades in a heat map."""
COLD = 1 / 64
"""A token with less than this share of the heaviest token's weight is not shaded."""


def compute_passage_weights(
    passages: Sequence[Passage], books: Sequence[Book]
) -> tuple[list[Passage], Tensor]:
    """Weighs passages and all document tokens by the softmax of the scores of the passages."""
    shares = torch.tensor([one.score for one in passages]).softmax(0).tolist()
    weighed = [replace(one, weight=share) for one, share in zip(passages, shares, strict=True)]
    by_name = {book.document.name: book for book in books}
    weights = torch.zeros(max(book.rows.stop for book in books))
    for one in weighed:
        book = by_name[one.document]
        first, last = find_token_bounds(book.spans, torch.tensor([(one.start, one.end)]))
        if count := int(last - first):
            start = book.rows.start + int(first)
            weights[start : start + count] += one.weight / count
    return weighed, weights


def make_heat_maps(books: Sequence[Book], token_weights: Tensor) -> list[HeatMap]:
    """Makes heat maps of documents by the weights (N,) of all tokens; the heaviest is darkest."""
    parts = [token_weights[book.rows.start : book.rows.stop] for book in books]
    top = max((float(part.max()) for part in parts if len(part)), default=0.0)
    return [
        HeatMap(book.document.name, tuple(_shade_tokens(book.spans, part, top)))
        for book, part in zip(books, parts, strict=True)
    ]


def _shade_tokens(spans: Tensor, token_weights: Tensor, max_weight: float) -> list[ShadedSpan]:
    """Returns the character spans of tokens with their shades, the darkest for `max_weight`."""
    out: list[ShadedSpan] = []
    if max_weight <= 0:
        return out
    for i in (token_weights >= COLD * max_weight).nonzero()[:, 0].tolist():
        start, end = int(spans[i, 0]), int(spans[i, 1])
        start = max(start, out[-1].end) if out else start
        level = max(1, round(LEVELS * (float(token_weights[i]) / max_weight) ** 0.5))
        if out and out[-1][1:] == (start, level):
            out[-1] = ShadedSpan(out[-1].start, end, level)
        elif start < end:
            out.append(ShadedSpan(start, end, level))
    return out


POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; font: 16px/1.6 system-ui }
body { background: var(--page); color: var(--text) }
h2 { margin: 2.5rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line) }
a { color: var(--link) }
.answer { font-size: 1.15rem; border-left: 4px solid var(--link); padding-left: .9rem }
.answer, .text, blockquote { margin-left: 0; white-space: pre-wrap; overflow-wrap: anywhere }
.soft { color: var(--soft) }
mark { background: var(--raised); color: inherit; border-bottom: 2px solid var(--link) }
mark a { font: 600 .75em system-ui; padding-right: .4em; scroll-margin-top: 30vh }
"""


def make_evidence_page(reply: Reply, question: str, books: Sequence[Book]) -> str:
    """Returns an HTML page with an answer and with documents in which passages are marked."""
    doubt = "Nothing in the text stands out for this question: it may not contain the answer."
    is_certain = reply.found and reply.certainty != "perhaps"
    passages = choose_passages(reply, len(reply.evidence))
    listed = [
        f'<li value="{number}"><blockquote dir="auto">{mark_quotations(one, reply.quotations)}'
        f'</blockquote><a href="#passage-{number}">{escape(one.describe_place())}</a></li>'
        for number, one in passages
    ]
    sections = [
        f'<h2>{escape(book.document.name)}</h2>\n<div class="text" dir="auto">'
        f"{_format_marked_document(book, passages)}</div>"
        for book in books
    ]
    page = f"""<!doctype html>
{WRITTEN_BY_ESA}
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(question)}</title>
<style>
:root {{ {format_css_variables(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {format_css_variables(DARK)} }} }}
{STYLE}</style>
</head>
<body>
<h1 dir="auto">{escape(question)}</h1>
<p class="answer" dir="auto">{escape(reply.text_with_marks)}</p>
{f'<p class="soft">{doubt}</p>' if reply.doubtful else ""}
<h2 id="passages">{"What the answer rests on" if is_certain else "The nearest passages"}</h2>
<ol>{"".join(listed)}</ol>
{"".join(sections)}
</body>
</html>
"""
    return page.encode("utf-8", "replace").decode("utf-8")


def _format_marked_document(book: Book, passages: Sequence[tuple[int, Passage]]) -> str:
    """Returns the text of a document as HTML, in which each passage is marked and numbered."""
    document = book.document
    own = [
        (one.start, one.end, f'<mark id="passage-{number}"><a href="#passages">{number}</a>')
        for number, one in passages
        if one.document == document.name and document.text[one.start : one.end] == one.text
    ]
    return mark_spans(document.text, sorted(own))
