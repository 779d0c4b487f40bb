"""One training from the folders of pairs and texts to the adapter, in a folder of its own.

The folder gets `adapter_config.json` and `adapter_model.safetensors`, as peft writes them, and
`training.json`: the settings, the data's digests and the scores. Until it is finished it has a
checkpoint, from which it goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from adapter_files import save_adapter
from example_batches import ExampleBatches
from question_pairs import TrainingText
from ranked_windows import RankedWindows
from reader_examples import ExampleText
from reader_scores import ReaderScores, score_text
from reader_trainer import ReaderTrainer, ReaderTrainingSettings
from training_run import TrainingEvents, TrainingRun

from esa_cli.models.loading.load import LoadedModel
from esa_cli.models.text_passes.text_forward import CONFIG, WEIGHTS, LoraAdapter
from esa_cli.qa.reading.span import PassagePrompt, PassageReader

RESULTS = ("adapter", CONFIG, WEIGHTS)
"""What a training makes, and its files."""


@dataclass(frozen=True)
class StartAdapter:
    """An adapter that is trained on; `digest` is the SHA-256 of its matrices' file."""

    adapter: LoraAdapter
    digest: str

    @classmethod
    def load(cls, folder: Path, model: Any) -> StartAdapter:
        """Raises ModelError: the folder has no adapter of this model."""
        adapter = LoraAdapter.load(folder, model)
        with (folder / WEIGHTS).open("rb") as file:
            return cls(adapter, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class ReaderRun(TrainingRun):
    """A model, what it is trained on, and where the adapter goes.

    Args:
        every: minutes of training after which held-out texts are scored, and before it, by the
            bare model or with `start`; None only at the end.
        windows: by the text's name, what wrong windows are drawn from; elsewhere it is BM25's best.
        start: the adapter that is trained on; None: a new one.
    """

    loaded: LoadedModel
    prompt: PassagePrompt
    texts: Sequence[TrainingText]
    held_out: Sequence[TrainingText]
    folder: Path
    settings: ReaderTrainingSettings
    every: float | None = None
    windows: Mapping[str, RankedWindows] = field(default_factory=dict)
    start: StartAdapter | None = None

    results: ClassVar = RESULTS

    def _prepare(self, events: TrainingEvents) -> tuple[list[ExampleText], list[ExampleText]]:
        """The texts with their windows, wrong ones found."""
        ranked = {name: one.windows for name, one in self.windows.items()}
        kept = [ExampleText(text, ranked.get(text.name)) for text in self.texts]
        held_out = [ExampleText(text, ranked.get(text.name)) for text in self.held_out]
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
            swapped=settings.swapped, cloze=settings.cloze, longest=settings.longest,
        )  # fmt: skip
        start = self.start.adapter if self.start else None
        return ReaderTrainer(self.loaded.model, batches, settings, start)

    def _write(self, trainer: ReaderTrainer) -> None:
        save_adapter(trainer.adapter, self.folder, self.loaded.ref)

    def _scores(
        self, trainer: ReaderTrainer, held_out: Sequence[ExampleText], events: TrainingEvents
    ) -> list[ReaderScores]:
        reader = PassageReader(self.loaded.model, self.prompt, None)
        return [score_text(text, reader, partial(events.scoring, text.name)) for text in held_out]

    def _inputs(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt.template,
            "unanswered": self.prompt.unanswered,
            "start": self.start.digest if self.start else None,
            "windows": {name: one.digest for name, one in sorted(self.windows.items())},
        }

    def _facts(self, trainer: ReaderTrainer) -> dict[str, Any]:
        return {"left_out": trainer.batches.left_out}
