"""One training from the folders of pairs and texts to the finder, in a folder of its own.

The folder gets the finder's files and `training.json`: the settings, the data's digests and the
scores. Until it is finished it has a checkpoint, from which it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from esa_cli.errors import UsageError
from esa_cli.evaluation.finder_training.finder_batches import FinderBatches
from esa_cli.evaluation.finder_training.finder_scores import FinderScores, score_finder
from esa_cli.evaluation.finder_training.finder_texts import FinderText
from esa_cli.evaluation.finder_training.finder_trainer import FinderTrainer, FinderTrainingSettings
from esa_cli.evaluation.reader_training.training_checkpoint import (
    FILE,
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
from esa_cli.qa.finding.token_encoder import MAPS, PROMPT, TokenEncoder
from esa_cli.system.files import only_writer
from esa_cli.version import __version__

CHECKPOINT_S = 180.0
"""Seconds between checkpoints."""
RESULTS = ("finder", CONFIG, WEIGHTS, MAPS)
"""What a training makes, and its files."""


class FinderRunEvents(Protocol):
    """What a training reports while it runs."""

    def preparing(self, done: int, total: int) -> None:
        """Texts that are tokenised."""

    def step(self, trainer: FinderTrainer) -> None: ...

    def scoring(self, text: str, done: int, total: int) -> None: ...

    def scored(self, scores: Sequence[FinderScores], steps: int) -> None: ...


def check_sizes(settings: FinderTrainingSettings, config: Mapping[str, Any] | None = None) -> None:
    """Refuses layers that the adapter cannot have, and reduced keys that are none.

    Args:
        config: of the model, where it is known.

    Raises:
        UsageError.
    """
    if settings.first >= settings.layers:
        raise UsageError(
            f"--first must be below --layers, got {settings.first} and {settings.layers}",
            "the adapter changes the layers from --first to --layers",
        )
    if settings.dim % 2:
        raise UsageError(f"--dim must be even, got {settings.dim}", f"try --dim {settings.dim + 1}")
    if config is None:
        return
    layers, size = config["num_hidden_layers"], config["hidden_size"]
    if settings.layers > layers:
        raise UsageError(
            f"--layers must be at most the model's {layers}, got {settings.layers}",
            f"try --layers {max(1, layers // 2)} --first {layers // 4}",
        )
    if settings.dim > size:
        raise UsageError(
            f"--dim must be at most the model's hidden size {size}, got {settings.dim}",
            f"try --dim {size // 4}",
        )


@dataclass(frozen=True)
class FinderRun:
    """A model, what its finder is trained on, and where the finder goes.

    Args:
        every: minutes of training after which held-out texts are scored, and before it, by the
            untrained finder; None only at the end.
    """

    loaded: LoadedModel
    texts: Sequence[TrainingText]
    held_out: Sequence[TrainingText]
    folder: Path
    settings: FinderTrainingSettings
    every: float | None = None

    def run(self, events: FinderRunEvents, resume: bool = False) -> dict[str, Any]:
        """Trains, scores and writes; returns what `training.json` has.

        Raises:
            KeyboardInterrupt: the checkpoint has all steps so far.
            UsageError, DocumentError, ResourceError: as the checkpoint, the trainer and files.
        """
        check_sizes(self.settings, self.loaded.model.config.to_dict())
        with writing_folder(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with only_writer(self.folder / FILE):
            check_folder(self.folder, resume, *RESULTS)
            kept, held_out = self._prepare(events)
            trainer = self._trainer(kept)
            if resume:
                trainer.state = load_checkpoint(
                    self.folder, trainer.trained(), trainer.optimiser, self._fixed()
                )
            with trainer.prepared():
                self._train(trainer, held_out, events)
            return self._finish(trainer)

    def _prepare(self, events: FinderRunEvents) -> tuple[list[FinderText], list[FinderText]]:
        """The texts with their tokens."""
        found: list[FinderText] = []
        total = len(self.texts) + len(self.held_out)
        for text in (*self.texts, *self.held_out):
            found.append(FinderText(text, self.loaded.tokenizer))
            events.preparing(len(found), total)
        return found[: len(self.texts)], found[len(self.texts) :]

    def _trainer(self, texts: Sequence[FinderText]) -> FinderTrainer:
        settings, loaded = self.settings, self.loaded
        batches = FinderBatches(texts, batch=settings.batch, seed=settings.seed)
        encoder = TokenEncoder.new(
            loaded.model, loaded.tokenizer, layers=settings.layers, first=settings.first,
            rank=settings.rank, dim=settings.dim, seed=settings.seed,
        )  # fmt: skip
        return FinderTrainer(encoder, batches, settings)

    def _train(
        self, trainer: FinderTrainer, held_out: Sequence[FinderText], events: FinderRunEvents
    ) -> None:
        saved, scored = time.monotonic(), trainer.state.seconds

        def after_step(trainer: FinderTrainer) -> None:
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
            trainer.encoder.save(self.folder, self.loaded.ref)
        self._score(trainer, held_out, events)

    def _save(self, trainer: FinderTrainer) -> None:
        save_checkpoint(
            self.folder, trainer.trained(), trainer.optimiser, trainer.state, self._fixed()
        )

    def _score(
        self, trainer: FinderTrainer, held_out: Sequence[FinderText], events: FinderRunEvents
    ) -> None:
        state = trainer.state
        if not held_out or (state.scores and state.scores[-1]["steps"] == state.steps):
            return
        found: list[FinderScores] = []
        for text in held_out:
            found += score_finder(text, trainer.encoder, partial(events.scoring, text.name))
        state.scores.append({"steps": state.steps, "texts": [asdict(one) for one in found]})
        events.scored(found, state.steps)

    def _fixed(self) -> dict[str, Any]:
        """What a training that goes on must have in common; the budget may change."""
        settings = asdict(self.settings)
        del settings["minutes"], settings["steps"]
        return {
            **settings,
            "model": self.loaded.ref,
            "prompt": PROMPT,
            "texts": {text.name: text.digest for text in self.texts},
            "held_out": {text.name: text.digest for text in self.held_out},
        }

    def _finish(self, trainer: FinderTrainer) -> dict[str, Any]:
        state = trainer.state
        record = {
            "esa": __version__,
            **self._fixed(),
            "dtype": str(self.loaded.dtype).removeprefix("torch."),
            "device": self.loaded.device.type,
            "minutes": self.settings.minutes if self.settings.steps is None else None,
            "passages": sum(len(text.passages) for text in trainer.batches.texts),
            "pairs": sum(len(text.pairs) for text in self.texts),
            "epochs": state.epoch,
            "steps": state.steps,
            "examples": state.examples,
            "counts": dict(sorted(state.counts.items())),
            "seconds": round(state.seconds, 1),
            "losses": {name: round(loss, 4) for name, loss in sorted(state.losses.items())},
            "scores": state.scores,
        }
        finish_folder(self.folder, record)
        return record
