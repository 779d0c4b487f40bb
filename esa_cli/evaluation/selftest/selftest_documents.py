"""The documents of a self-test, at each length. The test `own` has one length, its text's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from esa_cli.errors import UsageError
from esa_cli.evaluation.selftest.run_plan import SelftestSettings
from esa_cli.evaluation.tasks import find_task
from esa_cli.evaluation.tasks.task_sample import Haystack, TaskRequest, TaskSample

OWN = "own"
"""The test whose document is the user's text, whole."""


@dataclass
class SelftestDocuments:
    """Makes the documents of each test.

    Args:
        size: counts the tokens of a text.
    """

    settings: SelftestSettings
    haystack: Haystack
    size: Callable[[str], int]

    def lengths(self, test: str) -> tuple[int, ...]:
        """Tokens of the test's documents. Raises UsageError: as `samples`."""
        return (self._own,) if test == OWN else self.settings.lengths

    def samples(self, test: str, length: int, *, dense: bool = False) -> Iterator[TaskSample]:
        """The documents, one at a time.

        Args:
            dense: for the ceiling, whose documents must fit in the model's window: the text of
                `own` is cut to `length`.

        Raises:
            UsageError: a document cannot hold so many facts, or the haystack is too short.
        """
        settings = self.settings
        request = TaskRequest(
            length=length,
            size=self.size,
            haystack=self._cut(length) if dense and test == OWN else self.haystack,
            depths=settings.depths,
            samples=settings.samples,
            seed=settings.seed,
            exact=settings.exact,
        )
        return find_task(test).samples(request)

    @cached_property
    def _own(self) -> int:
        return next(self.samples(OWN, 0)).length

    def _cut(self, length: int) -> Haystack:
        """The beginning of the text, so long that it has `length` tokens with the needles in it."""
        if self._own <= length:
            return self.haystack
        left = length - (self._own - self.size(self.haystack.text))
        if left < 1:
            raise UsageError(
                f"length must have room for the needles, got {length:,} tokens",
                "ask for a greater one",
            )
        parts = self.haystack.cut(self.size, left)
        return Haystack.of(self.haystack.name, "\n\n".join(parts))
