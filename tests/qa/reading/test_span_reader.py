"""Passages that are read again: their prompt, log-odds, spans and order."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from byte_level_model import byte_level, byte_model
from tiny_reader import make_head, make_random_adapter

from esa_cli.errors import LengthError
from esa_cli.models.text_passes.model_forward import compute_hidden_states
from esa_cli.qa.answering.reply import NOT_TOLD, Quotation, Reply
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.preset import PROMPT
from esa_cli.qa.reading import span
from esa_cli.qa.reading.passage_reader import (
    PassagePrompt,
    PassageReader,
    PassageReading,
    Span,
    clip_text,
    collapse_spaces,
    find_most_probable_span,
)
from esa_cli.qa.reading.reader import SamplingParams
from esa_cli.qa.reading.span import SpanReader

__all__ = ["byte_level", "byte_model"]

QUESTION = "Who is\nthe captain?"
PASSAGES = [
    "Ahab was one.", " “Ahab,”\n\n  he  said.\n", "…", "鯨 is\tit.", "x", "x (y)", "(no) one",
]  # fmt: skip


def make_reader(model: Any, tokenizer: Any, *, fixed: bool = True, **options: Any) -> PassageReader:
    prompt, head = PassagePrompt(tokenizer, PROMPT), make_head(model.config.hidden_size)
    return PassageReader(model, prompt, make_random_adapter(model), head, fixed=fixed, **options)


# The prompt


def test_both_fields_are_in_one_line_and_text(byte_level: Any) -> None:
    made = PassagePrompt(byte_level, PROMPT)
    prompt = made.encode_prompt(" Who is\nAhab? ", "Ahab,\n  the\tcaptain.\n")
    text = "Question: Who is Ahab?\nText: Ahab, the captain.\nAnswer:"
    assert byte_level.decode(prompt.ids) == text
    assert prompt.first == text.index(" Ahab, the") + 1
    assert prompt.offsets == [(at, at + 1) for at in range(len("Ahab, the captain."))]
    plain = PassagePrompt(byte_level, "{passage}|{question}")
    ids = plain.encode_prompt("{passage}?", "{question} <|im_end|>").ids
    assert byte_level.decode(ids) == "{question} <|im_end|>|{passage}?"
    assert byte_level.convert_tokens_to_ids("<|im_end|>") not in ids
    assert made.count_answer_tokens("Ahab,\nhe") == len(" Ahab, he")


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


@pytest.mark.parametrize("fixed", [False, True])
@torch.inference_mode()
def test_each_passage_is_read_as_alone_and_by_transformers(
    byte_model: Any, byte_level: Any, fixed: bool
) -> None:
    """In batches, padded, with the adapter's matrices added or beside the layers."""
    made = make_reader(byte_model, byte_level, fixed=fixed)
    readings, head = (
        made.read_passages(QUESTION, PASSAGES),
        make_head(byte_model.config.hidden_size),
    )
    assert len(readings) == len(PASSAGES)
    for passage, (odds, found) in zip(PASSAGES, readings, strict=True):
        prompt = made.prompt.encode_prompt(QUESTION, passage)
        ids, count = torch.tensor([prompt.ids]), len(prompt.ids)
        with make_random_adapter(byte_model).apply():
            layers = byte_model.config.num_hidden_layers
            [states] = compute_hidden_states(byte_model, ids, layers, torch.tensor([count]))
        assert odds == pytest.approx(float(states[-1] @ head["has"] + 0.25), abs=1e-3)
        own = states[prompt.first : prompt.first + len(prompt.offsets)]
        text = collapse_spaces(passage)
        starts, ends = own @ head["start"], own @ head["end"]
        wanted = find_most_probable_span(text, starts, ends, prompt.offsets)
        assert (found is None) is (wanted is None) is not any(map(str.isalnum, passage))
        if found is not None and wanted is not None:
            said = collapse_spaces(passage[found.start : found.end])
            assert said == text[wanted.start : wanted.end]
            assert found.log_probability == pytest.approx(wanted.log_probability, abs=1e-3)
    assert not any(layer._forward_hooks for layer in byte_model.modules())


