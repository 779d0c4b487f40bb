"""Chooses the passages of a reply that are shown to people: none twice, none with nothing to say.

JSON, Python and MCP have all passages of a reply."""

from __future__ import annotations

import re
from collections.abc import Iterable

from esa_cli.qa.answering.reply import Quotation, Reply, locate_quotations
from esa_cli.qa.finding.passage import Passage
from esa_cli.system.text import count_words_of_text

NEGLIGIBLE = 0.01
"""Passages with less weight than this are not shown."""
MIN_NEW = 2 / 3
"""The least share of a passage that the better passages do not have."""
MIN_WORDS = 4
"""A text with fewer words, such as a heading, says nothing unless it ends as sentences end."""
_CITATION = re.compile(r"\[(\d+(?:\s*[,;]\s*\d+)*)\]")


def choose_passages(reply: Reply, count: int) -> list[tuple[int, Passage]]:
    """Returns up to `count` passages of a reply: those that the answer of another model cites, with
    their numbers in the reply, or else the best ones that say something new, numbered from 1."""
    from esa_cli.qa.finding.words import find_sentence_spans

    numbered = list(enumerate(reply.evidence, 1))
    cited = find_cited_numbers(reply)
    if named := [one for one in numbered if one[0] in cited]:
        return named[:count]
    chosen, known, unshown = list[Passage](), set[str](), list(reply.quotations)
    for passage in reply.evidence:
        spans = find_sentence_spans(passage.text)
        # A mail that answers another one quotes it behind `>`.
        texts = [re.sub(r"(?m)^[> ]+", "", passage.text[start:end]) for start, end in spans]
        sentences = [" ".join(text.split()).lower() for text in texts]
        new = [sentence for sentence in sentences if sentence not in known]
        share = sum(map(len, new)) / max(1, sum(map(len, sentences)))
        tells_more = share >= MIN_NEW and _says_something(new) and passage.weight >= NEGLIGIBLE
        if (quote := passage.quote) is not None:
            best = Quotation(passage.document, *quote)
            tells_more &= not any(is_quoted(one, best) for one in chosen)
        if tells_more or locate_quotations(passage, unshown):
            unshown = [one for one in unshown if not is_quoted(passage, one)]
            chosen.append(passage)
            known.update(sentences)
    return [*enumerate(chosen or reply.evidence[:1], 1)][:count]


def find_cited_numbers(reply: Reply) -> set[int]:
    """Returns the numbers of the passages that the answer of another model cites, as in `[2]`."""
    if reply.certainty is not None or reply.answered_from != "text":
        return set()
    cited = _CITATION.findall(reply.text)
    return {int(number) for numbers in cited for number in re.findall(r"\d+", numbers)}


def is_quoted(passage: Passage, quotation: Quotation | None) -> bool:
    """Whether the beginning of a quotation is in a passage."""
    if quotation is None or quotation.document != passage.document:
        return False
    return passage.start <= quotation.start < passage.end


def _says_something(sentences: Iterable[str]) -> bool:
    """Whether sentences are more than a heading, or than dots before the number of a page."""
    text = " ".join(sentences)
    is_sentence = text.endswith((".", "!", "?", "。", "！", "？"))
    letters = sum(map(str.isalnum, text))
    return (is_sentence or count_words_of_text(text) >= MIN_WORDS) and 2 * letters > len(text)
