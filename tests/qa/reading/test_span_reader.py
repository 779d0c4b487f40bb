"""Passages that are read again: their prompt, log-odds, spans and order."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from byte_level_model import byte_level, byte_model
from tiny_reader import make_head, make_random_adapter

from esa_cli.errors import LengthError
from esa_cli.models.text_passes.text_forward import GROUP, compute_hidden_states
from esa_cli.qa.answering.reply import NOT_TOLD, Quotation, Turn
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import OTHER
from esa_cli.qa.presets.preset import PROMPT
from esa_cli.qa.reading import passage_reader, span
from esa_cli.qa.reading.passage_reader import (
    PassageReader,
    PassageReading,
    Span,
    collapse_spaces,
    find_most_probable_span,
    find_negation,
)
from esa_cli.qa.reading.reader import SamplingParams
from esa_cli.qa.reading.span import AnswerCombination, SpanReader

__all__ = ["byte_level", "byte_model"]

QUESTION = "Who is\nthe captain?"
PASSAGES = [
    "Ahab was one.", " “Ahab,”\n\n  he  said.\n", "…", "鯨 is\tit.", "x", "x (y)", "(no) one",
    f"{'not ' * 9}x",
]  # fmt: skip


def make_reader(model: Any, tokenizer: Any, **options: Any) -> PassageReader:
    adapter, head = make_random_adapter(model), make_head(model.config.hidden_size)
    return PassageReader(model, tokenizer, PROMPT, adapter, head, **options)


# The prompt


def test_both_fields_are_in_one_line_and_text(byte_level: Any) -> None:
    made = PassageReader(None, byte_level, PROMPT)
    prompt = made.encode_prompt(" Who is\nAhab? ", "Ahab,\n  the\tcaptain.\n")
    text = PROMPT.format(question="Who is Ahab?", passage="Ahab, the captain.")
    assert byte_level.decode(prompt.ids) == text
    assert prompt.first == text.index(" Ahab, the") + 1
    assert prompt.offsets == [(at, at + 1) for at in range(len("Ahab, the captain."))]
    plain = PassageReader(None, byte_level, "{passage}|{question}")
    ids = plain.encode_prompt("{passage}?", "{question} <|im_end|>").ids
    assert byte_level.decode(ids) == "{question} <|im_end|>|{passage}?"
    assert byte_level.convert_tokens_to_ids("<|im_end|>") not in ids


@pytest.mark.parametrize("text", ["one two three four five six", "x" * 40, "鯨" * 30, "", "a\nb c"])
@pytest.mark.parametrize("most", [-5, 0, 7, 20, 1000])
def test_clipped(byte_level: Any, text: str, most: int) -> None:
    context = len(PassageReader(None, byte_level, PROMPT).encode_prompt("", "").ids) + most
    ids, first, offsets = PassageReader(None, byte_level, PROMPT, context=context).encode_prompt(
        "", text
    )
    assert not offsets or len(ids) <= context
    kept = byte_level.decode(ids[first : first + len(offsets)])
    assert " ".join(text.split()).startswith(kept)
    if len(text.encode()) <= most:
        assert kept == " ".join(text.split())
    elif most > 2 and text:
        assert kept


# Log-odds and spans


@pytest.mark.parametrize("fuses", [False, True])
@torch.inference_mode()
def test_each_passage_is_read_as_alone_and_by_transformers(
    byte_model: Any, byte_level: Any, fuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches, padded, with the adapter's matrices added or beside the layers."""
    monkeypatch.setattr(passage_reader, "can_fuse_model", lambda model: fuses)
    made = make_reader(byte_model, byte_level)
    readings, head = (
        made.read_passages(QUESTION, PASSAGES),
        make_head(byte_model.config.hidden_size),
    )
    assert len(readings) == len(PASSAGES)
    for passage, (odds, found, request) in zip(PASSAGES, readings, strict=True):
        prompt = made.encode_prompt(QUESTION, passage)
        ids, count = torch.tensor([prompt.ids]), len(prompt.ids)
        with make_random_adapter(byte_model).apply():
            layers = byte_model.config.num_hidden_layers
            [states] = compute_hidden_states(byte_model, ids, layers, torch.tensor([count]))
        assert odds == pytest.approx(float(states[-1] @ head["has"] + 0.25), abs=1e-3)
        assert request == pytest.approx(float(states[-1] @ head["request"] - 100), abs=1e-3)
        own = states[prompt.first : prompt.first + len(prompt.offsets)]
        text = collapse_spaces(passage)
        starts, ends = own @ head["start"], own @ head["end"]
        wanted = find_most_probable_span(text, starts, ends, prompt.offsets)
        assert (found is None) is (wanted is None) is not any(map(str.isalnum, passage))
        if found is not None and wanted is not None:
            said = collapse_spaces(passage[found.start : found.end])
            assert said == text[find_negation(text, wanted.start) : wanted.end]
            assert found.log_probability == pytest.approx(wanted.log_probability, abs=1e-3)
    assert not any(layer._forward_hooks for layer in byte_model.modules())


