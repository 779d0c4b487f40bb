"""Passages that are read again: log-odds and spans against one prompt at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from byte_level_model import byte_level, byte_model

from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.qa.presets.preset import PROMPT, UNANSWERED, WorkedExample
from esa_cli.qa.reading import spans as span_search
from esa_cli.qa.reading.span import PassagePrompt, PassageReader, one_line

__all__ = ["byte_level", "byte_model"]

QUESTION = "Who is\nthe captain?"
PASSAGES = [
    "Ahab was one.", " “Ahab,”\n\n  he  said.\n", "…", "鯨 is\tit.", "x", "x (y)", "(no) one",
]  # fmt: skip


def reader(model: Any, tokenizer: Any, adapter: Any = None, **options: Any) -> PassageReader:
    return PassageReader(model, PassagePrompt(tokenizer, PROMPT, UNANSWERED), adapter, **options)


def log_probability(model: Any, before: list[int], after: list[int]) -> float:
    lines = model(torch.tensor([before + after])).logits[0].log_softmax(-1)
    return sum(float(lines[len(before) + at - 1, token]) for at, token in enumerate(after))


def test_log_odds_are_of_any_answer_against_none(byte_model: Any, byte_level: Any) -> None:
    made = reader(byte_model, byte_level)
    with made.reading():
        found = made.read(QUESTION, PASSAGES).log_odds
    assert len(found) == len(PASSAGES)
    for odds, passage in zip(found, PASSAGES, strict=True):
        ids, words = made.prompt.ids(QUESTION, passage), made.prompt.unanswered_ids
        # A space begins every answer; ` (` no quotation but one in brackets.
        said = [made.prompt.texts(words[:count]).strip() for count in range(1, len(words) + 1)]
        first = next(count for count, one in enumerate(said, 1) if one not in passage)
        assert first == {"(no) one": 5, "x (y)": 3}.get(passage, 2)
        none = math.exp(log_probability(byte_model, ids, words[:first]))
        assert odds == pytest.approx(math.log((1 - none) / none), abs=1e-3)


def test_the_span_is_the_most_probable_one_at_its_place_in_the_passage(
    byte_model: Any, byte_level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_search, "BEAMS", 10_000)
    monkeypatch.setattr(span_search, "CANDIDATES", 10_000)
    made = reader(byte_model, byte_level)
    reading = made.read(QUESTION, PASSAGES)
    ends = {0: ["Ahab", "Ahab was", "Ahab was one", "Ahab was one.", "was", "was one", "was one.",
                "one", "one."],
            1: ["Ahab", "Ahab,", "Ahab,”", "Ahab,” he", "Ahab,” he said", "Ahab,” he said.", "he",
                "he said", "he said.", "said", "said."],
            4: ["x"]}  # fmt: skip
    for number, spans in ends.items():
        before = made.prompt.ids(QUESTION, PASSAGES[number])
        known = {
            span: max(
                log_probability(byte_model, before, list(ids))
                for ids in (made.prompt.answer_ids(span), made.prompt.answer_ids(span)[1:])
            )
            for span in spans
        }
        found = reading.span(number)
        assert found is not None
        best = max(known, key=lambda span: known[span])
        assert one_line(PASSAGES[number][found.start : found.end]) == best
        assert found.log_probability == pytest.approx(known[best], abs=1e-3)


@pytest.mark.parametrize("count", [1, 5])
def test_examples_are_read_once_and_before_each_passage(
    byte_model: Any, byte_level: Any, count: int
) -> None:
    examples = [WorkedExample(passage="The cat sat.", question="Who?", answer="cat")]
    shown = PassagePrompt(byte_level, PROMPT, UNANSWERED, examples)
    plain = PassagePrompt(byte_level, PROMPT, UNANSWERED)
    plain.ids = shown.ids  # type: ignore[method-assign]
    found = [
        PassageReader(byte_model, one, None).read(QUESTION, PASSAGES[:count])
        for one in (shown, plain)
    ]
    assert found[0].log_odds == pytest.approx(found[1].log_odds, abs=1e-3)
    spans = [one.span(0) for one in found]
    assert spans[0] is not None
    assert spans[1] is not None
    assert (spans[0].start, spans[0].end) == (spans[1].start, spans[1].end)
    bare = reader(byte_model, byte_level).read(QUESTION, PASSAGES[:count])
    assert bare.log_odds != pytest.approx(found[0].log_odds, abs=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_offsets_are_those_of_the_original(byte_level: Any, make_model: Any, seed: int) -> None:
    made = reader(make_model("llama", seed=seed, vocab_size=300), byte_level)
    passage = (
        "\n\n 「鯨」は 白い。\n\tHe  said:\r\n“Thar\u2003she\u00a0blows!”  It's\nold-time 42.\n"
    )
    found = made.read(QUESTION, [passage, passage * 2]).span(0)
    assert found is not None
    text = passage[found.start : found.end]
    assert text == text.strip()
    assert one_line(text) in one_line(passage)
    again = made.read(QUESTION, [one_line(passage)]).span(0)
    assert again is not None
    assert one_line(passage)[again.start : again.end] == one_line(text)


def test_no_words_no_span(byte_model: Any, byte_level: Any) -> None:
    reading = reader(byte_model, byte_level).read("?!", ["…", "", " \n"])
    assert len(reading.log_odds) == 3
    assert [reading.span(n) for n in range(3)] == [None] * 3


def test_no_passages(byte_model: Any, byte_level: Any) -> None:
    assert reader(byte_model, byte_level).read(QUESTION, []).log_odds == []


def test_the_end_of_a_passage_beyond_the_window_is_not_read(
    byte_model: Any, byte_level: Any
) -> None:
    long = "He walks about and says no more. " * 40
    made = reader(byte_model, byte_level, context=256)
    reading = made.read(QUESTION, [long, "Ahab was one.", "y" * 900])
    assert max(reading._batch._lengths) <= 256 - span_search.LONGEST
    found = reading.span(0)
    assert found is not None
    assert long[found.start : found.end].strip()
    short = reader(byte_model, byte_level).read(QUESTION, ["Ahab was one."])
    assert reading.log_odds[1] == pytest.approx(short.log_odds[0], abs=1e-4)


def test_the_adapter_works_while_reading_alone(byte_model: Any, byte_level: Any) -> None:
    adapter = LoraAdapter.new(byte_model, rank=2, alpha=8, seed=3)
    for _, b in adapter.matrices.values():
        b.data.normal_(std=0.3)
    bare, adapted = reader(byte_model, byte_level), reader(byte_model, byte_level, adapter)
    want = bare.read(QUESTION, PASSAGES).log_odds
    with adapted.reading():
        assert adapted.read(QUESTION, PASSAGES).log_odds != pytest.approx(want, abs=1e-3)
    assert adapted.read(QUESTION, PASSAGES).log_odds == want
    with pytest.raises(KeyboardInterrupt), adapted.reading():
        raise KeyboardInterrupt
    assert bare.read(QUESTION, PASSAGES).log_odds == want
