"""The questions of `esa batch`, and how they are answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options.options import ModelOptions

if TYPE_CHECKING:
    from esa_cli.apps.batch.batch_questions import BatchQuestion
    from esa_cli.apps.cli.options.engine_options import EngineOptions
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.qa.second_model.reader_choice import ReaderChoice
    from esa_cli.system.ordered_jsonl import OrderedJsonLines

Begin = Callable[[], Callable[[], None]]
"""Called when the model is there; gives what is called after each row."""


@dataclass(frozen=True)
class BatchRequest:
    """Questions, and how they are answered.

    Args:
        asking: keyword arguments for `Asker.ask`.
    """

    preset: Preset
    model: ModelOptions
    keep: bool | None
    reader: ReaderChoice | None
    asking: Mapping[str, Any]
    questions: Sequence[BatchQuestion]
    reporter: Reporter

    def answer_here(self, answers: OrderedJsonLines, end: int, begin: Begin) -> None:
        """Answers the first `end` questions in this process. Raises EsaError."""
        from esa_cli.apps.batch.batch_run import run_batch
        from esa_cli.apps.cli.model_choice.open_esa import opened

        with opened(
            self.preset, self.model, self.reporter, keep=self.keep, reader=self.reader
        ) as asker:
            run_batch(
                asker, self.questions, answers, self.asking, limit=end, progress=begin(),
                say=lambda text: self.reporter.warn(f"esa: {text}"),
            )  # fmt: skip

    def answer_by(
        self, engines: EngineOptions, answers: OrderedJsonLines, end: int, begin: Begin
    ) -> None:
        """Answers the first `end` questions in the processes of an engine. Raises EsaError."""
        from esa_cli.apps.cli.model_choice.open_esa import prepare
        from esa_cli.apps.engine.batch_worker import BatchWorker, batch_by
        from esa_cli.storage.library.formats.library_paths import default_root

        prepare(self.preset, self.model, self.reporter, keep=self.keep)
        if self.reader is not None and self.reader.address is not None:
            to = self.reader.address.url
            self.reporter.note(f"esa: questions and the passages found are sent to {to}", dim=False)
        root = default_root().absolute()
        worker = BatchWorker(self.preset, self.model, self.keep, self.reader, self.asking, root)
        with engines.open(self.reporter, self.model.device) as engine:
            batch_by(engine, worker, self.questions, answers, end, begin())
