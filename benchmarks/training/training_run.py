"""One training from texts to a folder of results: steps, checkpoints, scores and its record."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol

from question_pairs import TrainingText
from trainer import Trainer, TrainerSettings
from training_checkpoint import FILE, load_checkpoint, save_checkpoint
from training_folder import check_folder, finish_folder, writing_folder

from esa_cli.models.loading.load import LoadedModel
from esa_cli.system.files import lock_file_for_writing
from esa_cli.version import __version__

CHECKPOINT_S = 180.0
"""Seconds between checkpoints."""


class TrainingEvents(Protocol):
    """What a training reports while it runs."""

    def preparing(self, done: int, total: int) -> None:
        """Texts, or their pairs, that are prepared."""

    def step(self, trainer: Any) -> None: ...

    def scoring(self, text: str, done: int, total: int) -> None: ...

    def scored(self, scores: Sequence[Any], count: int, /) -> None:
        """Scores after so many steps or examples."""


class TrainingRun(ABC):
    """A model, what is trained on, and where the results go; subclasses are data classes.

    Args:
        settings: of the trainer. every: minutes of training after which held-out texts are scored,
            and before it, untrained; None only at the end.
    """

    loaded: LoadedModel
    texts: Sequence[TrainingText]
    held_out: Sequence[TrainingText]
    folder: Path
    settings: TrainerSettings
    every: float | None

    results: ClassVar[tuple[str, ...]]
    """What the training makes, for people, and its files."""

    def run(self, events: TrainingEvents, resume: bool = False) -> dict[str, Any]:
        """Trains, scores and writes; returns what `training.json` has.

        Raises:
            KeyboardInterrupt: the checkpoint has all steps so far.
            UsageError, DocumentError, ResourceError: as the checkpoint, the trainer and files.
        """
        with writing_folder(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with lock_file_for_writing(self.folder / FILE):
            check_folder(self.folder, resume, *self.results)
            kept, held_out = self._prepare(events)
            trainer = self._trainer(kept)
            if resume:
                trainer.state = load_checkpoint(
                    self.folder, trainer.trained(), trainer.optimiser, self._fixed()
                )
            with trainer.prepared():
                self._train(trainer, held_out, events)
            return self._finish(trainer)

    @abstractmethod
    def _prepare(self, events: TrainingEvents) -> tuple[list[Any], list[Any]]:
        """The texts to train on and those held out, prepared."""

    @abstractmethod
    def _trainer(self, texts: Sequence[Any]) -> Any:
        """The `Trainer`."""

    @abstractmethod
    def _write(self, trainer: Any) -> None:
        """Writes what was trained."""

    @abstractmethod
    def _scores(self, trainer: Any, held_out: Sequence[Any], events: TrainingEvents) -> list[Any]:
        """Scores of held-out texts, as data classes."""

    @abstractmethod
    def _inputs(self) -> dict[str, Any]:
        """What else a training that goes on must have in common."""

    @abstractmethod
    def _facts(self, trainer: Any) -> dict[str, Any]:
        """What else `training.json` has."""

    def _train(self, trainer: Trainer, held_out: Sequence[Any], events: TrainingEvents) -> None:
        saved, scored = time.monotonic(), trainer.state.seconds

        def after_step(trainer: Trainer) -> None:
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
            self._write(trainer)
        self._score(trainer, held_out, events)

    def _save(self, trainer: Trainer) -> None:
        save_checkpoint(
            self.folder, trainer.trained(), trainer.optimiser, trainer.state, self._fixed()
        )

    def _score(self, trainer: Trainer, held_out: Sequence[Any], events: TrainingEvents) -> None:
        state, name = trainer.state, self.settings.budget
        count = getattr(state, name)
        if not held_out or (state.scores and state.scores[-1][name] == count):
            return
        found = self._scores(trainer, held_out, events)
        state.scores.append({name: count, "texts": [asdict(one) for one in found]})
        events.scored(found, count)

    def _fixed(self) -> dict[str, Any]:
        """What a training that goes on must have in common; the budget may change."""
        settings = asdict(self.settings)
        del settings["minutes"], settings[self.settings.budget]
        return {
            **settings,
            "model": self.loaded.ref,
            **self._inputs(),
            "texts": {text.name: text.digest for text in self.texts},
            "held_out": {text.name: text.digest for text in self.held_out},
        }

    def _finish(self, trainer: Trainer) -> dict[str, Any]:
        state = trainer.state
        by_time = getattr(self.settings, self.settings.budget) is None
        record = {
            "esa": __version__,
            **self._fixed(),
            "dtype": str(self.loaded.dtype).removeprefix("torch."),
            "device": self.loaded.device.type,
            "minutes": self.settings.minutes if by_time else None,
            "pairs": sum(len(text.pairs) for text in self.texts),
            "epochs": state.epoch,
            "steps": state.steps,
            "examples": state.examples,
            "counts": dict(sorted(state.counts.items())),
            **self._facts(trainer),
            "seconds": round(state.seconds, 1),
            "losses": {name: round(loss, 4) for name, loss in sorted(state.losses.items())},
            "scores": state.scores,
        }
        finish_folder(self.folder, record)
        return record
