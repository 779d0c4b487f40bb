"""The course of the commands that train, and what they show."""

from __future__ import annotations

import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from esa_cli.apps.cli.commands.training_request import TrainingRequest
from esa_cli.apps.cli.output.terminal import Reporter, print_json, print_table
from esa_cli.system.machine import time_text

if TYPE_CHECKING:
    from esa_cli.evaluation.training.training_checkpoint import TrainingState
    from esa_cli.evaluation.training.training_run import TrainingRun


class TrainingDisplay(ABC):
    """The `TrainingEvents` of a command: a spinner, or a line now and then."""

    prepares: ClassVar[str]
    """What is done before the training."""
    headers: ClassVar[tuple[str, ...]]
    use: ClassVar[tuple[str, ...]]
    """Settings that use what was trained, {} its folder."""

    def __init__(self, wanted: TrainingRequest, quiet: bool) -> None:
        self.wanted, self.reporter = wanted, Reporter(quiet)
        self._note = self.reporter.throttled()
        self._begun: tuple[float, float] | None = None

    @abstractmethod
    def pace(self, state: TrainingState) -> str:
        """How much was trained on, and how fast."""

    @abstractmethod
    def total(self, record: dict[str, Any]) -> str:
        """What was trained on."""

    @abstractmethod
    def row(self, text: dict[str, Any], scores: dict[str, Any]) -> list[str]:
        """Cells below the `headers`, of one text of the scores."""

    @abstractmethod
    def scored(self, scores: Sequence[Any], count: int, /) -> None: ...

    def train(self, opened: Callable[[Reporter], TrainingRun], as_json: bool) -> None:
        """Checks, trains, and prints the record."""
        from esa_cli.evaluation.training.training_checkpoint import FILE

        self.wanted.check()
        try:
            record = opened(self.reporter).run(self, self.wanted.resume)
        except KeyboardInterrupt:
            self.reporter.settle()
            if (self.wanted.folder / FILE).exists():
                self.reporter.note(
                    f"esa: {self.wanted.folder} has a checkpoint; --resume goes on from it"
                )
            raise
        finally:
            self.reporter.settle()
        if as_json:
            print_json(record)
        else:
            self._show(record)

    def preparing(self, done: int, total: int) -> None:
        self.reporter.stage(self.prepares, done, total)

    def step(self, trainer: Any) -> None:
        state, share = trainer.state, trainer.settings.share(trainer.state)
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, share
            return
        begun, before = self._begun
        left = (1 - share) * (now - begun) / max(share - before, 1e-9)
        losses = ", ".join(f"{name} {loss:.2f}" for name, loss in sorted(state.losses.items()))
        text = f"training: {share:.0%}, {self.pace(state)}, {time_text(left)} left; losses {losses}"
        if self.reporter.live:
            self.reporter.waiting(text)
        else:
            self._note(text)

    def scoring(self, text: str, done: int, total: int) -> None:
        self.reporter.stage(f"scoring {text}", done, total)

    def _show(self, record: dict[str, Any]) -> None:
        """Prints what was trained on, the scores of held-out texts, and how to use the result."""
        print(f"{self.total(record)} in {time_text(record['seconds'])}")
        rows = [self.row(one, scores) for scores in record["scores"] for one in scores["texts"]]
        if rows:
            print()
            print_table(self.headers, rows)
        folder = self.wanted.folder
        self.reporter.note(f"the {self.wanted.what} is in {folder}; use it with", dim=False)
        use = [word for setting in self.use for word in ("--set", setting.format(folder))]
        self.reporter.note(f"  {shlex.join(use)}", dim=False)
