"""Questions of a batch, answered by the workers of an engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esa_cli.apps.batch.batch_questions import BatchQuestion, Group, groups
from esa_cli.apps.batch.batch_run import answer_groups
from esa_cli.apps.cli.options.options import ModelOptions, load_plugins
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.engine import Engine
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.reading.reader_choice import ReaderChoice
from esa_cli.system.jsonl import OrderedJsonLines

MOST_TASKS = 64
"""Tasks that the questions about one set of documents are divided into at most."""

AnsweredRows = list[tuple[int, dict[str, Any]]]
"""Rows with the indices of their questions."""


@dataclass(frozen=True)
class BatchWorker:
    """Answers questions about the same documents with the keyword arguments `asking` of `Esa.ask`;
    `library` is a folder that all machines share."""

    preset: Preset
    model: ModelOptions
    keep: bool | None
    reader: ReaderChoice | None
    asking: Mapping[str, Any]
    library: Path

    @contextmanager
    def open(self, reporter: Reporter) -> Iterator[Callable[[Group], AnsweredRows]]:
        from esa_cli.apps.cli.open_esa import opened
        from esa_cli.storage.library import Library

        def warn(text: str) -> None:
            reporter.warn(f"esa: {text}")

        load_plugins(self.model.plugins)
        with opened(
            self.preset, self.model, reporter, keep=self.keep, reader=self.reader,
            library=Library(self.library),
        ) as esa:  # fmt: skip
            yield lambda group: list(answer_groups(esa, [group], self.asking, warn))


def batch_by(
    engine: Engine,
    worker: BatchWorker,
    questions: Sequence[BatchQuestion],
    answers: OrderedJsonLines,
    end: int,
    progress: Callable[[], None],
) -> None:
    """Answers those of the first `end` questions that have no row, as `batch_run.run_batch`."""
    left = groups(questions, lambda index: index < end and not answers.has(index))
    most = math.ceil(sum(map(len, left)) / MOST_TASKS)
    tasks = (group[at : at + most] for group in left for at in range(0, len(group), most))
    for rows in engine.run(worker, tasks):
        for index, row in rows:
            answers.add(index, row)
            progress()
