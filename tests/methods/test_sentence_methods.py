"""InfiniRetri, ReContext, BM25, and votes with BM25 added, against loops, and in a session."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import reference
import torch
from conftest import build_step

from esa_cli.attention.step import ChunkTrace, Step
from esa_cli.attention.window import QueryState, QuestionAndText
from esa_cli.methods.bm25 import Bm25Score
from esa_cli.methods.consensus import FusedConsensusSelector, select_windows, standardise_scores
from esa_cli.methods.sentences import (
    PhraseAttentionScore,
    WholeSentenceSelector,
    find_sentence_starts,
    sum_scores_over_phrases,
)
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import replace_method

HEADS, GROUPS, DIM, CHUNK, DISTANCE = 4, 2, 8, 5, 29


def a_step(middle: int, pieces: Sequence[str] | None = None, low: int = 3) -> Step:
    q, k = torch.randn(HEADS, CHUNK, DIM), torch.randn(GROUPS, middle, DIM)
    step = build_step(q, k, low=low, after=2, distance=DISTANCE)
    text = None if pieces is None else QuestionAndText("Where is the fox?", lambda: pieces)
    return replace(step, query=QueryState(text=text))


# The score of InfiniRetri


def plain_phrases(step: Step, queries: Sequence[int], phrase: int) -> list[float]:
    """Softmax over M of every head and query, added up; then over the phrase, one by one."""
    q = reference.rotate_heads(reference.plain(step.queries), DISTANCE)
    k = reference.plain(step.store.span(step.low, step.high)[0])
    weights = [0.0] * step.middle
    for head in range(HEADS):
        keys = k[reference.group_of(head, HEADS, GROUPS)]
        for c in queries:
            logits = [reference.dot(q[head][c], key) * step.scale for key in keys]
            top = torch.tensor(logits, dtype=torch.float64).softmax(dim=0).tolist()
            weights = [a + b for a, b in zip(weights, top, strict=True)]
    before, after = phrase // 2, phrase - 1 - phrase // 2
    return [
        sum(weights[j] for j in range(m - before, m + after + 1) if 0 <= j < len(weights))
        for m in range(len(weights))
    ]


@pytest.mark.parametrize("phrase", [1, 2, 3, 8])
@pytest.mark.parametrize("middle", [1, 7, 40])
def test_phrase_scores_are_attention_added_up(middle: int, phrase: int) -> None:
    step = a_step(middle)
    found = PhraseAttentionScore(phrase).scores(step)
    assert found.tolist() == pytest.approx(plain_phrases(step, range(CHUNK), phrase), rel=1e-4)


def test_only_the_questions_own_words_count() -> None:
    step = a_step(30)
    step = replace(step, query=QueryState(question=(step.start + 1, step.start + 3)))
    want = plain_phrases(step, [1, 2], 8)
    assert PhraseAttentionScore().scores(step).tolist() == pytest.approx(want, rel=1e-4)


def test_only_the_last_layer_scores() -> None:
    step = replace(a_step(20), layers=(1, 4, 5), layer=4)
    assert not PhraseAttentionScore().scores(step).any()
    assert PhraseAttentionScore().for_single_layers().scores(step).all()
    assert PhraseAttentionScore().scores(replace(step, layer=5)).all()
    assert PhraseAttentionScore().last_layer is None
    assert sum_scores_over_phrases(torch.empty(0), 8).shape == (0,)


# Whole sentences


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ('One two. Three four? "Five!" Six', ["One", " Three", ' "Five', " Six"]),
        ("Number 3.5 is one.Two\nlines\n\nand more", ["Number", "and"]),
        ("鲸。鱼！ 海", ["鲸", "鱼", " 海"]),
        ("no end", ["no"]),
    ],
)
def test_sentences(text: str, starts: list[str]) -> None:
    pieces = list(text)
    at = find_sentence_starts(pieces).tolist()
    assert at == [*(text.index(start) for start in starts), len(text)]


def test_a_token_on_both_sides_of_an_end_belongs_to_the_first() -> None:
    assert find_sentence_starts(["One", ". Two", " three", ". "]).tolist() == [0, 2, 4]
    assert find_sentence_starts([]).tolist() == [0]


def plain_sentences(
    scores: Sequence[float], borders: Sequence[int], tokens: int, budget: int
) -> list[int]:
    ranked = sorted(range(len(scores)), key=lambda m: -scores[m])[:tokens]
    taken: set[int] = set()
    for token in ranked:
        if token in taken or scores[token] == min(scores):
            continue
        first = max(border for border in borders if border <= token)
        last = min(border for border in borders if border > token)
        left = budget - len(taken)
        if last - first > left:
            first = min(max(first, token - left // 2), last - left)
            last = first + left
        taken |= set(range(first, last))
    return sorted(taken)


@pytest.mark.parametrize("budget", [1, 5, 20, 59])
@pytest.mark.parametrize("tokens", [1, 3, 300])
def test_the_best_tokens_sentences_are_selected_whole(tokens: int, budget: int) -> None:
    low, middle = 3, 60
    pieces = [f" w{i}" + "." * (i % 7 == 6) for i in range(low + middle + 4)]
    step = a_step(middle, pieces, low)
    scores = torch.rand(middle)
    borders = [0, *(at - low for at in range(7, low + middle, 7)), middle]
    found = WholeSentenceSelector(tokens=tokens).select_best_tokens(scores, step, budget)
    assert found.tolist() == plain_sentences(scores.tolist(), borders, tokens, budget)


def test_tokens_behind_the_documents_and_without_text() -> None:
    step = a_step(60, [" w."] * 3 + [" w"] * 20)
    scores = torch.zeros(60)
    scores[40] = 1.0
    assert WholeSentenceSelector().select_best_tokens(scores, step, 50).tolist() == list(
        range(20, 60)
    )
    assert WholeSentenceSelector().select_best_tokens(scores, a_step(60), 50).tolist() == list(
        range(32, 60)
    )
    assert WholeSentenceSelector().select_best_tokens(torch.zeros(60), step, 50).tolist() == []


# Votes and words


def plain_standard(scores: Sequence[float], size: int) -> list[float]:
    means = [sum(scores[i : i + size]) / size for i in range(len(scores) - size + 1)]
    mean = sum(means) / len(means)
    spread = (sum((one - mean) ** 2 for one in means) / len(means)) ** 0.5
    return [(score - mean) / spread for score in scores]


@pytest.mark.parametrize("size", [1, 4, 9])
def test_windows_are_standardised(size: int) -> None:
    scores = torch.rand(40)
    found = standardise_scores(scores, size)
    assert found.tolist() == pytest.approx(plain_standard(scores.double().tolist(), size))
    assert standardise_scores(torch.full((9,), 0.1), size).tolist() == [0] * 9
    assert standardise_scores(torch.full((9,), float("-inf")), size).tolist() == [0] * 9
    scores[3] = float("-inf")
    lowest = scores.masked_fill(scores.isneginf(), float(scores[scores.isfinite()].min()))
    assert torch.equal(standardise_scores(scores, size), standardise_scores(lowest, size))


def test_votes_and_words_are_added() -> None:
    pieces = [" fox" if i % 37 == 20 else " hen" for i in range(200)]
    step, votes = a_step(190, pieces), torch.rand(190)
    words = Bm25Score(layers="all").scores(step)
    both = [
        a + 0.5 * b
        for a, b in zip(
            plain_standard(votes.double().tolist(), 16),
            plain_standard(words.double().tolist(), 16),
            strict=True,
        )
    ]
    fused = FusedConsensusSelector(passage=16, share=0.5, weight=0.5)
    want = select_windows(torch.tensor(both, dtype=torch.float64), 48, 16, 0.5)
    late = replace(step, layer=7)
    assert fused.select_best_tokens(votes, late, 48).tolist() == want.tolist()
    none = replace(fused, weight=0.0).select_best_tokens(votes, late, 48)
    silent = fused.select_best_tokens(votes, replace(late, query=QueryState()), 48)
    assert none.tolist() == silent.tolist(), "without words, votes alone"


# In a session


TEXT = "".join(f"The gate number {i} opens at nine. Nobody knows why! " for i in range(30))


@pytest.mark.parametrize("name", ["infiniretri", "recontext", "esa-consensus-bm25"])
def test_every_layer_attends_to_the_same_sentences(loaded: Any, name: str) -> None:
    base = load_preset("tiny-random", ["window.dense=0", "window.selected=100"])
    chosen: dict[int, set[int]] = {}

    def trace(chunk: ChunkTrace) -> None:
        assert isinstance(chunk.far, torch.Tensor)
        chosen[chunk.layer] = set(chunk.far.tolist()) - set(range(chunk.low))

    with Session(loaded.model, loaded.tokenizer, replace_method(name, base)) as session:
        session.read(TEXT)
        head = len(session.prompt.encode_prompt_start())
        session.ask("When does gate number 9 open?", max_new_tokens=3, trace=trace)
    assert chosen[0] == chosen[1]
    assert 0 < len(chosen[0]) <= 100
    if name != "esa-consensus-bm25":
        assert len(chosen[0]) == 100, "whole sentences, the last one cut"
        starts = {int(at) + head for at in find_sentence_starts(list(TEXT))}
        runs = [at for at in chosen[0] if at - 1 not in chosen[0]]
        assert len(set(runs) - starts) <= 1


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
BM25_TEXT = FILLER * 20 + "A fox met Möle 鲸. " + FILLER * 20
"""The tiny tokenizer has one token for each byte."""


def chosen(loaded: Any, question: str, overrides: Sequence[str] = ()) -> list[set[int]]:
    """Positions that each layer selects for the question's chunk."""
    base = load_preset("tiny-random", ["window.dense=0", "window.selected=64", *overrides])
    found: list[set[int]] = []

    def trace(chunk: ChunkTrace) -> None:
        if not chunk.decoding and isinstance(chunk.far, torch.Tensor):
            found.append(set(chunk.far.tolist()) - set(range(chunk.low)))

    with Session(loaded.model, loaded.tokenizer, replace_method("bm25", base)) as session:
        session.read(BM25_TEXT)
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
    first = len(BM25_TEXT[: BM25_TEXT.index(word)].encode())
    for layer in found:
        assert len(layer) == 64
        assert set(range(first, first + len(word.encode()))) <= layer
