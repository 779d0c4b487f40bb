"""The words of a question in a passage, as BM25 compares them: by their stems."""

from __future__ import annotations

from esa_cli.system.content_words import language_of, located_words, question_words


def matched_words(text: str, question: str) -> list[tuple[int, int]]:
    """Characters [start, end) of each word of `text` that the question has, too, ascending; stop
    words are none. Pairs of characters of a script without spaces may overlap."""
    language = language_of(text)
    wanted = {stem for stems in question_words(question, [language]) for stem in stems}
    found = ((start, end) for start, end, stem in located_words(text, language) if stem in wanted)
    return list(dict.fromkeys(found))
