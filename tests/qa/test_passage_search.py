"""Passages without an answer: places, scores, minimum. Tiny random model, or none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from finder_asker import asker as asker

from esa_cli.documents.document import Document
from esa_cli.documents.readers.text_builder import Mark
from esa_cli.errors import UsageError
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.passage_finder import (
    ABOVE,
    WORDLESS,
    Book,
    Passage,
    PassageSearch,
    add_token_ranges,
)
from esa_cli.qa.finding.word_search import find_passages_with_words
from esa_cli.qa.presets.preset import load_preset

FILLER = "A grey boat lies at the pier and nobody in the town knows whose boat it is. " * 40
GATE = "Captain Ahab opens the northern gate at nine. "
STORY = f"{FILLER}\n\n{GATE}{FILLER}"
QUESTION = "When does Ahab open the gate?"


def book(text: str, name: str = "story.txt", **more: Any) -> Book:
    made = Document(name, text, f"/notes/{name}", "utf-8", len(text), **more)
    return Book(made, None, torch.zeros(0, 2))


def found(question: str, *texts: str, **more: Any) -> list[Passage]:
    books = [book(text, f"{at}.txt") for at, text in enumerate(texts)]
    return PassageSearch().search_passages(question, add_token_ranges(books), **more)


def test_a_passage_has_its_place() -> None:
    marks = (Mark(0, 1, "Boats"), Mark(len(FILLER) + 2, 2, "Gates"))
    placed = add_token_ranges([book(FILLER, "other.txt"), book(STORY, marks=marks)])
    best = PassageSearch().search_passages(QUESTION, placed)[0]
    assert (best.document, best.source) == ("story.txt", "/notes/story.txt")
    assert GATE.strip() in best.text
    assert STORY[best.start : best.end] == best.text
    assert best.start < len(FILLER), "the passage begins in the chapter before"
    assert (best.page, best.chapter, best.line) == (2, "Gates", 3)
    read = PassageSearch().find_passages_to_read(QUESTION, placed, 1)[0]
    by_words = find_passages_with_words("Ahab opens the gate", placed)[0][0]
    assert [(one.page, one.chapter) for one in (read, by_words)] == [(2, "Gates")] * 2


def test_scores_are_log_odds_best_first() -> None:
    passages = found(QUESTION, STORY)
    scores = [one.score for one in passages]
    assert scores == sorted(scores, reverse=True)
    odds = [one.probability / (1 - one.probability) for one in passages if one.probability]
    assert [math.log(one) for one in odds] == pytest.approx(scores)
    second = passages[1].probability
    assert found(QUESTION, STORY, minimum=second) == [
        one for one in passages if (one.probability or 0) >= (second or 0)
    ]
    assert found(QUESTION, STORY, minimum=0.999) == []
    assert found(QUESTION, STORY, count=1) == passages[:1]
    for count in (0, "x", 1.5):
        with pytest.raises(UsageError):
            found(QUESTION, STORY, count=count)


def test_all_are_those_above_a_probability_or_the_best() -> None:
    every = found(QUESTION, STORY, count=None)
    assert every
    assert min(one.probability or 0 for one in every) >= ABOVE
    (only,) = found(QUESTION, GATE, count=None)
    assert only.text == GATE.strip()
    more = found("boat town", STORY, count=None, minimum=0.0)
    assert len(more) > 8
    assert more[0].start <= STORY.index("boat")


def test_without_a_word_of_the_question_nothing_is_found() -> None:
    assert found("zeppelin", STORY, GATE) == []
    assert found("who is it", STORY) == []
    assert {one.document for one in found("Ahab", FILLER, GATE, STORY)} == {"1.txt", "2.txt"}
    with pytest.raises(UsageError, match="no document"):
        found("Ahab")


def test_what_has_been_read_is_found_as_answers_find_it(asker: Esa) -> None:
    read, unread = asker.ingest(book(STORY).document), asker.open(book(FILLER, "b").document)
    assert read.read
    assert not unread.read
    passages = asker.find_passages("zeppelin", [read, unread, read], minimum=0.0)
    assert {one.document for one in passages} == {"story.txt"}, "the other has no such word"
    assert len(passages) == 8
    reply = asker.ask("zeppelin", [read], evidence=8)
    alone = asker.find_passages("zeppelin", [read], count=asker.preset.answer.passages, minimum=0.0)
    assert {(e.start, e.end) for e in reply.evidence} <= {(one.start, one.end) for one in alone}


def test_improbable_passages_without_a_word_do_not_fit(asker: Esa) -> None:
    text = STORY + "".join(f"Nothing {n} happens. And {n} is over. " for n in range(300))
    read = asker.ingest(book(text).document)
    every = asker.find_passages("Ahab", [read], count=1000, minimum=0.0)
    probable = [one for one in every if "Ahab" in one.text or (one.probability or 0) >= WORDLESS]
    assert 0 < len(probable) < len(every)
    # A window that does not fit no longer hides the windows that it overlaps.
    kept = asker.find_passages("Ahab", [read], count=1000)
    assert {one.start for one in probable} <= {one.start for one in kept}
    assert all("Ahab" in one.text or (one.probability or 0) >= WORDLESS for one in kept)


def test_by_words_where_answers_come_from_rows(loaded: Any) -> None:
    with Esa(loaded, load_preset("tiny-random")) as esa:
        read = esa.ingest(book(STORY[-2000:] + GATE).document)
        assert GATE.strip() in esa.find_passages(QUESTION, [read])[0].text
        with pytest.raises(UsageError, match="must not be empty"):
            esa.find_passages(" ", [read])


def test_a_passage_has_the_title_and_link_of_its_document() -> None:
    link = "https://example.org/gates"
    marks = (Mark(0, None, "Gates", 1, "Gates (@a20)", link), Mark(9, None, "Keys", 2, "T", link))
    document = book(STORY, "notes.md", marks=marks).document
    first, second = (Passage.cut_from(document, at, at + 9) for at in (0, 9))
    assert first.describe_place() == f"notes.md:1, Gates (@a20), {link}", "no name twice"
    assert second.describe_place() == f"notes.md:1, T, Keys, {link}"
    for fields in (first.as_found(), first.as_evidence()):
        assert (fields["title"], fields["link"]) == ("Gates (@a20)", link)


def test_long_names_in_a_place_are_cut_but_no_link_is() -> None:
    link = f"https://example.org/{'g' * 9000}"
    document = book(STORY, "notes.md", marks=(Mark(0, None, "Gate " * 9000, 1, "T" * 9000, link),))
    shown = Passage.cut_from(document.document, 0, 9).describe_place()
    assert shown.endswith(f", {link}")
    named = shown.removesuffix(link)
    assert "TTT" in named
    assert "Gate Gate" in named
    assert len(named) < 600
