"""Training a finder: the loss falls, a resumed training is bit-equal, scores are what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from finder_batches import FinderBatch
from finder_run import FinderRun, StartFinder
from finder_scores import FinderScores, PassageRanks, lexical_scores, ranks, score_finder
from finder_texts import FinderText
from finder_trainer import FinderTrainer, FinderTrainingSettings
from passage_scores import late_interaction
from question_pairs import read_training_texts, split_texts
from reader_pairs import write_text
from training_checkpoint import FILE
from training_events import Events
from training_folder import RECORD

from esa_cli.errors import UsageError
from esa_cli.models.loading.load import LoadedModel
from esa_cli.models.text_passes.text_forward import CONFIG, WEIGHTS
from esa_cli.qa.finding.finder import TokenEncoder
from esa_cli.qa.presets.preset import MAPS

pytestmark = pytest.mark.training

FEW = FinderTrainingSettings(steps=6, layers=2, first=1, rank=2, dim=8, lr=1e-2, warm_up=2, batch=3)


@pytest.fixture
def run(loaded: LoadedModel, tmp_path: Path) -> FinderRun:
    write_text(tmp_path, "one")
    folders = write_text(tmp_path, "two", hour=3)
    kept, held_out = split_texts(read_training_texts(*folders), ["two"])
    return FinderRun(loaded, kept, held_out, tmp_path / "out", FEW)


def same(one: Path, other: Path) -> bool:
    return all((one / n).read_bytes() == (other / n).read_bytes() for n in (WEIGHTS, MAPS))


def test_training_finds_held_out_passages_and_leaves_the_model_as_it_was(run: FinderRun) -> None:
    model = run.loaded.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [weight.requires_grad for weight in model.parameters()]
    events = Events()
    settings = replace(FEW, steps=40, first=0, rank=4, dim=16, batch=6)
    record = replace(run, settings=settings, every=60.0).run(events)
    assert events.prepared == (2, 2)
    assert record["losses"]["plain"] < 0.7 * events.losses[0]
    untrained, trained = (one["texts"][0]["all"]["first"] for one in record["scores"])
    assert untrained < 0.5 < trained
    assert [weight.requires_grad for weight in model.parameters()] == flags
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(layer._forward_hooks for layer in model.modules())
    files = sorted(path.name for path in run.folder.iterdir())
    assert files == sorted([CONFIG, WEIGHTS, MAPS, RECORD])
    encoder = TokenEncoder.load(run.folder, model, run.loaded.tokenizer)
    assert (encoder.layers, encoder.dim, encoder.adapter.scale) == (2, 16, 2.0)
    (scores, _) = score_finder(FinderText(run.held_out[0], run.loaded.tokenizer), encoder)
    assert scores.all is not None
    assert scores.all.first == pytest.approx(trained, abs=0.1)


def test_a_resumed_training_is_bit_equal(run: FinderRun, tmp_path: Path) -> None:
    whole, cut = replace(run, held_out=()), replace(run, held_out=(), folder=tmp_path / "cut")
    done = whole.run(Events())
    for until in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            cut.run(Events(until), resume=until > 1)
        assert [path.name for path in cut.folder.iterdir()] == [FILE]
    again = cut.run(Events(), resume=True)
    assert same(whole.folder, cut.folder)
    assert {**again, "seconds": 0} == {**done, "seconds": 0}
    other = replace(run, held_out=(), folder=tmp_path / "other", settings=replace(FEW, seed=2))
    other.run(Events())
    assert not same(whole.folder, other.folder)


def test_a_finder_is_trained_on(run: FinderRun, tmp_path: Path) -> None:
    first = replace(run, settings=replace(FEW, rank=3, dim=6), held_out=())
    first.run(Events())
    start = StartFinder.load(first.folder, run.loaded.model, run.loaded.tokenizer)
    settings = start.sizes(replace(FEW, steps=None, minutes=0, layers=1, first=0))
    assert (settings.layers, settings.first, settings.rank, settings.dim) == (2, 1, 3, 6)
    kept = replace(run, folder=tmp_path / "kept", settings=settings, start=start)
    record = kept.run(Events())
    assert record["start"] == start.digest
    assert same(first.folder, kept.folder)  # no step: the finder that it starts from
    on = replace(kept, folder=tmp_path / "on", settings=replace(settings, steps=2))
    assert on.run(Events())["start"] == start.digest
    assert not same(first.folder, on.folder)


def test_a_loss_that_is_no_number(run: FinderRun, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = FinderTrainer._losses

    def broken(self: FinderTrainer, batch: FinderBatch) -> torch.Tensor:
        return losses(self, batch) * float("nan")

    monkeypatch.setattr(FinderTrainer, "_losses", broken)
    with pytest.raises(UsageError, match="gradient must be finite") as error:
        run.run(Events())
    assert "--lr" in error.value.hint


def test_late_interaction_is_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(n, t, 5, generator=generator) for n, t in ((2, 3), (4, 6)))
    queries, keys = (torch.nn.functional.normalize(one, dim=-1) for one in (queries, keys))
    weights = torch.rand(2, 3, generator=generator)
    within = torch.rand(4, 6, generator=generator) < 0.6
    within[:, 0] = True
    found = late_interaction(queries, weights, keys, within)
    for b in range(2):
        for p in range(4):
            score = sum(
                float(weights[b, i])
                * max(float(queries[b, i] @ keys[p, j]) for j in range(6) if within[p, j])
                for i in range(3)
            )
            assert float(found[b, p]) == pytest.approx(score, abs=1e-5)


def test_scores_of_a_text(run: FinderRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a finder that knows: every passage first. Reworded questions are counted apart."""
    kinds = ["reworded" if at % 3 == 0 else one.kind for at, one in enumerate(run.texts[0].pairs)]
    pairs = [replace(one, kind=kind) for one, kind in zip(run.texts[0].pairs, kinds, strict=True)]
    text = FinderText(replace(run.texts[0], pairs=tuple(pairs)), run.loaded.tokenizer)
    reworded = sum(pair.kind == "reworded" and pair.answer is not None for pair in pairs)

    def oracle(
        text: FinderText, encoder: Any, questions: Sequence[Any], progress: Callable[..., None]
    ) -> torch.Tensor:
        return torch.tensor(
            [[float(one in p.questions) for p in text.passages] for one in questions]
        )

    monkeypatch.setattr("finder_scores.encoder_scores", oracle)
    encoder: Any = None
    found, lexical = score_finder(text, encoder)
    every = PassageRanks(48, 1.0, 1.0, 1.0)
    assert found == FinderScores("one", "finder", 6, every, replace(every, questions=reworded))
    assert lexical.by == "BM25"
    assert lexical.all == every, "each question names its town"
    unknown = replace(text.passages[0].questions[0], text="Zzz?")
    assert lexical_scores(text, [unknown]).tolist() == [[0.0] * 6]
    assert ranks(lexical_scores(text, [unknown]), torch.tensor([0])) == [3.5]
