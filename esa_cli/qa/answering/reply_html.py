"""Formats an answer and its passages as HTML, for notebooks; this module does not import torch."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from esa_cli.qa.finding.passage import Passage

if TYPE_CHECKING:
    from esa_cli.qa.answering.reply import Reply


def format_reply_as_html(reply: Reply) -> str:
    """Returns the answer, then each passage with its place; the quoted words are marked."""
    items = [
        f'<li><div dir="auto" style="white-space: pre-wrap">{_mark_quoted_words(one, reply)}</div>'
        f"<small>{escape(format_passage_location(one))}</small></li>"
        for one in reply.evidence
    ]
    doubt = "<p>The documents may not contain the answer.</p>" if reply.doubtful else ""
    nearest = "" if reply.found else "<p>The nearest passages:</p>"
    html = (
        f'<p dir="auto" style="white-space: pre-wrap"><b>{escape(reply.text_with_marks)}</b>'
        f"</p>{doubt}{nearest * bool(items)}<ol>{''.join(items)}</ol>"
    )
    return html.encode("utf-8", "replace").decode("utf-8")


def format_passage_location(passage: Passage) -> str:
    """Formats where a passage is, like `a.pdf, page 3, line 7, The Gate`."""
    page = [] if passage.page is None else [f"page {passage.page}"]
    chapter = [passage.chapter] if passage.chapter else []
    return ", ".join([passage.document, *page, f"line {passage.line:,}", *chapter])


def _mark_quoted_words(passage: Passage, reply: Reply) -> str:
    """Returns a passage as HTML; the words that the answer quotes from the passage are marked."""
    text, quoted = passage.text, reply.quotation
    if quoted is None or quoted.document != passage.document:
        return escape(text)
    first, last = (min(max(at - passage.start, 0), len(text)) for at in (quoted.start, quoted.end))
    if first >= last:
        return escape(text)
    return f"{escape(text[:first])}<mark>{escape(text[first:last])}</mark>{escape(text[last:])}"
