"""The score `bm25` against BM25 written as loops over windows and words, and in a session."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from conftest import build_step

from esa_cli.attention.step import ChunkTrace, Step
from esa_cli.attention.window import QueryState, QuestionAndText
from esa_cli.methods.bm25 import Bm25Score
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import replace_method

LOW, WINDOW = 3, 8
QUESTION = "Where is the fox, and where the mole?"
ANIMALS = ["fox", "mole", "hen", "toad", "elk", "the", "ant"]


def plain_scores(pieces: Sequence[str], question: str, window: int) -> list[float]:
    """Every token's best window, counted by hand: words of one token, no endings to take off."""
    half, skipped = window // 2, {"the", "is", "and", "where"}

    def words(text: str) -> list[str]:
        return [word for word in re.findall("[a-z]+", text.lower()) if word not in skipped]

    ends = range(0, max(1, len(pieces) - half), half)
    windows = [(at, words("".join(pieces[at : at + window]))) for at in ends]
    mean = sum(len(found) for _, found in windows) / len(windows)
    best = [0.0] * len(pieces)
    for at, found in windows:
        score = 0.0
        for word in words(question):
            having = sum(word in other for _, other in windows)
            idf = math.log(1 + (len(windows) - having + 0.5) / (having + 0.5))
            count = found.count(word)
            score += idf * count / (count + 1.5 * (1 - 0.75 + 0.75 * len(found) / mean))
        for token in range(at, min(at + window, len(pieces))):
            best[token] = max(best[token], score)
    return best


def story(tokens: int, seed: int = 0) -> list[str]:
    draw = Random(seed)
    return [f" {draw.choice(ANIMALS)}" for _ in range(tokens)]


def asked(pieces: Sequence[str], question: str = QUESTION, middle: int = 0, layer: int = 0) -> Step:
    """A step whose tokens have these pieces: LOW before M, M, and what is left."""
    middle = middle or len(pieces) - LOW
    step = build_step(torch.randn(4, 2, 8), torch.randn(2, middle, 8), low=LOW, after=2)
    text = QuestionAndText(question, lambda: pieces)
    return replace(step, layer=layer, query=QueryState(text=text))


@pytest.mark.parametrize("tokens", [4, 7, 8, 9, 12, 13, 50, 203])
def test_scores_are_bm25_of_the_best_window(tokens: int) -> None:
    pieces = story(tokens)
    want = plain_scores(pieces, QUESTION, WINDOW)[LOW:]
    assert Bm25Score(WINDOW).scores(asked(pieces)).tolist() == pytest.approx(want, rel=1e-5)


def test_a_word_of_several_tokens_belongs_to_the_first() -> None:
    pieces = ["a"] * 11 + [" fo", "x", "", " hen"] + [" a"] * 9
    scores = Bm25Score(4).scores(asked(pieces, "fox"))
    assert torch.nonzero(scores)[:, 0].tolist() == [i - LOW for i in range(8, 14)]


def test_no_shared_word_no_text_and_later_layers_score_nothing() -> None:
    pieces = story(40)
    assert not Bm25Score(WINDOW).scores(asked(pieces, "Who swam?")).any()
    assert not Bm25Score(WINDOW).scores(asked(pieces, "")).any()
    assert not Bm25Score(WINDOW).scores(asked([], middle=30)).any()
    silent = replace(asked(pieces), query=QueryState())
    assert Bm25Score(WINDOW).scores(silent).tolist() == [0] * silent.middle
    later = asked(pieces, layer=3)
    assert not Bm25Score(WINDOW).scores(later).any()
    every = Bm25Score(WINDOW).for_single_layers()
    assert every.scores(later).any()
    assert (Bm25Score().last_layer, every.last_layer) == (0, None)


# In a session


FILLER = "The hen walked over the long road and saw a toad. "
TEXT = FILLER * 20 + "A fox met Möle 鲸. " + FILLER * 20
"""The tiny tokenizer has one token for each byte."""


def chosen(loaded: Any, question: str, overrides: Sequence[str] = ()) -> list[set[int]]:
    """Positions that each layer selects for the question's chunk."""
    base = load_preset("tiny-random", ["window.dense=0", "window.selected=64", *overrides])
    found: list[set[int]] = []

    def trace(chunk: ChunkTrace) -> None:
        if not chunk.decoding and isinstance(chunk.far, torch.Tensor):
            found.append(set(chunk.far.tolist()) - set(range(chunk.low)))

    with Session(loaded.model, loaded.tokenizer, replace_method("bm25", base)) as session:
        session.read(TEXT)
        head = len(session.prompt.encode_prompt_start())
        session.ask(question, max_new_tokens=2, trace=trace)
        twice = list(found)
        found.clear()
        session.ask(question, max_new_tokens=2, trace=trace)
        assert found == twice
    return [{at - head for at in one} for one in twice if one]


@pytest.mark.parametrize(
    ("question", "word"), [("Who is the fox?", "fox"), ("MÖLE?", "Möle"), ("鲸?", "鲸")]
)
def test_a_session_selects_the_window_with_the_word(loaded: Any, question: str, word: str) -> None:
    found = chosen(loaded, question)
    assert len(found) == 2, "both layers"
    first = len(TEXT[: TEXT.index(word)].encode())
    for layer in found:
        assert len(layer) == 64
        assert set(range(first, first + len(word.encode()))) <= layer
