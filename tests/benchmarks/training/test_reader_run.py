"""Training a reader: the loss falls, a resumed training is bit-equal, scores are what they say."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reader_examples
import recurring_spans
import torch
from answer_logits import answer_logits, answer_losses
from conftest import ModelFactory
from example_batches import TokenExample
from question_pairs import read_training_texts, split_texts
from reader_pairs import ANIMALS, write_text
from reader_run import ReaderRun, StartAdapter
from reader_trainer import ReaderTrainingSettings
from safetensors.torch import load_file
from training_checkpoint import FILE
from training_events import Events
from training_folder import RECORD

from esa_cli.errors import UsageError
from esa_cli.models.loading.load import LoadedModel
from esa_cli.models.text_passes.text_forward import CONFIG, WEIGHTS, LoraAdapter
from esa_cli.qa.reading.span import PassagePrompt

pytestmark = pytest.mark.training

TEMPLATE = "{passage}\n{question}\nA:"
FEW = ReaderTrainingSettings(
    examples=48, rank=4, lr=1e-2, warm_up=2, batch=8, swapped=0.0, cloze=0.2, longest=500
)


@pytest.fixture
def run(loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReaderRun:
    """Of short texts and windows: long ones train no differently."""
    monkeypatch.setattr(reader_examples, "WORDS", (10, 25))
    monkeypatch.setattr(recurring_spans, "WINDOW_WORDS", (10, 25))
    write_text(tmp_path, "one", animals=ANIMALS[:4])
    folders = write_text(tmp_path, "two", hour=3, animals=ANIMALS[:4])
    kept, held_out = split_texts(read_training_texts(*folders), ["two"])
    prompt = PassagePrompt(loaded.tokenizer, TEMPLATE, "(not told)")
    return ReaderRun(loaded, prompt, kept, held_out, tmp_path / "out", FEW)


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / WEIGHTS)


def same(one: Path, other: Path) -> bool:
    return (one / WEIGHTS).read_bytes() == (other / WEIGHTS).read_bytes()


def test_training_lowers_the_loss_and_leaves_the_model_as_it_was(
    run: ReaderRun, make_model: ModelFactory
) -> None:
    """Of a model with larger weights: with a fixed output layer, small ones bound the loss."""
    model = make_model("llama", vocab_size=259)
    run = replace(run, loaded=replace(run.loaded, text_model=model))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [weight.requires_grad for weight in model.parameters()]
    events = Events()
    record = replace(run, held_out=(), settings=replace(FEW, examples=240)).run(events)
    assert record["losses"]["pair"] < 0.7 * events.losses[4]
    assert events.prepared == (30, 30)
    assert [weight.requires_grad for weight in model.parameters()] == flags
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(layer._forward_hooks for layer in model.modules())
    adapter = LoraAdapter.load(run.folder, model)
    assert adapter.scale == 2.0
    assert any(b.abs().max() > 0 for _, b in adapter.matrices.values())
    assert sorted(path.name for path in run.folder.iterdir()) == sorted([CONFIG, WEIGHTS, RECORD])


def test_an_adapter_is_trained_on(run: ReaderRun, tmp_path: Path) -> None:
    first = replace(run, held_out=())
    first.run(Events())
    start = StartAdapter.load(first.folder, run.loaded.model)
    barely = replace(FEW, examples=8, lr=1e-9)
    other = replace(first, folder=tmp_path / "on", start=start, settings=barely)
    record = other.run(Events())
    assert record["start"] == hashlib.sha256((first.folder / WEIGHTS).read_bytes()).hexdigest()
    before, after = weights(first.folder), weights(other.folder)
    assert all(torch.equal(before[name], after[name]) for name in before)
    interrupted = replace(other, folder=tmp_path / "cut", settings=FEW)
    with pytest.raises(KeyboardInterrupt):
        interrupted.run(Events(2))
    with pytest.raises(UsageError, match="start must be that of the checkpoint"):
        replace(interrupted, start=None).run(Events(), resume=True)


def test_a_resumed_training_is_bit_equal(run: ReaderRun, tmp_path: Path) -> None:
    whole, cut = replace(run, held_out=()), replace(run, held_out=(), folder=tmp_path / "cut")
    done = whole.run(Events())
    for until in (2, 5):
        with pytest.raises(KeyboardInterrupt):
            cut.run(Events(until), resume=until > 2)
        assert [path.name for path in cut.folder.iterdir()] == [FILE]
    again = cut.run(Events(), resume=True)
    assert same(whole.folder, cut.folder)
    assert (again["steps"], again["losses"]) == (done["steps"], done["losses"])
    assert 48 <= again["examples"] == sum(again["counts"].values()) < 56
    for changed in (
        replace(cut, settings=replace(FEW, rank=2)),
        replace(cut, prompt=PassagePrompt(run.loaded.tokenizer, TEMPLATE + " ", "no")),
    ):
        with pytest.raises(UsageError):
            changed.run(Events(), resume=True)
    other = replace(run, held_out=(), folder=tmp_path / "other", settings=replace(FEW, seed=2))
    other.run(Events())
    assert not same(whole.folder, other.folder)


def examples(lengths: Sequence[tuple[int, int]]) -> list[TokenExample]:
    """Random examples of so many prompt and answer tokens."""
    made = (torch.randint(61, (before + after,)).tolist() for before, after in lengths)
    return [
        TokenExample(ids[:before], ids[before:], "pair")
        for ids, (before, _) in zip(made, lengths, strict=True)
    ]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_answer_logits_are_those_of_each_example_alone(make_model: ModelFactory, kind: str) -> None:
    model = make_model(kind)
    batch = examples([(7, 3), (12, 1), (2, 5)])
    logits, targets, rows = answer_logits(model, batch)
    assert rows.tolist() == [0] * 3 + [1] + [2] * 5
    assert targets.tolist() == [one for example in batch for one in example.answer]
    alone = [
        model(torch.tensor([one.prompt + one.answer])).logits[0, len(one.prompt) - 1 : -1]
        for one in batch
    ]
    torch.testing.assert_close(logits, torch.cat(alone), atol=1e-4, rtol=1e-4)
    picked = torch.cat(alone).log_softmax(-1)[range(9), targets]
    losses, again = answer_losses(model, batch)
    assert again.tolist() == rows.tolist()
    torch.testing.assert_close(losses, -picked, atol=1e-4, rtol=1e-4)
