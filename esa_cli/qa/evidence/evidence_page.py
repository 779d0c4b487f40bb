"""An answer, its evidence and its documents as one self-contained HTML page.

The documents' text has a heat map of the attention that each token got while the answer was
generated. Weights and passages come from `evidence`.
"""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from torch import Tensor

from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.evidence.evidence import LEVELS, heaviest_token, shaded_spans, weights_of
from esa_cli.qa.finding.books import Book
from esa_cli.qa.finding.passage import Passage
from esa_cli.system.page_colours import DARK, LIGHT, css_variables

BLOCK = 4000
"""Characters of a block of text, roughly; one block of a megabyte would be slow to lay out."""
APART = 2.5
"""Percent of the strip's width between two numbers."""
BARS = 240
"""Bars of the strip that shows where in a document the weight is."""


class ShadedText(NamedTuple):
    """Characters of one shade; `level` 0 is plain. `passage`: its number, if it is in one."""

    text: str
    level: int
    passage: int | None
    begins: bool


def evidence_page(reply: Reply, question: str, books: Sequence[Book], weights: Tensor) -> str:
    """The page; write it as UTF-8.

    Args:
        reply: its evidence is numbered as on the page. books: the documents of the question.
        weights: (N,) of all cached tokens, as `AttentionWeights.weights`.
    """
    top = heaviest_token(books, weights)
    whole = sum(float(weights_of(book, weights).sum()) for book in books)
    shown = [_book(book, weights, reply.evidence, top, whole) for book in books]
    return _render(
        "evidence",
        question=question,
        reply=reply,
        passages=[(number, one, _where(one)) for number, one in enumerate(reply.evidence, 1)],
        books=shown,
        levels=range(1, LEVELS + 1),
    )


def _where(one: Passage) -> str:
    parts = [one.document]
    parts += [f"page {one.page}"] if one.page is not None else []
    return ", ".join([*parts, f"line {one.line:,}", *([one.chapter] if one.chapter else [])])


def _book(
    book: Book, weights: Tensor, evidence: Sequence[Passage], top: float, whole: float
) -> dict[str, Any]:
    name, text = book.document.name, book.document.text
    own = weights_of(book, weights).double()
    passages = sorted(
        (one.start, one.end, number)
        for number, one in enumerate(evidence, 1)
        if one.document == name and text[one.start : one.end] == one.text
    )
    heat = shaded_spans(book.spans, own, top)
    return {
        "name": name,
        "share": f"{100 * float(own.sum()) / whole if whole else 0.0:.0f} %",
        "characters": f"{len(text):,}",
        "bars": _bars(book.spans, own, len(text)),
        "marks": _marks([(number, start / max(1, len(text))) for start, _, number in passages]),
        "blocks": list(_blocks(text, heat, passages)),
    }


def _marks(places: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Numbers and their places under the strip in percent, none on top of another."""
    out: list[tuple[int, float]] = []
    for number, place in places:
        least = out[-1][1] + APART if out else 0.0
        out.append((number, round(max(100 * place, least), 2)))
    return out


def _bars(spans: Tensor, weights: Tensor, length: int) -> list[tuple[int, float]]:
    """(bar, height from 0 to 1) of the stretches of the document that have weight."""
    sums = weights.new_zeros(BARS)
    if length and weights.numel():
        sums.index_add_(0, (spans[:, 0].long() * BARS // length).clamp(0, BARS - 1), weights)
    most = float(sums.max())
    heights = [(bar, (float(sums[bar]) / most) ** 0.5) for bar in range(BARS)] if most else []
    return [(bar, round(height, 3)) for bar, height in heights if height > 0.02]


def _blocks(
    text: str, heat: Sequence[tuple[int, int, int]], passages: Sequence[tuple[int, int, int]]
) -> Iterator[list[ShadedText]]:
    """The text as blocks of shaded runs; blocks end at lines, never in a passage or a shade."""
    spans = (*heat, *passages)
    edges = {0, len(text), *(edge for start, end, _ in spans for edge in (start, end))}
    block: list[ShadedText] = []
    size = 0
    for start, end in pairwise(sorted(edges)):
        shade, passage = _covering(heat, start), _covering(passages, start)
        while shade is None and passage is None and size + end - start > BLOCK:
            cut = text.find("\n", start + max(0, BLOCK - size), end) + 1
            if not cut:
                break
            yield [*block, ShadedText(text[start:cut], 0, None, begins=False)]
            block, size, start = [], 0, cut
        level, number = shade[2] if shade else 0, passage[2] if passage else None
        if start < end:
            begins = passage is not None and passage[0] == start
            block.append(ShadedText(text[start:end], level, number, begins))
            size += end - start
    if block:
        yield block


def _covering(spans: Sequence[tuple[int, int, int]], at: int) -> tuple[int, int, int] | None:
    """The one of ascending spans (start, end, number) that has character `at`."""
    before = bisect_right(spans, at, key=lambda span: span[0]) - 1
    return spans[before] if before >= 0 and at < spans[before][1] else None


def _render(name: str, **content: object) -> str:
    """The page of `name`.html.jinja, .css and .js in this folder; write it as UTF-8.

    Args:
        content: the template's variables besides style, light, dark, script and digest.
    """
    template, style, script = (
        files(__package__).joinpath(f"{name}.{kind}").read_text("utf-8")
        for kind in ("html.jinja", "css", "js")
    )
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(template).render(
        style=Markup(style),
        light=Markup(css_variables(LIGHT)),
        dark=Markup(css_variables(DARK)),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **content,
    )
    return page.encode("utf-8", "replace").decode("utf-8")