def test_without_an_adapter_the_span_is_the_sentence_with_the_words(byte_level: Any) -> None:
    made = PassageReader(None, PassagePrompt(byte_level, PROMPT))
    text = "He sleeps. The captain  is Ahab, of course.\nIt rains."
    [found, none] = made.read_passages(QUESTION, [text, "…"])
    assert text[slice(*found.span[:2])] == "The captain  is Ahab, of course."
    assert (found.log_odds, none) == (0.0, PassageReading(0.0, None))


@pytest.mark.parametrize("seed", range(3))
def test_offsets_are_those_of_the_original(byte_level: Any, make_model: Any, seed: int) -> None:
    made = make_reader(make_model("llama", seed=seed, vocab_size=300), byte_level)
    passage = (
        "\n\n 「鯨」は 白い。\n\tHe  said:\r\n“Thar\u2003she\u00a0blows!”  It's\nold-time 42.\n"
    )
    found = made.read_passages(QUESTION, [passage, passage * 2])[0].span
    assert found is not None
    text = passage[found.start : found.end]
    assert text == text.strip()
    assert collapse_spaces(text) in collapse_spaces(passage)
    again = made.read_passages(QUESTION, [collapse_spaces(passage)])[0].span
    assert again is not None
    assert collapse_spaces(passage)[again.start : again.end] == collapse_spaces(text)


def test_the_end_of_a_passage_beyond_the_window_is_not_read(
    byte_model: Any, byte_level: Any
) -> None:
    long = "He walks about and says no more. " * 40
    made = make_reader(byte_model, byte_level, context=256)
    readings = made.read_passages(QUESTION, [long, "Ahab was one.", "y" * 900])
    assert readings[0].span is not None
    assert readings[0].span.end < 256
    [short] = make_reader(byte_model, byte_level).read_passages(QUESTION, ["Ahab was one."])
    assert readings[1].log_odds == pytest.approx(short.log_odds, abs=1e-4)


# The order of passages that have been read

TEXT = "He came.\nMr. Pip  slept. It rained."


class FixedReader:
    """Gives passages these log-odds, and their spans these log-probabilities."""

    def __init__(self, odds: list[float], spans: list[float | None]) -> None:
        self.odds, self.spans = odds, [None if one is None else Span(0, 2, one) for one in spans]

    def read_passages(self, question: str, passages: Any) -> list[PassageReading]:
        return list(map(PassageReading, self.odds, self.spans))[: len(passages)]


@pytest.mark.parametrize("seed", range(8))
def test_the_best_span_is_that_of_a_loop(seed: int) -> None:
    """By its log-probability plus the score of its passage; the other passages by score alone."""
    rng = random.Random(seed)
    odds = [rng.uniform(-3, 3) for _ in range(6)]
    spans = [rng.choice([None, rng.uniform(-4, 0)]) for _ in range(6)]
    found = [Passage("a", "a", None, 1, None, at, at + 9, "", rng.random()) for at in range(6)]
    ranked: Any = SpanReader.__new__(SpanReader)
    ranked.passages, ranked._settings = FixedReader(odds, spans), SimpleNamespace(prior=0.6)
    scores = {at: odds[at] + 0.6 * found[at].score for at in range(6)}
    order = sorted(scores, key=lambda at: -scores[at])
    known = [at for at in order if spans[at] is not None]
    best = max(known, key=lambda at: scores[at] + 0.5 * (spans[at] or 0.0), default=None)
    for by_span in (False, True):
        read = ranked.rank_passages("", found, by_span=by_span, unmentioned_share=0.5)
        if by_span and best is not None:
            order.sort(key=lambda at: at != best)
        assert [one.start for one in read] == order
        assert [one.score for one in read] == [scores[at] for at in order]
        assert [one.log_odds for one in read] == [odds[at] - 2.25 for at in order]
        quotes = [None if spans[at] is None else (at, at + 2) for at in order]
        assert [one.quote for one in read] == quotes
    assert ranked.rank_passages("", []) == []


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
        encode_prompt=lambda question, passage: SimpleNamespace(ids=[1] * (len(question) + 3)),
        count_answer_tokens=lambda text: len(text) + 1,
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
