"""One training from the folders of pairs and texts to the adapter, in a folder of its own.

The folder gets `adapter_config.json` and `adapter_model.safetensors`, as peft writes them, and
`training.json`: the settings, the data's digests and the scores. Until it is finished it has a
checkpoint, from which it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from esa_cli.evaluation.reader_training.example_batches import ExampleBatches
from esa_cli.evaluation.reader_training.reader_examples import ExampleText
from esa_cli.evaluation.reader_training.reader_scores import ReaderScores, score_text
from esa_cli.evaluation.reader_training.reader_trainer import ReaderTrainer, ReaderTrainingSettings
from esa_cli.evaluation.reader_training.training_checkpoint import (
    FILE,
    adapter_tensors,
    load_checkpoint,
    save_checkpoint,
)
from esa_cli.evaluation.reader_training.training_folder import (
    check_folder,
    finish_folder,
    writing_folder,
)
from esa_cli.evaluation.reader_training.training_pairs import TrainingText
from esa_cli.models.load import LoadedModel
from esa_cli.models.lora_adapter import CONFIG, WEIGHTS
from esa_cli.qa.reading.passage_prompt import PassagePrompt
from esa_cli.qa.reading.passage_reader import PassageReader
from esa_cli.system.files import only_writer
from esa_cli.version import __version__

CHECKPOINT_S = 180.0
"""Seconds between checkpoints."""
RESULTS = ("adapter", CONFIG, WEIGHTS)
"""What a training makes, and its files."""


class RunEvents(Protocol):
    """What a training reports while it runs."""

    def preparing(self, done: int, total: int) -> None:
        """Pairs whose wrong windows are found."""

    def step(self, trainer: ReaderTrainer) -> None: ...

    def scoring(self, text: str, done: int, total: int) -> None: ...

    def scored(self, scores: Sequence[ReaderScores], examples: int) -> None: ...


@dataclass(frozen=True)
class ReaderRun:
    """A model, what it is trained on, and where the adapter goes.

    Args:
        every: minutes of training after which held-out texts are scored, and before it, by the
            bare model; None only at the end.
    """

    loaded: LoadedModel
    prompt: PassagePrompt
    texts: Sequence[TrainingText]
    held_out: Sequence[TrainingText]
    folder: Path
    settings: ReaderTrainingSettings
    every: float | None = None

    def run(self, events: RunEvents, resume: bool = False) -> dict[str, Any]:
        """Trains, scores and writes; returns what `training.json` has.

        Raises:
            KeyboardInterrupt: the checkpoint has all steps so far.
            UsageError, DocumentError, ResourceError: as the checkpoint, the trainer and files.
        """
        with writing_folder(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with only_writer(self.folder / FILE):
            check_folder(self.folder, resume, *RESULTS)
            kept, held_out = self._prepare(events)
            trainer = self._trainer(kept)
            if resume:
                trainer.state = load_checkpoint(
                    self.folder, adapter_tensors(trainer.adapter), trainer.optimiser, self._fixed()
                )
            with trainer.prepared():
                self._train(trainer, held_out, events)
            return self._finish(trainer)

    def _prepare(self, events: RunEvents) -> tuple[list[ExampleText], list[ExampleText]]:
        """The texts with their windows, wrong ones found."""
        kept = [ExampleText(text) for text in self.texts]
        held_out = [ExampleText(text) for text in self.held_out]
        total = sum(len(text.pairs) for text in (*kept, *held_out))
        done = 0
        for text in (*kept, *held_out):
            for pair in text.pairs:
                if pair.answer:
                    text.wrong_windows(pair)
                done += 1
                events.preparing(done, total)
        return kept, held_out

    def _trainer(self, texts: Sequence[ExampleText]) -> ReaderTrainer:
        settings = self.settings
        batches = ExampleBatches(
            texts, self.prompt, batch=settings.batch, seed=settings.seed, wrong=settings.wrong,
            cloze=settings.cloze, longest=settings.longest,
        )  # fmt: skip
        return ReaderTrainer(self.loaded.model, batches, settings)

    def _train(
        self, trainer: ReaderTrainer, held_out: Sequence[ExampleText], events: RunEvents
    ) -> None:
        saved, scored = time.monotonic(), trainer.state.seconds

        def after_step(trainer: ReaderTrainer) -> None:
            nonlocal saved, scored
            events.step(trainer)
            seconds = trainer.state.seconds
            if self.every is not None and seconds - scored >= 60 * self.every:
                scored = seconds
                self._score(trainer, held_out, events)
            if time.monotonic() - saved >= CHECKPOINT_S:
                self._save(trainer)
                saved = time.monotonic()

        if self.every is not None and not trainer.state.steps:
            self._score(trainer, held_out, events)
        try:
            trainer.train(after_step)
        except KeyboardInterrupt:
            if trainer.whole and trainer.state.steps:
                self._save(trainer)
            raise
        self._save(trainer)
        with writing_folder(self.folder):
            trainer.adapter.save(self.folder, self.loaded.ref)
        self._score(trainer, held_out, events)

    def _save(self, trainer: ReaderTrainer) -> None:
        trained = adapter_tensors(trainer.adapter)
        save_checkpoint(self.folder, trained, trainer.optimiser, trainer.state, self._fixed())

    def _score(
        self, trainer: ReaderTrainer, held_out: Sequence[ExampleText], events: RunEvents
    ) -> None:
        state = trainer.state
        if not held_out or (state.scores and state.scores[-1]["examples"] == state.examples):
            return
        reader = PassageReader(self.loaded.model, self.prompt, None)
        found = [score_text(text, reader, partial(events.scoring, text.name)) for text in held_out]
        state.scores.append(
            {"examples": state.examples, "texts": [asdict(scores) for scores in found]}
        )
        events.scored(found, state.examples)

    def _fixed(self) -> dict[str, Any]:
        """What a training that goes on must have in common; the budget may change."""
        settings = asdict(self.settings)
        del settings["minutes"], settings["examples"]
        return {
            **settings,
            "model": self.loaded.ref,
            "prompt": self.prompt.template,
            "unanswered": self.prompt.unanswered,
            "texts": {text.name: text.digest for text in self.texts},
            "held_out": {text.name: text.digest for text in self.held_out},
        }

    def _finish(self, trainer: ReaderTrainer) -> dict[str, Any]:
        state = trainer.state
        record = {
            "esa": __version__,
            **self._fixed(),
            "dtype": str(self.loaded.dtype).removeprefix("torch."),
            "device": self.loaded.device.type,
            "minutes": self.settings.minutes if self.settings.examples is None else None,
            "pairs": sum(len(text.pairs) for text in self.texts),
            "epochs": state.epoch,
            "steps": state.steps,
            "examples": state.examples,
            "counts": dict(sorted(state.counts.items())),
            "left_out": trainer.batches.left_out,
            "seconds": round(state.seconds, 1),
            "losses": {name: round(loss, 4) for name, loss in sorted(state.losses.items())},
            "scores": state.scores,
        }
        finish_folder(self.folder, record)
        return record