@pytest.mark.parametrize(
    "text",
    [
        "Dogs are [not |allowed].", "Dogs must [not be |kept here].", "They are [never |allowed].",
        "Dogs [cannot |enter].", "Dogs [aren’t |allowed].", "There is [no |lift].",
        "Hunde sind [nicht |erlaubt].", "Es gibt [keinen |Aufzug].", "Er kam [nie |an].",
        "Les chiens [ne sont pas |admis].", "Il [n’est jamais |fermé].", "Cela [ne |ferme] pas.",
        "[No se |permite] fumar.", "La tienda [nunca |cierra].", "这里[不|允许]带狗。",
        "The shop does [not\n|close] on Sundays.", "We know [|Ann].", "He said no, [|and left].",
        "He said no and [|left].", "lift: no\n[|port: 80]", "Or not [|Ann]", "[|Yes].",
        "There is a knot [|here].", "At No. [|5] it ends.",
    ],
)  # fmt: skip
def test_a_quotation_keeps_its_negation(text: str) -> None:
    """The negation and the span stand between the brackets."""
    plain, marked = re.sub(r"[\[\]|]", "", text), text.replace("]", "")
    start, wanted = marked.replace("[", "").index("|"), text.index("[")
    assert find_negation(plain, start) == wanted


def test_progress_is_told_after_each_small_group(byte_model: Any, byte_level: Any) -> None:
    made = make_reader(byte_model, byte_level)
    texts = [f"{passage} {number}" for number in range(3) for passage in PASSAGES]
    calls: list[tuple[int, int]] = []
    told = made.read_passages(QUESTION, texts, lambda *counts: calls.append(counts))
    assert calls == [(n, len(texts)) for n in (*range(0, len(texts), GROUP), len(texts))]
    for passage, (odds, *_) in zip(texts, told, strict=True):
        again = make_reader(byte_model, byte_level).read_passages(QUESTION, [passage])
        assert odds == pytest.approx(again[0][0], abs=1e-3)

    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.read_passages("Who is Ishmael?", texts, stop)
    assert not any(layer._forward_hooks for layer in byte_model.modules())


def test_a_passage_is_read_once_for_a_question(byte_model: Any, byte_level: Any) -> None:
    """The same reading for the same question and text, in any order, and another for another."""
    made, prompts = make_reader(byte_model, byte_level), list[Any]()
    plain, iterate = make_reader(byte_model, byte_level), made.iterate_states
    made.iterate_states = lambda ids: (prompts.extend(ids), iterate(ids))[1]  # type: ignore[assignment]
    wanted = {one: made.read_passages(QUESTION, [one])[0] for one in PASSAGES}
    assert len(prompts) == len(PASSAGES)
    twice = [*reversed(PASSAGES), *PASSAGES]
    assert made.read_passages(QUESTION, twice) == [wanted[one] for one in twice]
    assert len(prompts) == len(PASSAGES)
    for question in ("Who is Ishmael?", QUESTION):
        readings = made.read_passages(question, PASSAGES)
        for one, other in zip(readings, plain.read_passages(question, PASSAGES), strict=True):
            assert one.log_odds == pytest.approx(other.log_odds, abs=1e-3)
    assert len(prompts) == 3 * len(PASSAGES)


def test_without_an_adapter_the_span_is_the_sentence_with_the_words(byte_level: Any) -> None:
    made = PassageReader(None, byte_level, PROMPT)
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
    text = passage[found.start : found.end]
    assert text == text.strip()
    assert collapse_spaces(text) in collapse_spaces(passage)
    again = made.read_passages(QUESTION, [collapse_spaces(passage)])[0].span
    assert collapse_spaces(passage)[again.start : again.end] == collapse_spaces(text)


def test_the_end_of_a_passage_beyond_the_window_is_not_read(
    byte_model: Any, byte_level: Any
) -> None:
    long = "He walks about and says no more. " * 40
    made = make_reader(byte_model, byte_level, context=256)
    readings = made.read_passages(QUESTION, [long, "Ahab was one.", "y" * 900])
    assert readings[0].span.end < 256
    [short] = make_reader(byte_model, byte_level).read_passages(QUESTION, ["Ahab was one."])
    assert readings[1].log_odds == pytest.approx(short.log_odds, abs=1e-4)


# The order of passages that have been read

TEXT = "He came.\nMr. Pip  slept. It rained."


