"""Examples are what they say: answers in passages, and passages without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from example_batches import ExampleBatches
from question_pairs import read_training_texts
from reader_examples import WORDS, ExampleText
from reader_pairs import write_text
from recurring_spans import BLANK, cloze_examples

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.task_sample import StableRandom
from esa_cli.qa.reading.span import PassagePrompt


class Words:
    """A tokenizer whose tokens are words and line ends."""

    ids: ClassVar[dict[str, int]] = {}

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        found = text.replace("\n", " \n ").split(" ")
        return {"input_ids": [self.ids.setdefault(word, len(self.ids)) for word in found if word]}

    def decode(self, ids: list[int]) -> str:
        return " ".join(list(self.ids)[one] for one in ids)


@pytest.fixture
def text(tmp_path: Path) -> ExampleText:
    (found,) = read_training_texts(*write_text(tmp_path, "one"))
    return ExampleText(found)


def batches(text: ExampleText, **changes: Any) -> ExampleBatches:
    prompt = PassagePrompt(Words(), "{passage} ? {question} :", "(not told)")
    options = {
        "batch": 4,
        "seed": 1,
        "wrong": 0.5,
        "swapped": 0.0,
        "cloze": 0.2,
        "longest": 500,
    } | changes
    return ExampleBatches([text], prompt, **options)


def test_right_passages_have_the_answer(text: ExampleText) -> None:
    rng = StableRandom(1)
    lengths = []
    for pair in text.pairs:
        if pair.answer is None:
            continue
        example = text.right(pair, rng)
        assert example is not None
        assert example.answer == text.text[slice(*pair.answer)]
        first, last = text.around(pair.answer, WORDS, rng)
        assert first <= pair.answer[0] < pair.answer[1] <= last
        assert example.answer in example.passage
        assert "\n" not in example.passage
        lengths.append(len(example.passage.split()))
    assert min(lengths) < 45 < 85 < max(lengths)
    assert max(lengths) <= WORDS[1] + 6


def test_wrong_windows_have_neither_the_answer_nor_the_passage(text: ExampleText) -> None:
    for pair in text.pairs:
        if pair.answer is None:
            continue
        answer, windows = text.text[slice(*pair.answer)], text.wrong_windows(pair)
        assert windows
        assert len(set(windows)) == len(windows)
        passage = " ".join(text.text[slice(*pair.passage)].split())
        for window in windows:
            assert f"{answer}." not in window
            assert window not in passage


def test_an_epoch(text: ExampleText) -> None:
    made = batches(text)
    first, again, other = made.examples(0), batches(text).examples(0), made.examples(1)
    assert first == again
    assert first != other
    sources = [example.source for example in first]
    assert sources.count("absent") == 6
    assert sources.count("pair") == 48
    assert 10 <= sources.count("wrong") <= 38
    for example in first:
        assert (example.answer is None) == (example.source in ("absent", "wrong")) or (
            example.source == "cloze"
        )
        assert example.answer is None or example.answer in example.passage


def test_swapped_questions(text: ExampleText) -> None:
    found = batches(text, swapped=1.0).examples(0)
    swapped = [example for example in found if example.source == "swapped"]
    assert len(swapped) > 20
    asked = [set(pair.question.strip("?").split()) for pair in text.pairs]
    for example in swapped:
        assert example.answer is None
        words = set(example.question.strip("?").split())
        nearest = max(asked, key=lambda other: len(words & other))
        assert len(words & nearest) >= len(words) - 1
        assert all(new not in example.passage.split() for new in words - nearest)


def test_cloze_questions(text: ExampleText) -> None:
    found = list(cloze_examples([text], 80, StableRandom(2)))
    assert len(found) == 80
    for example in found:
        assert example.question.count(BLANK) == 1
        if example.answer is not None:
            assert example.answer in example.passage
            whole = example.question.replace(BLANK, example.answer)
            assert whole in " ".join(text.text.split())
    assert 8 <= sum(example.answer is None for example in found) <= 32


def test_batches_are_of_about_one_length_and_long_examples_are_counted(text: ExampleText) -> None:
    made = batches(text, batch=8)
    epoch = made.epoch(0)
    assert made.left_out == 0
    spread = [max(map(len, batch)) - min(map(len, batch)) for batch in epoch]
    assert sum(spread) / len(spread) < 20
    cut = batches(text, longest=60)
    assert all(len(example) <= 60 for batch in cut.epoch(0) for example in batch)
    assert cut.left_out == len(cut.examples(0)) - sum(len(batch) for batch in cut.epoch(0)) > 0
    with pytest.raises(UsageError, match="at most 3 tokens, got none"):
        batches(text, longest=3).epoch(0)
