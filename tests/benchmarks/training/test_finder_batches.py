"""Crops of passages have their answers; an epoch has every passage once, in pairs of neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from finder_texts import CONTEXT, CROP_TOKENS, FinderText
from question_pairs import TrainingText, read_training_texts
from reader_pairs import write_text
from transformers import AutoTokenizer

from esa_cli.evaluation.tasks.task_sample import StableRandom
from esa_cli.models.files.random_model import write_byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def training(tmp_path: Path) -> TrainingText:
    return read_training_texts(*write_text(tmp_path, "one"))[0]


@pytest.fixture
def text(training: TrainingText, tokenizer: Any) -> FinderText:
    return FinderText(training, tokenizer)


def test_passages_are_the_texts(text: FinderText, training: TrainingText, tokenizer: Any) -> None:
    assert len(text.passages) == 6
    assert sum(len(passage.questions) for passage in text.passages) == len(training.pairs)
    for passage in text.passages:
        said = tokenizer.decode(text.ids[slice(*passage.tokens)])
        assert said == text.text[slice(*passage.characters)]
        answers = [one.answer for one in passage.questions]
        assert all(tokenizer.decode(text.ids[slice(*a)])[:3] == "at " for a in answers if a)
        assert answers.count(None) == 1


def test_crops_have_their_answers(text: FinderText) -> None:
    lengths, contexts, counts, absent = set(), set(), set(), set()
    for seed in range(300):
        passage = text.passages[seed % 6]
        crop = text.crop(passage, StableRandom("crop", seed))
        first, last = passage.tokens
        starts = [
            at for at in range(first, last) if at >= crop.start
            and text.ids[at - crop.start : at - crop.start + len(crop.ids)] == crop.ids
        ]  # fmt: skip
        assert starts, "the crop stands in the passage, behind its context"
        start, length = starts[0], len(crop.ids) - crop.start
        assert start + length <= last
        for one in crop.questions:
            if one.answer:
                assert start <= one.answer[0] < one.answer[1] <= start + length
        lengths.add(length)
        contexts.add(crop.start)
        counts.add(len(crop.questions))
        if crop.questions[0].answer is None:
            absent.add((passage.tokens, start))
    assert CROP_TOKENS[0] <= min(lengths) < max(lengths) <= CROP_TOKENS[1]
    assert len(lengths) > 50
    assert contexts == set(range(CONTEXT + 1))
    assert counts == {1, 2}
    assert len(absent) > 10