class FixedReader:
    """Gives passages these log-odds, and their spans these log-probabilities."""

    def __init__(self, odds: list[float], spans: list[float | None]) -> None:
        self.odds, self.spans = odds, [None if one is None else Span(0, 2, one) for one in spans]

    def read_passages(
        self, question: str, passages: Any, progress: Any = None
    ) -> list[PassageReading]:
        return list(map(PassageReading, self.odds, self.spans))[: len(passages)]


WEIGHTS, BM25_WEIGHTS = (-0.5, 1.0, 0.5, 2.0, 0.0, 0.0, 0.0, 1.0), (-0.5, 1.0, 0.5, 0.6)


def make_span_reader(window: int = 100, **fields: Any) -> Any:
    made: Any = SpanReader.__new__(SpanReader)
    read = SimpleNamespace(
        encode_prompt=lambda question, passage: SimpleNamespace(ids=[1] * (len(question) + 3)),
        tokenizer=lambda text, **_: {"input_ids": text},
        read_passages=lambda *_: [PassageReading(0.0, None)],
    )
    made.passages, made.window_tokens = read, window
    made.combination = AnswerCombination(WEIGHTS, BM25_WEIGHTS, 0.8, 0.3)
    made._settings = SimpleNamespace(form="auto")
    vars(made).update(fields)
    return made


@pytest.mark.parametrize("seed", range(8))
def test_the_order_is_that_of_a_loop(seed: int) -> None:
    """By log-odds; at most one answer is right, which several passages may have. A name that no
    document has lowers all probabilities."""
    rng = random.Random(seed)
    odds = [rng.uniform(-3, 3) for _ in range(6)]
    spans = [rng.choice([None, rng.uniform(-4, 0)]) for _ in range(6)]
    found = [Passage("a", "a", None, 1, None, at, at + 9, "", rng.random()) for at in range(6)]
    made = make_span_reader(passages=FixedReader(odds, spans))
    found = [replace(one, text=rng.choice(["ab cd.", "Ab!", "xy"])) for one in found]
    totals = {
        at: -math.inf if spans[at] is None
        else odds[at] - 0.5 + 0.5 * (spans[at] or 0.0) + 0.6 * found[at].score
        for at in range(6)
    }  # fmt: skip
    order = sorted(totals, key=lambda at: -totals[at])
    read = made.rank_passages("", found, 0.5)
    assert [one.start for one in read] == order
    assert [one.score for one in read] == pytest.approx([totals[at] for at in order])
    odds_of = {at: math.exp(totals[at] - 2.25) for at in range(6)}
    for one, at in zip(read, order, strict=True):
        assert one.quote == (None if spans[at] is None else (at, at + 2))
        same = [n for n in range(6) if found[n].text[:2].lower() == one.text[:2].lower()]
        wanted = sum(odds_of[n] for n in same) / (1 + sum(odds_of.values()))
        assert one.probability == pytest.approx(0.0 if spans[at] is None else wanted)
    assert made.rank_passages("", []) == []
    named = made.rank_passages("", [*found[:5], replace(found[5], document="b")], named={"b"})
    less = {(one.document, one.start): one.score for one in named if one.document == "a"}
    assert less == {("a", one.start): one.score - OTHER for one in read if one.start < 5}
    assert [one.score for one in named if one.document == "b"] == pytest.approx([totals[5]])
    late = (-0.25, -0.5, -0.5, -0.5, 0.75)
    readings = FixedReader([2.0], [-1.0])
    [one] = make_span_reader(passages=readings).rank_passages("", [replace(found[0], late=late)])
    assert one.score == pytest.approx(-0.5 + 2.0 - 0.5 - 0.5 + 0.75)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_three_are_read_again_with_their_context(seed: int) -> None:
    """Each with the whole words of 250 characters on each side, if its document's text is known."""
    rng = random.Random(seed)
    text = " ".join("x" * rng.randint(1, 30) for _ in range(120))
    starts = sorted(rng.sample(range(len(text) - 90), 7))
    found = [Passage("a", "a", None, 1, None, at, at + 80, text[at : at + 80]) for at in starts]
    late = [tuple(rng.uniform(-1, 0) for _ in range(5)) for _ in found]
    found = [replace(one, late=row) for one, row in zip(found, late, strict=True)]
    found[0] = replace(found[0], document="unknown", source="unknown")
    calls = list[list[str]]()

    def read_passages(question: str, passages: Any, progress: Any = None) -> list[PassageReading]:
        calls.append(list(passages))
        begin = 0 if len(calls) == 1 else 200
        return [
            PassageReading(len(one) % 7 - 3.0, Span(begin, begin + 60, -(len(one) % 5) / 5))
            for one in passages
        ]

    again = (*(2 * one for one in WEIGHTS), 0.25, 0.5, 0.75, 1.5)
    made = make_span_reader(
        passages=SimpleNamespace(read_passages=read_passages),
        combination=AnswerCombination(WEIGHTS, BM25_WEIGHTS, math.inf, 0.3, again),
    )
    scores = {one.start: one.score for one in made.rank_passages("", found, texts={"a": text})}

    def add(weights: Any, *features: float) -> float:
        return sum(a * b for a, b in zip(weights, features, strict=True))

    features = [(1.0, 80 % 7 - 3.0, 0.0, *row) for row in late]
    order = sorted(range(7), key=lambda at: -add(WEIGHTS, *features[at]))
    best, wide = [at for at in order if at][:3], list[str]()
    for at, one in enumerate(found):
        more = (0.0,) * 4
        if at in best:
            words = list(re.finditer(r"x+", text))
            low, high = one.start - 250, one.end + 250
            inside = [w for w in words if w.start() >= low and w.end() <= high]
            low = min(one.start, inside[0].start())
            high = max(one.end, inside[-1].end())
            size = high - low
            apart = low + 200 >= one.start + 60 or low + 260 <= one.start
            more = (1.0, size % 7 - 3.0, -(size % 5) / 5, float(not apart))
            wide.append(text[low:high])
        assert scores[one.start] == pytest.approx(add(again, *features[at], *more))
    assert sorted(calls[1]) == sorted(wide)
    made.combination = made.combination._replace(answer=0.0)  # any answer is certain
    calls.clear()
    certain = {one.start: one.score for one in made.rank_passages("", found, texts={"a": text})}
    once = {one.start: add(WEIGHTS, *row) for one, row in zip(found, features, strict=True)}
    assert certain == pytest.approx(once)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("probability", "quote", "certainty"),
    [
        (0.8, (12, 16), "answer"), (0.79, (12, 16), "perhaps"), (0.3, (12, 16), "perhaps"),
        (0.29, (12, 16), "nothing"), (0.9, None, "nothing"), (None, (12, 16), "nothing"),
    ],
)  # fmt: skip
def test_certainties(probability: float | None, quote: Any, certainty: str) -> None:
    text = "A b\nc d."
    best = Passage("a", "a", None, 1, None, 10, 18, text, 1.0, 0.0, quote, probability)
    parts: list[str] = []
    reply = make_span_reader().answer("?", [best], (), SamplingParams(), parts.append)
    assert reply.certainty == certainty
    assert reply.found is (certainty != "nothing")
    assert reply.text == (NOT_TOLD if certainty == "nothing" else "b c")
    assert parts == [f"perhaps: {reply.text}" if certainty == "perhaps" else reply.text]
    if reply.found:
        assert reply.quotation == Quotation("a", 12, 16)
        assert reply.answer_tokens == len(" b c")
        assert reply.probability == probability
    assert make_span_reader().answer("?", [], (), SamplingParams()).text == NOT_TOLD


