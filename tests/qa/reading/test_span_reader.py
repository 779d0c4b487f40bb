"""Passages that are read again: their prompt, log-odds, spans and order."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from byte_level_model import byte_level, byte_model

from esa_cli.errors import LengthError
from esa_cli.qa.answering.reply import NOT_TOLD, Quotation, Reply
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.preset import PROMPT, UNANSWERED
from esa_cli.qa.reading import span
from esa_cli.qa.reading.reader import SamplingParams
from esa_cli.qa.reading.span import (
    PassagePrompt,
    PassageReader,
    PassageReading,
    Span,
    SpanReader,
    clip_text,
    collapse_spaces,
)

__all__ = ["byte_level", "byte_model"]

QUESTION = "Who is\nthe captain?"
PASSAGES = [
    "Ahab was one.", " “Ahab,”\n\n  he  said.\n", "…", "鯨 is\tit.", "x", "x (y)", "(no) one",
]  # fmt: skip


def reader(model: Any, tokenizer: Any, adapter: Any = None, **options: Any) -> PassageReader:
    return PassageReader(model, PassagePrompt(tokenizer, PROMPT, UNANSWERED), adapter, **options)


# The prompt


def test_both_fields_are_in_one_line_and_text(byte_level: Any) -> None:
    made = PassagePrompt(byte_level, PROMPT, UNANSWERED)
    ids = made.encode_prompt(" Who is\nAhab? ", "Ahab,\n  the\tcaptain.\n")
    assert byte_level.decode(ids) == (
        "Question: Who is Ahab?\nText: Ahab, the captain.\nQuestion: Who is Ahab?\nAnswer:"
    )
    plain = PassagePrompt(byte_level, "{passage}|{question}", UNANSWERED)
    ids = plain.encode_prompt("{passage}?", "{question} <|im_end|>")
    assert byte_level.decode(ids) == "{question} <|im_end|>|{passage}?"
    assert byte_level.convert_tokens_to_ids("<|im_end|>") not in ids
    assert byte_level.decode(made.encode_answer("Ahab,\nhe")) == " Ahab, he\n"
    assert made.encode_answer("x")[-1] == made.line_end


@pytest.mark.parametrize("text", ["one two three four five six", "x" * 40, "鯨" * 30, "", "a\nb c"])
@pytest.mark.parametrize("most", [-5, 0, 7, 20, 1000])
def test_clipped(text: str, most: int) -> None:
    def tokens(some: str) -> int:
        return 5 + len(some.encode())

    kept = clip_text(text, most, tokens)
    assert text.startswith(kept)
    assert not kept or tokens(kept) <= most
    if tokens(text) <= most:
        assert kept == text
    elif tokens(text[:1]) <= most and " " not in text:
        assert kept


def test_a_clipped_text_ends_with_a_word() -> None:
    assert clip_text("one two three four", 15, len) == "one two three"


# Log-odds and spans


def log_probability(model: Any, before: list[int], after: list[int]) -> float:
    lines = model(torch.tensor([before + after])).logits[0].log_softmax(-1)
    return sum(float(lines[len(before) + at - 1, token]) for at, token in enumerate(after))


def test_log_odds_are_of_any_answer_against_none(byte_model: Any, byte_level: Any) -> None:
    made = reader(byte_model, byte_level)
    with made.activate_adapter():
        found = made.read_passages(QUESTION, PASSAGES).log_odds
    assert len(found) == len(PASSAGES)
    for odds, passage in zip(found, PASSAGES, strict=True):
        ids, words = made.prompt.encode_prompt(QUESTION, passage), made.prompt.unanswered_ids
        # A space begins every answer; ` (` no quotation but one in brackets.
        said = [byte_level.decode(words[:count]).strip() for count in range(1, len(words) + 1)]
        first = next(count for count, one in enumerate(said, 1) if one not in passage)
        assert first == {"(no) one": 5, "x (y)": 3}.get(passage, 2)
        none = math.exp(log_probability(byte_model, ids, words[:first]))
        assert odds == pytest.approx(math.log((1 - none) / none), abs=1e-3)


def test_the_span_is_the_most_probable_one_at_its_place_in_the_passage(
    byte_model: Any, byte_level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span, "BEAMS", 10_000)
    monkeypatch.setattr(span, "CANDIDATES", 10_000)
    made = reader(byte_model, byte_level)
    reading = made.read_passages(QUESTION, PASSAGES)
    ends = {0: ["Ahab", "Ahab was", "Ahab was one", "Ahab was one.", "was", "was one", "was one.",
                "one", "one."],
            1: ["Ahab", "Ahab,", "Ahab,”", "Ahab,” he", "Ahab,” he said", "Ahab,” he said.", "he",
                "he said", "he said.", "said", "said."],
            4: ["x"]}  # fmt: skip
    for number, spans in ends.items():
        before = made.prompt.encode_prompt(QUESTION, PASSAGES[number])
        known = {
            span: max(
                log_probability(byte_model, before, list(ids))
                for ids in (made.prompt.encode_answer(span), made.prompt.encode_answer(span)[1:])
            )
            for span in spans
        }
        found = reading.find_span(number)
        assert found is not None
        best = max(known, key=lambda span: known[span])
        assert collapse_spaces(PASSAGES[number][found.start : found.end]) == best
        assert found.log_probability == pytest.approx(known[best], abs=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_offsets_are_those_of_the_original(byte_level: Any, make_model: Any, seed: int) -> None:
    made = reader(make_model("llama", seed=seed, vocab_size=300), byte_level)
    passage = (
        "\n\n 「鯨」は 白い。\n\tHe  said:\r\n“Thar\u2003she\u00a0blows!”  It's\nold-time 42.\n"
    )
    found = made.read_passages(QUESTION, [passage, passage * 2]).find_span(0)
    assert found is not None
    text = passage[found.start : found.end]
    assert text == text.strip()
    assert collapse_spaces(text) in collapse_spaces(passage)
    again = made.read_passages(QUESTION, [collapse_spaces(passage)]).find_span(0)
    assert again is not None
    assert collapse_spaces(passage)[again.start : again.end] == collapse_spaces(text)


def test_no_words_no_span_and_no_passages(byte_model: Any, byte_level: Any) -> None:
    made = reader(byte_model, byte_level)
    reading = made.read_passages("?!", ["…", "", " \n"])
    assert len(reading.log_odds) == 3
    assert [reading.find_span(n) for n in range(3)] == [None] * 3
    assert made.read_passages(QUESTION, []).log_odds == []


def test_a_model_that_is_certain_has_finite_log_odds(
    byte_model: Any, byte_level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for none, odds in ((0.0, math.log(1e-7)), (math.log(0.25), math.log(3))):
        certain = torch.tensor(none, dtype=torch.float64)
        monkeypatch.setattr(
            PassageReading,
            "_compute_unanswered_log_probability",
            lambda self, number, to=certain: to,
        )
        reading = reader(byte_model, byte_level).read_passages(QUESTION, ["Ahab was one."])
        assert reading.log_odds == pytest.approx([odds], rel=1e-3)


def test_the_end_of_a_passage_beyond_the_window_is_not_read(
    byte_model: Any, byte_level: Any
) -> None:
    long = "He walks about and says no more. " * 40
    made = reader(byte_model, byte_level, context=256)
    reading = made.read_passages(QUESTION, [long, "Ahab was one.", "y" * 900])
    assert max(reading._batch._lengths) <= 256 - span.MAX_TOKENS
    found = reading.find_span(0)
    assert found is not None
    assert long[found.start : found.end].strip()
    short = reader(byte_model, byte_level).read_passages(QUESTION, ["Ahab was one."])
    assert reading.log_odds[1] == pytest.approx(short.log_odds[0], abs=1e-4)


# The order of passages that have been read

TEXT = "He came.\nMr. Pip  slept. It rained."


class FixedReader:
    """Gives passages these log-odds, and their spans these log-probabilities."""

    def __init__(self, odds: list[float], spans: list[float | None]) -> None:
        self.log_odds, self._spans = odds, spans
        self.bounds: list[float] = []

    activate_adapter = nullcontext

    def read_passages(self, question: str, passages: Any) -> FixedReader:
        return self

    def find_span(self, number: int, above: float) -> Span | None:
        self.bounds.append(above)
        found = self._spans[number]
        return None if found is None or found <= above else Span(0, 2, found)


@pytest.mark.parametrize(
    ("spans", "start", "quote", "bounds"),
    [
        ([None, -0.5, -0.25, -0.1], 1, (1, 3), [-math.inf, 0.5, 1.5]),
        ([0.0, -3.0, None, -0.5], 3, (3, 5), [-math.inf, -2.0, -1.0]),
        ([0.0, None, None, None], 1, None, [-math.inf] * 3),
    ],
)
def test_a_span_is_looked_for_where_it_could_be_the_best(
    spans: list[float | None], start: int, quote: Any, bounds: list[float]
) -> None:
    odds = [1.0, 4.0, 3.0, 2.0]
    found = [
        Passage("a", "a", None, 1, None, at, at + 5, TEXT[at : at + 5], 1.0) for at in range(4)
    ]
    ranked: Any = SpanReader.__new__(SpanReader)
    ranked.passages, ranked._settings = FixedReader(odds, spans), SimpleNamespace(prior=2.0)
    read = ranked.rank_passages("", found, unmentioned_share=0.5)
    assert (read[0].start, read[0].quote) == (start, quote)
    assert ranked.passages.bounds == bounds
    assert [one.score for one in read[1:]] == sorted([one.score for one in read[1:]])[::-1]
    by_place = {one.start: one for one in read}
    assert [by_place[at].log_odds for at in range(4)] == [one - 2.25 for one in odds]
    assert [by_place[at].score for at in range(4)] == [one + 2.0 for one in odds]


@pytest.mark.parametrize("seed", range(8))
def test_the_best_span_is_that_of_a_loop(seed: int) -> None:
    """By its log-probability plus the score of its passage, among those with the best scores."""
    rng = random.Random(seed)
    odds = [rng.uniform(-3, 3) for _ in range(6)]
    spans = [rng.choice([None, rng.uniform(-4, 0)]) for _ in range(6)]
    found = [Passage("a", "a", None, 1, None, at, at + 9, "", rng.random()) for at in range(6)]
    ranked: Any = SpanReader.__new__(SpanReader)
    ranked.passages, ranked._settings = FixedReader(odds, spans), SimpleNamespace(prior=0.6)
    for count in (0, 1, 3, 6):
        read = ranked.rank_passages("", found, count)
        scores = {at: odds[at] + 0.6 * found[at].score for at in range(6)}
        order = sorted(scores, key=lambda at: -scores[at])
        known = [at for at in order[:count] if spans[at] is not None]
        best = max(known, key=lambda at: scores[at] + (spans[at] or 0.0), default=None)
        order.sort(key=lambda at: at != best)
        assert [one.start for one in read] == order
        assert [one.score for one in read] == [scores[at] for at in order]
        assert (read[0].quote is not None) is (best is not None)


class Chat:
    """Stands in for a prompt of free text: a token a character."""

    tokenizer = None

    def encode_question(self, text: str) -> list[int]:
        return [1] * len(text)

    def encode_document(self, text: str) -> list[int]:
        return [2] * (5 + len(text))


def span_reader(window: int = 100, **settings: Any) -> Any:
    made: Any = SpanReader.__new__(SpanReader)
    given = {"threshold": 1.0, "form": "span", "prior": 0.5, **settings}
    prompt = SimpleNamespace(
        encode_prompt=lambda question, passage: [1] * (len(question) + 3),
        encode_answer=lambda text: [1] * (len(text) + 2),
    )
    made.passages = SimpleNamespace(prompt=prompt)
    made._settings, made._chat_prompt, made._window = SimpleNamespace(**given), Chat(), window
    made._loaded = SimpleNamespace(model=None)
    return made


@pytest.mark.parametrize(
    ("log_odds", "threshold", "quote", "found"),
    [
        (1.0, 1.0, (12, 16), True), (0.99, 1.0, (12, 16), False), (-9.0, None, (12, 16), True),
        (5.0, 1.0, None, False), (None, None, (12, 16), False),
    ],
)  # fmt: skip
def test_an_answer_needs_a_span_and_the_threshold(
    log_odds: float | None, threshold: float | None, quote: Any, found: bool
) -> None:
    text = "A b\nc d."
    best = Passage("a", "a", None, 1, None, 10, 18, text, 1.0, 0.0, log_odds, quote)
    parts: list[str] = []
    reply = span_reader(threshold=threshold).answer("?", [best], (), SamplingParams(), parts.append)
    assert reply.found is found
    assert parts == [reply.text] == ["b c" if found else NOT_TOLD]
    if found:
        assert reply.quotation == Quotation("a", 12, 16)
        assert reply.answer_tokens == len(text[2:6]) + 1
    assert span_reader().answer("?", [], (), SamplingParams()).text == NOT_TOLD


def test_free_text_is_of_four_passages_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def generated(model: Any, tokenizer: Any, ids: list[int], *given: Any) -> Reply:
        seen.append((ids.count(2), ids.count(1), given[1]))
        return Reply("Text.")

    monkeypatch.setattr(span, "generate_reply", generated)
    made = span_reader(window=60, form="text")
    passages = [
        Passage("a", "a", None, 1, None, 0, 6, "x" * 6, 1.0, 0.0, odds, (0, 1))
        for odds in (0.5, 9.0, 9.0, 9.0, 9.0)
    ]
    reply = made.answer("Why?", passages, (), SamplingParams(10))
    assert (reply.text, reply.found) == ("Text.", False), "the best one is below the threshold"
    assert seen == [(5 + 4 * 6 + 3 * 2, 4, 10)]
    assert made.answer("Why?", passages[1:], (), SamplingParams(10)).found
    made._window = 40
    made.answer("Why?", passages, (), SamplingParams(10))
    assert seen[-1][0] <= 40 - 4 - 10
    assert sum(seen[-1]) > 30, "as much as fits"


@pytest.mark.parametrize(("form", "tokens"), [("span", 7), ("text", 7 + 6)])
def test_a_question_leaves_room_for_passages(form: str, tokens: int) -> None:
    """Its tokens in the longer prompt, half of the window, and free text."""
    for window in range(10, 60):
        made = span_reader(window=window, form=form)
        if tokens + window // 2 <= window:
            assert made.check_length("What", 6) == 7
        else:
            with pytest.raises(LengthError):
                made.check_length("What", 6)
    large = span_reader(window=5000, form="span")
    assert large.check_length("x" * (5000 - span.ROOM - 3), 0) == 5000 - span.ROOM
    with pytest.raises(LengthError):
        large.check_length("x" * (5000 - span.ROOM - 2), 0)
