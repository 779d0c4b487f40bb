"""Training a reader: the loss falls, a resumed training is bit-equal, scores are what they say."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reader_examples
import reader_scores
import recurring_spans
import torch
import training_run
from answer_logits import answer_logits, answer_losses
from conftest import ModelFactory
from example_batches import TokenExample
from question_pairs import read_training_texts, split_texts
from reader_examples import ExampleText
from reader_pairs import ANIMALS, write_text
from reader_run import ReaderRun, StartAdapter
from reader_scores import ReaderScores, area_under_curve, score_text
from reader_trainer import ReaderTrainer, ReaderTrainingSettings
from safetensors.torch import load_file, save_file
from training_checkpoint import FILE, TrainingState
from training_events import Events
from training_folder import RECORD
from training_steps import training_attention

from esa_cli.errors import DocumentError, UsageError
from esa_cli.evaluation.metrics import bag_f1, bare_words
from esa_cli.models.loading.load import LoadedModel, load
from esa_cli.models.text_passes.lora_adapter import CONFIG, WEIGHTS, LoraAdapter
from esa_cli.qa.reading.span import PassagePrompt
from esa_cli.qa.reading.spans import Span

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
    run = replace(run, loaded=replace(run.loaded, model=model))
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_on_a_gpu(run: ReaderRun) -> None:
    torch.use_deterministic_algorithms(False)
    loaded = load(str(run.loaded.folder), device="cuda", dtype="bfloat16")
    on_gpu = replace(run, loaded=loaded)
    with pytest.raises(KeyboardInterrupt):
        on_gpu.run(Events(2))
    record = on_gpu.run(Events(), resume=True)
    assert record["device"] == "cuda"
    assert record["scores"][-1]["texts"][0]["auc"] is not None


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


def test_training_computes_attention_plainly_on_the_processor(run: ReaderRun) -> None:
    model = run.loaded.model
    before = model.config._attn_implementation
    with training_attention(model):
        assert model.config._attn_implementation == "eager"
    assert model.config._attn_implementation == before


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
    other = replace(run, held_out=(), folder=tmp_path / "other", settings=replace(FEW, seed=2))
    other.run(Events())
    assert not same(whole.folder, other.folder)


def test_the_record(run: ReaderRun) -> None:
    events = Events()
    record = run.run(events)
    assert json.loads((run.folder / RECORD).read_text("utf-8")) == record
    assert 48 <= record["examples"] == sum(record["counts"].values()) < 56
    assert record["pairs"] == 30
    assert record["prompt"] == TEMPLATE
    assert set(record["texts"]) == {"one"}
    assert set(record["held_out"]) == {"two"}
    assert events.shares[-1] == 1
    assert events.read == (30, 30)
    (report,) = events.reports
    (scores,) = report
    assert record["scores"] == [{"examples": record["examples"], "texts": [vars(scores)]}]
    assert scores.answered + scores.absent <= 30
    for share in (scores.exact, scores.f1, scores.missed, scores.auc, scores.noticed):
        assert share is not None
        assert 0 <= share <= 1


def test_scores_now_and_then(run: ReaderRun) -> None:
    events = Events()
    record = replace(run, every=0.0, settings=replace(FEW, examples=16)).run(events)
    assert record["scores"][-1]["examples"] == record["examples"]
    assert record["scores"][0]["examples"] == 0
    assert len(record["scores"]) == len(events.reports) == record["steps"] + 1


def test_an_interrupted_scoring_trains_no_further(
    run: ReaderRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Events, text: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Events, "scoring", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run(Events())
    monkeypatch.undo()
    before = (run.folder / WEIGHTS).read_bytes()
    events = Events()
    record = run.run(events, resume=True)
    assert events.losses == []
    assert len(record["scores"]) == 1
    assert (run.folder / WEIGHTS).read_bytes() == before


def test_checkpoints_now_and_then(run: ReaderRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_run, "CHECKPOINT_S", 0.0)

    class Killed(Exception):
        pass

    class Kill(Events):
        def step(self, trainer: ReaderTrainer) -> None:
            if trainer.state.steps == 3:
                raise Killed

    with pytest.raises(Killed):
        run.run(Kill())
    events = Events()
    steps = run.run(events, resume=True)["steps"]
    assert len(events.losses) == steps - 2


def test_folders_that_are_refused(run: ReaderRun) -> None:
    with pytest.raises(UsageError, match="a checkpoint to resume"):
        run.run(Events(), resume=True)
    with pytest.raises(KeyboardInterrupt):
        run.run(Events(1))
    with pytest.raises(UsageError, match="no adapter yet") as error:
        run.run(Events())
    assert "--resume" in error.value.hint
    for changed, words_ in (
        (replace(run, settings=replace(FEW, lr=1e-3)), "lr must be"),
        (replace(run, settings=replace(FEW, rank=2)), "rank must be"),
        (replace(run, held_out=()), "held_out must be"),
        (replace(run, prompt=PassagePrompt(run.loaded.tokenizer, TEMPLATE + " ", "no")), "prompt"),
    ):
        with pytest.raises(UsageError, match=words_):
            changed.run(Events(), resume=True)
    longer = replace(run, held_out=run.held_out, settings=replace(FEW, examples=16))
    assert longer.run(Events(), resume=True)["examples"] < 24
    with pytest.raises(UsageError, match="no adapter yet"):
        run.run(Events())


def test_damaged_checkpoints(run: ReaderRun) -> None:
    with pytest.raises(KeyboardInterrupt):
        run.run(Events(1))
    path = run.folder / FILE
    good = path.read_bytes()
    path.write_bytes(good[:1000])
    with pytest.raises(DocumentError, match="cannot be read"):
        run.run(Events(), resume=True)
    save_file({"x": torch.ones(1)}, path)
    with pytest.raises(DocumentError, match="cannot be read"):
        run.run(Events(), resume=True)
    path.write_bytes(good)
    assert run.run(Events(), resume=True)["examples"] >= 48


def test_a_loss_that_is_no_number(run: ReaderRun, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="gradient must be finite") as error:
        replace(run, settings=replace(FEW, lr=1e30)).run(Events())
    assert "--lr" in error.value.hint


def test_the_learning_rate() -> None:
    settings = ReaderTrainingSettings(minutes=10, lr=1.0, warm_up=4, final=0.1)
    rates = [
        settings.learning_rate(TrainingState(steps=steps, seconds=seconds))
        for steps, seconds in ((0, 0), (1, 0), (4, 0), (50, 300), (99, 600), (99, 9999))
    ]
    assert rates == pytest.approx([0.25, 0.5, 1.0, 0.55, 0.1, 0.1])
    assert replace(settings, examples=8).share(TrainingState(examples=4, seconds=999)) == 0.5


def examples(lengths: Sequence[tuple[int, int]]) -> list[TokenExample]:
    """Random examples of so many prompt and answer tokens."""
    made = (torch.randint(61, (before + after,)).tolist() for before, after in lengths)
    return [
        TokenExample(ids[:before], ids[before:], "pair")
        for ids, (before, _) in zip(made, lengths, strict=True)
    ]


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
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


def test_words_and_curves() -> None:
    assert bare_words("The “Old” Mill, 1851.") == ["old", "mill", "1851"]
    assert bag_f1(bare_words("an old mill"), bare_words("the mill")) == pytest.approx(2 / 3)
    assert bag_f1([], ["mill"]) == 0.0
    assert area_under_curve([3.0, 1.0], [0.0, 1.0, 2.0]) == pytest.approx((3 + 1.5) / 6)
    assert area_under_curve([float("inf")], [float("inf")]) == 0.5


class Oracle:
    """A reader that finds the hour a passage has for a question, and knows when there is none."""

    def read(self, question: str, passages: Sequence[str]) -> Oracle:
        thing = question.removeprefix("When naps ").rstrip("?")
        found = [re.search(rf"(?i:{thing}) naps by an elm (at \d+)", one) for one in passages]
        self.log_odds = [1.0 if one else -1.0 for one in found]
        self._found = found
        return self

    def span(self, number: int) -> Span | None:
        found = self._found[number]
        return Span(*found.span(1), 0.0) if found else None


def test_an_oracle_scores_all_points(run: ReaderRun) -> None:
    seen = []
    text = ExampleText(run.texts[0])
    oracle: Any = Oracle()
    scores = score_text(text, oracle, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (30, 30)
    assert scores == ReaderScores("one", 24, 1.0, 1.0, 0.0, 1.0, 6, 1.0)


def test_scores_of_many_pairs_are_of_some(run: ReaderRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_scores, "MOST", 20)
    text, oracle = ExampleText(run.texts[0]), Oracle()
    one, other = (score_text(text, oracle) for _ in range(2))  # type: ignore[arg-type]
    assert one == other
    assert one.answered + one.absent == 20