@pytest.mark.parametrize("answering", ["It was 8 m in May.", "It was 6 m in June.", "Both.", ""])
@pytest.mark.parametrize("last", ["", "How long was it?"])
def test_the_sentence_of_a_certain_answer_answers_alone(answering: str, last: str) -> None:
    """Or the answer is `perhaps`; a sentence is also asked with the question before."""
    text = "It was 8 m in May. It was 6 m in June. Both."
    begin = text.index("6 m")
    best = Passage("a", "a", None, 1, None, 10, 10 + len(text), text, 1.0, 0.0, None, 0.9)
    best = replace(best, quote=(10 + begin, 13 + begin))

    def read_passages(question: str, passages: Any, progress: Any = None) -> list[PassageReading]:
        fits = question == f"{last} When?".strip() and passages == [answering]
        return [PassageReading(0.0 if fits else -0.1, None)]

    made = make_span_reader()
    made.passages.read_passages = read_passages
    history = (Turn(last, "8 m"),) if last else ()
    reply = made.answer("When?", [best], history, SamplingParams())
    assert reply.certainty == ("answer" if "6 m" in answering else "perhaps")
    assert reply.text == "6 m"


def test_a_question_leaves_room_for_passages() -> None:
    for window in range(10, 60):
        made = make_span_reader(window)
        if 7 + window // 2 <= window:
            assert made.count_question_tokens("What") == 7
        else:
            with pytest.raises(LengthError):
                made.count_question_tokens("What")
    large = make_span_reader(5000)
    assert large.count_question_tokens("x" * (5000 - span.ROOM - 3)) == 5000 - span.ROOM
    with pytest.raises(LengthError):
        large.count_question_tokens("x" * (5000 - span.ROOM - 2))
