"""Trainings of tiny models: what goes in against plain loops, losses that fall, files that load."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reader_batches
import torch
import train_finder as finder
import training_data
from adapter_files import new_adapter
from conftest import ModelFactory
from crops import EDGE, cut_crops
from question_pairs import AnswerPair, TrainingText, draw_pairs, read_training_texts
from reader_batches import ReaderBatches, ReaderSettings
from reader_pairs import write_text
from safetensors.torch import load_file
from small_llama import SmallLlama
from train_reader import HEAD, WRONG_WINDOWS, train_reader
from training_data import ABSENT, TrainingData, load_training_data
from training_loop import RECORD, Training
from training_program import TrainingJob
from wrong_windows import COUNT, find_nearest_windows, find_wrong_windows

from esa_cli.errors import UsageError
from esa_cli.models.loading.load import LoadedModel
from esa_cli.models.text_passes.text_forward import (
    CONFIG,
    WEIGHTS,
    LoraAdapter,
    normalise_hidden_states,
)
from esa_cli.qa.finding.finder import CONTEXT_TOKENS, TokenEncoder
from esa_cli.qa.presets.preset_files import MAPS

pytestmark = pytest.mark.training

FINDER = finder.FinderSettings(
    steps=6, lr=1e-2, warm_up=2, layers=2, rank=2, dim=8, segments=2, questions=24
)
READER = ReaderSettings(steps=6, lr=1e-2, warm_up=2, rank=4, tokens=2400)


@pytest.fixture
def job(loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingJob:
    """A job with two small texts, whose tokens are bytes."""
    monkeypatch.setattr(reader_batches, "LENGTHS", (300, 600, 1000))
    monkeypatch.setattr(reader_batches, "POOL", 30)
    write_text(tmp_path, "one")
    texts = read_training_texts(*write_text(tmp_path, "two", hour=3))
    return TrainingJob(loaded, texts, tmp_path)


@pytest.fixture
def data(job: TrainingJob) -> TrainingData:
    return load_training_data(job.texts, job.loaded.tokenizer, "tiny", job.folder / "data.npz")


def to_folder(job: TrainingJob, name: str, **changes: Any) -> TrainingJob:
    (job.folder / name).mkdir(exist_ok=True)
    return replace(job, folder=job.folder / name, **changes)


def test_tokens_are_those_of_the_texts(job: TrainingJob, data: TrainingData) -> None:
    decode, pair = job.loaded.tokenizer.decode, 0
    for number, text in enumerate(job.texts):
        line = " ".join(text.text.split())
        assert decode(data.texts[number].ids.tolist()) == text.text
        assert decode(data.lines[number].ids.tolist()) == line
        for one in text.pairs:
            answer, (first, last) = one.answer or one.passage, data.pairs.line_answers[pair]
            assert line[first:last] == " ".join(text.text[slice(*answer)].split())
            assert (data.pairs.kind[pair] == ABSENT) == (one.answer is None)
            pair += 1
    again = load_training_data(job.texts, None, "tiny", job.folder / "data.npz")
    for name, array in data.to_arrays().items():
        assert np.array_equal(array, again.to_arrays()[name]), name


def test_single_spaces() -> None:
    text = "  One\n\n two\t three \n"
    line, places = training_data.collapse_with_places(text)
    assert line == "One two three"
    for at, letter in enumerate(text):
        assert letter.isspace() or line[places[at]] == letter


def test_right_windows_of_a_finder(data: TrainingData) -> None:
    pairs, seen = data.pairs, {True: 0, False: 0}
    questions = np.arange(len(pairs.text))
    windows = [
        (number, int(first), int(last) - cut)
        for number, text in enumerate(data.texts) for cut in (0, 60)
        for first, last in text.windows
    ]  # fmt: skip
    right = finder.find_right_windows(data, questions, np.array(windows))
    for question in questions:
        answer, passage = ({*range(*spans[question])} for spans in (pairs.answers, pairs.passages))
        for at, (number, *bounds) in enumerate(windows):
            tokens = {*range(*bounds)}
            if pairs.kind[question] == ABSENT:
                told = 2 * len(tokens & passage) >= len(tokens)
            else:
                told = len(tokens & answer) >= finder.SHARE * len(answer)
            assert right[question, at] == (told and number == pairs.text[question])
            seen[bool(right[question, at])] += 1
    assert min(seen.values()) > 50


def test_steps_of_a_finder(data: TrainingData) -> None:
    """The tokens of a right window have the answer's first half."""
    pairs, count, forms = data.pairs, len(data.pairs.text), ("finder", "finder_lower")
    prompts = [*(data.prompts[form][n] for form in forms for n in range(count))]
    numbers = {tuple(one[: finder.QUESTION_TOKENS]): n % count for n, one in enumerate(prompts)}
    for step in range(3):
        (batch,) = finder.FinderBatches(data, FINDER)[step]
        tokens = batch["ids"][:, CONTEXT_TOKENS:].flatten().numpy()
        assert batch["right"].any(1).all()
        for row, right in enumerate(batch["right"].numpy()):
            prompt = batch["question_ids"][row, : batch["lengths"][row]].tolist()
            pair = numbers[tuple(prompt)]
            first, last = pairs.answers[pair]
            half = data.texts[pairs.text[pair]].ids[first : (first + last) // 2].astype(np.uint8)
            for window in np.flatnonzero(right) if batch["kind"][row] != ABSENT else ():
                low, high = (finder.BLOCK * int(batch[end][window]) for end in ("first", "last"))
                assert half.tobytes() in tokens[low:high].astype(np.uint8).tobytes()


def test_window_maxima() -> None:
    values = torch.randn(70, 3)
    first = torch.tensor([0, 5, 69, 38, 40])
    last = torch.tensor([1, 12, 70, 70, 40])
    best = finder.find_window_maxima(values, first, last)
    for row, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        assert torch.equal(best[row], values[low : max(high, low + 1)].amax(0))


def test_rows_of_a_reader(job: TrainingJob, data: TrainingData) -> None:
    decode, settings = job.loaded.tokenizer.decode, replace(READER, swapped=1.0)
    wrong = np.tile([2, 4, -1], (len(data.pairs.text), 1))
    batches = ReaderBatches(data, job.loaded.tokenizer, settings, wrong)
    pairs = [(text, pair) for text in job.texts for pair in text.pairs]
    for number, (text, pair) in enumerate(pairs):
        first, *others = batches.make_rows(number, np.random.default_rng(number))
        start, end = first.passage
        passage = decode(first.ids[start:end].tolist())
        assert passage.strip() in " ".join(text.text.split())
        assert decode(first.ids[end:].tolist()) == training_data.AFTER_PASSAGE
        assert (first.answer is None) == (pair.answer is None)
        if pair.answer and first.answer:
            low, high = first.answer
            assert decode(first.ids[low : high + 1].tolist()) == text.text[slice(*pair.answer)]
            swapped, *wrongs = others
            assert decode(swapped.ids[slice(*swapped.passage)].tolist()) == passage
            assert 1 <= len(wrongs) <= 2
        assert not any(row.answer for row in others)
    for batch in [one for group in range(4) for one in batches[group]]:
        right, *others = batch["groups"].T
        assert {*right[right >= 0].tolist()} == {*batch["has"].nonzero()[:, 0].tolist()}
        assert not any(batch["has"][one[one >= 0]].any() for one in others)


def test_states_are_those_of_transformers(make_model: ModelFactory) -> None:
    model = make_model("llama")
    adapter = new_adapter(model, rank=3, alpha=6)
    for _, b in adapter.matrices.values():
        b.data.normal_(std=0.1)
    llama = SmallLlama(model, 2, adapter, {})
    ids, lengths = torch.randint(61, (2, 9)), torch.tensor([9, 5])
    causal = llama.compute_states(llama.merge_weights(), ids)
    full = llama.compute_states(llama.merge_weights(), ids, lengths)
    states = list[torch.Tensor]()
    model.model.layers[-1].register_forward_hook(lambda _, __, out: states.append(out))
    with adapter.apply():
        model(ids)
        for row, length in enumerate(lengths.tolist()):
            model(ids[row : row + 1, :length], attention_mask=torch.zeros(1, 1, length, length))
    expected, *rows = map(normalise_hidden_states, states)
    torch.testing.assert_close(causal, expected, atol=1e-4, rtol=1e-4)
    for row, one in enumerate(rows):
        torch.testing.assert_close(full[row, : one.shape[1]], one[0], atol=1e-4, rtol=1e-4)
    again = llama.make_adapter().matrices
    assert all(torch.equal(again[name][1], b) for name, (_, b) in adapter.matrices.items())


def test_a_finder_and_a_reader(
    job: TrainingJob, data: TrainingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both learn one batch, and the package can load what they write."""
    for kind in (finder.FinderBatches, ReaderBatches):
        draw = kind.__getitem__
        monkeypatch.setattr(kind, "__getitem__", lambda self, _, draw=draw: draw(self, 0)[:1])
    loaded, folder = job.loaded, to_folder(job, "finder").folder
    folders = [str(job.folder / name) for name in ("pairs", "texts")]
    options = "--model random:llama --dtype float32 --steps 1 --lr 0.01 --warm-up 2 --layers 2"
    options += f" --rank 2 --dim 8 --segments 2 --questions 24 --out {job.folder / 'untrained'}"
    finder.main([*folders, *options.split()])
    untrained = json.loads((job.folder / "untrained" / RECORD).read_text())
    record = finder.train_finder(data, replace(FINDER, steps=30), to_folder(job, "finder"))
    assert record["losses"]["plain"] < 0.8 * untrained["losses"]["plain"]
    assert sorted(one.name for one in folder.iterdir()) == sorted([CONFIG, WEIGHTS, MAPS, RECORD])
    assert record["texts"]["one"] == job.texts[0].digest
    encoder = TokenEncoder.load(folder, loaded.model, loaded.tokenizer)
    wrong = find_wrong_windows(job.texts, data, encoder)
    for number, row in enumerate(wrong):
        first, last = data.pairs.passages[number]
        for low, high in data.texts[data.pairs.text[number]].windows[row[row >= 0]]:
            assert high <= first or low >= last
    assert (wrong[data.pairs.kind == ABSENT] == -1).all()
    assert (wrong >= 0).any()
    by_words = find_wrong_windows(job.texts, data, None)
    assert (by_words[data.pairs.kind == ABSENT] == -1).all()
    assert not np.array_equal(by_words, wrong)
    inner = to_folder(job, "reader", finder=folder)
    before = train_reader(data, replace(READER, steps=1), to_folder(job, "bare"))
    record = train_reader(data, replace(READER, steps=15), inner)
    assert record["losses"]["span"] < 0.8 * before["losses"]["span"]
    head, hidden = load_file(inner.folder / HEAD), loaded.model.config.hidden_size
    sizes = {name: one.numel() for name, one in head.items()}
    assert sizes == {"start": hidden, "end": hidden, "has": hidden, "bias": 1}
    assert LoraAdapter.load(inner.folder, loaded.model).scale == 2.0
    assert not (inner.folder / WRONG_WINDOWS).exists()
    # A training that goes on from the result begins with its losses.
    again = replace(to_folder(job, "again", finder=folder), start=inner.folder)
    after = train_reader(data, replace(READER, steps=1), again)
    assert after["losses"]["span"] < before["losses"]["span"]
    again = replace(to_folder(job, "finder again"), start=folder)
    after = finder.train_finder(data, replace(FINDER, steps=1), again)
    assert after["losses"]["plain"] < 0.8 * untrained["losses"]["plain"]


def test_nearest_windows(data: TrainingData) -> None:
    near, pairs = find_nearest_windows(data), data.pairs
    for pair, row in enumerate(near.tolist()):
        first, last = pairs.passages[pair].tolist()
        windows = data.texts[pairs.text[pair]].windows.tolist()
        away = [
            (abs((a + b) - (first + last)), number)
            for number, (a, b) in enumerate(windows)
            if b <= first or a >= last
        ]
        expected = [] if pairs.kind[pair] == ABSENT else sorted(away)[:COUNT]
        distances = [abs(sum(windows[number]) - first - last) for number in row if number >= 0]
        assert distances == [distance for distance, _ in expected]
        assert set(row) - {-1} <= {number for _, number in away}


def test_fewer_english_texts(data: TrainingData) -> None:
    """With a share of 0 a finder learns from the other texts only."""
    settings = replace(FINDER, english=0.0, step_texts=1)
    for number in range(4):
        for batch in finder.FinderBatches(data, settings, [0])[number]:
            tokens = data.texts[1].ids.astype(np.uint8).tobytes()
            assert batch["ids"][0].numpy().astype(np.uint8).tobytes().strip(b"\0") in tokens


def test_fewer_pairs_of_other_styles() -> None:
    """All natural questions are drawn, and a third of the others, the same ones for a seed."""
    pairs = tuple(
        AnswerPair(str(at), "absent", f"Why {at}?", None, (0, 4), "natural" if at % 5 == 0 else "")
        for at in range(1000)
    )
    texts = [TrainingText("one", "text", pairs, "1"), TrainingText("two", "text", pairs[1:5], "2")]
    drawn, again = (draw_pairs(texts, share, 3) for share in (1 / 3, 1 / 3))
    natural = [pair for pair in drawn[0].pairs if pair.style]
    assert drawn == again
    assert len(natural) == 200
    assert 220 < len(drawn[0].pairs) - 200 < 314
    assert drawn[0].digest != draw_pairs(texts, 1 / 3, 4)[0].digest
    (only,) = draw_pairs(texts, 0.0, 3)
    assert only.pairs == pairs[::5]


def test_sentences_of_a_text_without_questions() -> None:
    sentences = [f"Sentence {number} says something about ship {number}." for number in range(1500)]
    text = TrainingText("book", " ".join(sentences), (), "")
    content, pairs = cut_crops(text)
    assert len(pairs) > 50
    for pair in pairs:
        place = text.text.index(pair["question"])
        assert EDGE <= place < len(text.text) - EDGE
        assert pair["question"] not in content
        number = int(pair["question"].split()[1])
        expected = f"{sentences[number - 1]} {sentences[number + 1]}"
        assert content[slice(*pair["answer"])] == expected


def test_sentences_as_questions() -> None:
    """Put back between its neighbours, each sentence gives the text that it was taken from."""
    sentences = [f"The boat number {n} has lain at the pier {7 * n} since May." for n in range(60)]
    text = " ".join(sentences)
    whole = AnswerPair("1", "absent", "Where?", None, (0, len(text)))
    content, pairs = cut_crops(TrainingText("boats", text, (whole,), ""))
    taken = [sentences.index(pair["question"]) for pair in pairs]
    assert len(taken) > 5
    assert taken == sorted(taken)
    for n, pair in zip(taken, pairs, strict=True):
        assert content[slice(*pair["answer"])] == f"{sentences[n - 1]} {sentences[n + 1]}"
    assert content == " ".join(one for n, one in enumerate(sentences) if n not in taken)


@pytest.mark.parametrize("kind", ["finder", "reader"])
def test_a_training_goes_on(
    kind: str, job: TrainingJob, data: TrainingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = FINDER if kind == "finder" else READER
    train: Callable[..., Any] = finder.train_finder if kind == "finder" else train_reader
    whole, cut = to_folder(job, "whole"), to_folder(job, "cut")
    record, make_step = train(data, settings, whole), Training._make_step

    def stop(self: Training, batch: Any) -> None:
        make_step(self, batch)
        if self.steps == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "_make_step", stop)
    with pytest.raises(KeyboardInterrupt):
        train(data, settings, cut)
    with pytest.raises(UsageError, match="no checkpoint yet"):
        train(data, settings, cut)
    with pytest.raises(UsageError, match="seed must be that of the checkpoint"):
        train(data, replace(settings, seed=2), replace(cut, resume=True))
    again = train(data, settings, replace(cut, resume=True))
    assert {**again, "seconds": 0} == {**record, "seconds": 0}
    for path in whole.folder.glob("*.safetensors"):
        assert path.read_bytes() == (cut.folder / path.name).read_bytes()
    with pytest.raises(UsageError, match="losses must be finite"):
        train(data, replace(settings, lr=float("nan")), to_folder(job, "broken"))
