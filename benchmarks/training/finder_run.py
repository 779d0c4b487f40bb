"""One training from the folders of pairs and texts to the finder, in a folder of its own.

The folder gets the finder's files and `training.json`: the settings, the data's digests and the
scores. Until it is finished it has a checkpoint, from which it goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from adapter_files import adapter_rank
from finder_batches import FinderBatches
from finder_encoder import first_layer, new_finder, save_finder
from finder_scores import FinderScores, score_finder
from finder_texts import FinderText
from finder_trainer import FinderTrainer, FinderTrainingSettings
from question_pairs import TrainingText
from training_run import TrainingEvents, TrainingRun

from esa_cli.errors import ModelError, UsageError
from esa_cli.models.loading.load import LoadedModel
from esa_cli.models.text_passes.text_forward import CONFIG, WEIGHTS
from esa_cli.qa.finding.finder import PROMPT, TokenEncoder
from esa_cli.qa.presets.preset import MAPS

RESULTS = ("finder", CONFIG, WEIGHTS, MAPS)
"""What a training makes, and its files."""


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
class StartFinder:
    """A finder that is trained on; `digest` is the SHA-256 of its files of weights."""

    encoder: TokenEncoder
    digest: str

    @classmethod
    def load(cls, folder: Path, model: Any, tokenizer: Any) -> StartFinder:
        """Raises ModelError: the folder has no finder of this model."""
        try:
            encoder = TokenEncoder.load(folder, model, tokenizer)
        except ModelError as error:
            hint = "--start must be a folder that `train_finder.py` wrote for this model"
            raise ModelError(error.message, hint) from error
        files = (folder / name for name in (WEIGHTS, MAPS))
        return cls(encoder, hashlib.sha256(b"".join(map(Path.read_bytes, files))).hexdigest())

    def sizes(self, settings: FinderTrainingSettings) -> FinderTrainingSettings:
        """Settings with the sizes of this finder."""
        encoder = self.encoder
        return replace(
            settings, layers=encoder.layers, first=first_layer(encoder),
            rank=adapter_rank(encoder.adapter), dim=encoder.dim,
        )  # fmt: skip


@dataclass(frozen=True)
class FinderRun(TrainingRun):
    """A model, what its finder is trained on, and where the finder goes.

    Args:
        settings: with the sizes of `start`. every: minutes of training after which held-out texts
            are scored, and before it, by the untrained finder or `start`; None only at the end.
        start: the finder that is trained on; None: a new one.
    """

    loaded: LoadedModel
    texts: Sequence[TrainingText]
    held_out: Sequence[TrainingText]
    folder: Path
    settings: FinderTrainingSettings
    every: float | None = None
    start: StartFinder | None = None

    results: ClassVar = RESULTS

    def run(self, events: TrainingEvents, resume: bool = False) -> dict[str, Any]:
        """As `TrainingRun.run`. Raises UsageError, too: as `check_sizes`."""
        check_sizes(self.settings, self.loaded.model.config.to_dict())
        return super().run(events, resume)

    def _prepare(self, events: TrainingEvents) -> tuple[list[FinderText], list[FinderText]]:
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
        if self.start is not None:
            return FinderTrainer(self.start.encoder, batches, settings)
        encoder = new_finder(
            loaded.model, loaded.tokenizer, layers=settings.layers, first=settings.first,
            rank=settings.rank, dim=settings.dim, seed=settings.seed,
        )  # fmt: skip
        return FinderTrainer(encoder, batches, settings)

    def _write(self, trainer: FinderTrainer) -> None:
        save_finder(trainer.encoder, self.folder, self.loaded.ref)

    def _scores(
        self, trainer: FinderTrainer, held_out: Sequence[FinderText], events: TrainingEvents
    ) -> list[FinderScores]:
        found: list[FinderScores] = []
        for text in held_out:
            found += score_finder(text, trainer.encoder, partial(events.scoring, text.name))
        return found

    def _inputs(self) -> dict[str, Any]:
        if self.start is None:
            return {"prompt": PROMPT, "start": None}
        return {"prompt": self.start.encoder.prompt, "start": self.start.digest}

    def _facts(self, trainer: FinderTrainer) -> dict[str, Any]:
        return {"passages": sum(len(text.passages) for text in trainer.batches.texts)}
