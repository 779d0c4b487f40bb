"""Formats an answer and its passages as HTML, for notebooks; this module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from esa_cli.qa.finding.passage import Passage


def format_answer_as_html(
    answer: str, notes: Sequence[str], passages: Sequence[Passage],
    quoted: tuple[str, int, int] | None,
) -> str:  # fmt: skip
    """Returns an answer, notes, and each passage with its place; the words that the answer quotes
    are marked, which are characters [start, end) of the document `quoted` names first."""
    items = [
        f'<li><div dir="auto" style="white-space: pre-wrap">{_mark_quoted_words(one, quoted)}</div>'
        f"<small>{escape(one.describe_place())}</small></li>"
        for one in passages
    ]
    html = (
        f'<p dir="auto" style="white-space: pre-wrap"><b>{escape(answer)}</b></p>'
        f"{''.join(f'<p>{escape(note)}</p>' for note in notes)}<ol>{''.join(items)}</ol>"
    )
    return html.encode("utf-8", "replace").decode("utf-8")


def _mark_quoted_words(passage: Passage, quoted: tuple[str, int, int] | None) -> str:
    """Returns the text of a passage as HTML, in which the quoted words are marked."""
    text = passage.text
    if quoted is None or quoted[0] != passage.document:
        return escape(text)
    first, last = (min(max(at - passage.start, 0), len(text)) for at in quoted[1:])
    if first >= last:
        return escape(text)
    return f"{escape(text[:first])}<mark>{escape(text[first:last])}</mark>{escape(text[last:])}"
