"""A run over passages with a decision of the test's own: order, doubles, progress, going on."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from finder_asker import asker as asker

from esa_cli.documents.document import Document
from esa_cli.documents.readers.text_builder import Mark
from esa_cli.errors import LengthError, UsageError
from esa_cli.qa.answering.reply import NOT_TOLD, Reply
from esa_cli.qa.api import Esa
from esa_cli.qa.collecting import (
    AnswerSpan,
    CollectedPlace,
    Collection,
    EarlierRun,
    choose_passages_to_read,
    drop_repeated_places,
    find_quoted_words,
    make_log_odds_span_finder,
    make_reply_span_finder,
)
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import Book, PassageSearch, add_token_ranges
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.reading.passage_reader import PassageReading, Span, normalise_answer
from esa_cli.qa.reading.reader import SamplingParams

FILLER = "A grey boat lies at the pier and nobody in the town knows whose boat it is. " * 6
KEYS = [f"Keeper {name} has key {number}. " for name, number in (("Ann", 7), ("Bo", 12), ("Cy", 7))]
STORY = "\n\n".join([FILLER, KEYS[0] + FILLER, KEYS[1] + FILLER, FILLER + KEYS[2]])
QUESTION = "Which key does a keeper have?"


class KeyDecision:
    """Every `key N` of a passage is told, with these weights for one passage after the other."""

    def __init__(self, batch: int = 2, weights: Iterable[float] = itertools.repeat(0.0)) -> None:
        self.batch, self.weights = batch, iter(weights)
        self.passages: list[Passage] = []

    def __call__(self, passages: Sequence[Passage]) -> list[list[AnswerSpan]]:
        self.passages += passages
        return [
            [AnswerSpan(*found.span(), weight, 1.5) for found in re.finditer(r"key \d+", one.text)]
            for one, weight in zip(passages, self.weights, strict=False)
        ]


def book(text: str, name: str = "story.txt", **more: Any) -> Book:
    made = Document(name, text, f"/notes/{name}", "utf-8", len(text), **more)
    return Book(made, None, torch.zeros(0, 2))


def run(decision: Any, *books: Book, **more: Any) -> Collection:
    placed = add_token_ranges(books or [book(STORY)])
    chosen = choose_passages_to_read(PassageSearch(), QUESTION, placed, all_passages=True)
    return Collection(chosen, placed, decision, batch=decision.batch, **more)


def test_places_come_once_in_order_with_their_places() -> None:
    places = list(
        run(KeyDecision(), book(STORY, marks=(Mark(0, 1, "Boats"), Mark(700, 2, "Keys"))))
    )
    assert [one.text for one in places] == ["key 7", "key 12", "key 7"]
    for one, key in zip(places, KEYS, strict=True):
        assert STORY[one.start : one.end] == one.text
        assert one.sentence == key.strip()
        assert one.line == STORY[: one.start].count("\n") + 1
        assert one.page == (2 if one.start >= 700 else 1)
        assert one.passage[0] <= one.start < one.end <= one.passage[1]
        assert (one.document, one.source, one.log_odds) == ("story.txt", "/notes/story.txt", 1.5)
    assert [one.start for one in drop_repeated_places(places)] == [places[0].start, places[1].start]


@pytest.mark.parametrize("batch", [1, 2, 5, 100])
def test_a_batch_changes_nothing(batch: int) -> None:
    assert list(run(KeyDecision(batch))) == list(run(KeyDecision()))
    books = book(STORY), book(f"{FILLER}{KEYS[1]}", "other.txt")
    names = [one.document for one in run(KeyDecision(batch), *books)]
    assert names == ["story.txt"] * 3 + ["other.txt"]


@pytest.mark.parametrize("stop", range(8))
def test_a_stopped_run_goes_on_where_it_was(stop: int) -> None:
    """Wherever it stops, the two runs together find what one run finds."""
    whole, left = list(run(KeyDecision(1))), stop

    def step(done: int, total: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt

    first, found = run(KeyDecision(1), progress=step), list[CollectedPlace]()
    with pytest.raises(KeyboardInterrupt):
        found.extend(first)
    after = EarlierRun(first.done_passage_count, tuple(found))
    second = KeyDecision(1)
    assert found + list(run(second, after=after)) == whole
    assert len(second.passages) == first.coverage.chosen - first.done_passage_count


def test_places_that_an_earlier_run_wrote_are_not_found_again() -> None:
    """A kill may lose the last note of how far a run was."""
    whole = list(run(KeyDecision()))
    for count in range(len(whole) + 1):
        after = EarlierRun(0, tuple(whole[:count]))
        assert list(run(KeyDecision(), after=after)) == whole[count:]


def test_the_sieve() -> None:
    placed = add_token_ranges([book(STORY), book(FILLER, "other.txt")])
    search = PassageSearch()
    every = choose_passages_to_read(search, QUESTION, placed)
    assert len(every.passages) == every.total, "documents without an index are read as a whole"
    least = sorted(one.probability or 0.0 for one in every.passages)[-2]
    some = choose_passages_to_read(search, QUESTION, placed, minimum=least)
    assert 0 < len(some.passages) < some.total == every.total
    chosen = [one for one in every.passages if (one.probability or 0.0) >= least]
    assert chosen == list(some.passages)
    assert choose_passages_to_read(search, QUESTION, placed, least, all_passages=True) == every


def test_contents_pages_are_read_with_all_passages_alone() -> None:
    """Also those lines that are in a passage with other text."""
    contents = "Contents\n\n" + "\n".join(f"{n}. Keeper {n} ..... {n}" for n in range(1, 40))
    text = "\n\n".join([FILLER, contents, *[FILLER] * 40])
    first = text.index(contents)
    last = first + len(contents)
    for every in (False, True):
        chosen = choose_passages_to_read(PassageSearch(), QUESTION, [book(text)], None, every)[0]
        assert any(one.start < last and first < one.end for one in chosen) == every
        rest = 0, first - 5, last + 2, len(text) - 5
        assert all(any(one.start <= at < one.end for one in chosen) for at in rest)


@pytest.mark.parametrize("fitting", [3, 100, 400])
def test_as_many_are_chosen_as_fit_equally(asker: Esa, fitting: int) -> None:
    """Whatever share of the text they are; of a few pages all are."""
    about = [f"Keeper {at} of the old gate has key number {at}. " * 6 for at in range(fitting)]
    text = "\n\n".join([*about, *[FILLER] * (400 - fitting)][: 400 if fitting > 3 else 5])
    read = asker.ingest(Document("keys.txt", text, "keys.txt", "utf-8", len(text)))
    places = asker.collect("Which key does keeper 7 of the old gate have?", [read])
    assert places.coverage.passages > (200 if fitting > 3 else 0)
    assert places.coverage.chosen >= fitting


def test_esa_collects_with_its_reader(asker: Esa) -> None:
    read = asker.ingest(Document("story.txt", STORY, "story.txt", "utf-8", len(STORY)))
    places = asker.collect(QUESTION, [read, read], every=True, least=-100.0)
    whole = list(places)
    assert whole
    assert places.coverage.read == places.coverage.passages
    for one in whole:
        assert STORY[one.start : one.end] == one.text
        assert one.log_odds is not None
    assert [one.start for one in whole] == sorted(one.start for one in whole)
    assert list(asker.collect(QUESTION, [read], every=True, least=100.0)) == []
    assert asker.collect(QUESTION, [read]).coverage.chosen == places.coverage.passages
    half = asker.collect(QUESTION, [read], every=True, least=-100.0)
    first = [next(half)]
    reply = asker.ask(QUESTION, [read])
    assert reply.text, "another question between two places"
    assert first + list(half) == whole


class KeyReader:
    """Another model, which knows a key when it is shown one."""

    name, nbytes = "keys", 0

    def __init__(self) -> None:
        self.shown: list[Passage] = []

    def answer(
        self, question: str, passages: Sequence[Passage], history: object, sampling: SamplingParams,
        on_text: object = None,
    ) -> Reply:  # fmt: skip
        (one,) = passages
        self.shown.append(one)
        found = re.search(r"key \d+", one.text)
        return Reply(f"It is {found[0]}." if found else NOT_TOLD)

    def close(self) -> None: ...


def test_another_model_decides(loaded: Any) -> None:
    reader = KeyReader()
    with Esa(loaded, load_preset("tiny-random", ["answer.from=text"]), reader=reader) as esa:
        places = esa.collect(QUESTION, [book(STORY)])
        found = list(places)
    assert [one.answer for one in found] == ["It is key 7.", "It is key 12.", "It is key 7."]
    assert [one.log_odds for one in found] == [None] * 3
    answers = {normalise_answer(one.answer or one.text) for one in found}
    assert answers == {"it is key 7", "it is key 12"}
    assert len(reader.shown) == places.coverage.passages, "each passage alone"


def test_esa_refuses(asker: Esa, loaded: Any) -> None:
    one = book(STORY)
    with pytest.raises(UsageError, match="no document"):
        asker.collect(QUESTION, [])
    with pytest.raises(UsageError, match="question"):
        asker.collect(" ", [one])
    with pytest.raises(LengthError):
        asker.collect("why " * 5000, [one])
    asker.close()
    with Esa(loaded, load_preset("tiny-random")) as rows, pytest.raises(UsageError, match="text"):
        rows.collect(QUESTION, [one])


@pytest.mark.parametrize("seed", range(4))
def test_of_places_in_one_sentence_the_likeliest_stays(seed: int) -> None:
    """The windows of a text overlap, so that every sentence is in several."""
    weights = [random.Random(seed * 1000 + at).random() for at in range(1000)]
    decision = KeyDecision(weights=weights)
    text = " ".join(f"Keeper {at} of the gate has key {at}." for at in range(60))
    places = list(run(decision, book(text)))
    assert [one.text for one in places] == [f"key {at}" for at in range(60)]
    for one in places[12:-12]:
        having = [
            (weight, (passage.start, passage.end))
            for passage, weight in zip(decision.passages, weights, strict=False)
            if passage.start <= one.start and one.end <= passage.end
        ]
        assert len(having) > 1
        assert one.passage == max(having)[1]


# Where another model's words stand in a passage, and what counts as no answer

TEXT = "The gate\nopens at nine. Ninety boats (all grey) lie there."


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("the gate opens at nine", "The gate\nopens at nine"),
        ("“All grey.”", "all grey"),
        ("boats all", "boats (all"),
        ("It is at nine, says the passage.", "at nine"),
        ("It is at the.", TEXT),
        ("...", TEXT),
    ],
)
def test_the_place_of_words(answer: str, words: str) -> None:
    start, end = find_quoted_words(answer, TEXT)
    assert TEXT[start:end] == words


def test_the_shorter_place_of_words_is_the_surer() -> None:
    said = iter([NOT_TOLD, "At  nine.", " ", "Twelve, I think."])
    passage = Passage("a.txt", "a.txt", None, 1, None, 0, len(TEXT), TEXT)
    reader: Any = SimpleNamespace(answer=lambda *_: Reply(next(said)))
    find_spans = make_reply_span_finder(reader, QUESTION, SamplingParams())
    spans = find_spans([passage] * 4)
    [first], [second] = spans[1], spans[3]
    assert (spans[0], spans[2]) == ([], [])
    assert (TEXT[first.start : first.end], first.answer) == ("at nine", "At nine.")
    assert (second.start, second.end, second.answer) == (0, len(TEXT), "Twelve, I think.")
    assert first.weight > second.weight


class AgeReader:
    """A reader that quotes the first age of a text, with log-odds of `odds`."""

    def __init__(self, odds: float = 3.0) -> None:
        self.odds = odds

    def read_passages(self, question: str, texts: Sequence[str]) -> list[PassageReading]:
        found = [re.search(r"\d+", text) for text in texts]
        return [
            PassageReading(self.odds, Span(*one.span(), -1.0)) if one else PassageReading(-3, None)
            for one in found
        ]


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_sentence_of_a_passage_that_tells_is_told(count: int) -> None:
    said = [f"Keeper {'abcdefg'[at]} is {30 + at} years old, not {at}." for at in range(count)]
    text = "\n\n".join(["A grey boat.", *said, "Nobody knows it."])
    passage = Passage("a.txt", "a.txt", None, 1, None, 0, len(text), text)
    reader: Any = AgeReader()
    decide = make_log_odds_span_finder(reader, "How old?", 2.5, whole=True)
    (spans,) = decide([passage])
    assert all((one.weight, one.log_odds) == (2.0, 3.0) for one in spans)
    assert [text[one.start : one.end] for one in spans] == [f"{30 + at}" for at in range(count)]
    (first,) = make_log_odds_span_finder(reader, "How old?", 2.5)([passage])
    assert first == spans[:1]
    refused = make_log_odds_span_finder(reader, "How old?", 3.5)([passage])
    assert refused == [[]]


@pytest.mark.parametrize(
    ("odds", "score", "least", "whole", "count"),
    [(-2.9, -9, None, True, 1), (-3.1, 9, None, True, 0), (-6.4, 0, None, False, 1),
     (-3.4, -6, None, False, 1), (-3.6, -6, None, False, 0), (-4, 0, -5, True, 1)],
)  # fmt: skip
def test_a_passage_that_fits_and_does_not_tell_has_no_place(
    odds: float, score: float, least: float | None, whole: bool, count: int
) -> None:
    passage = Passage("a.txt", "a.txt", None, 1, None, 0, 12, "Ann is 30 now", score=score)
    reader: Any = AgeReader(odds)
    find = make_log_odds_span_finder(reader, "How old?", least, whole=whole)
    (spans,) = find([passage])
    assert len(spans) == count
