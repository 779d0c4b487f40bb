"""Steps of training: passages of one text that compete, with questions.

One epoch has every passage once. Its order and its crops are the same whatever came before, so
training can go on in the middle of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from finder_texts import FinderText, PassageCrop

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.task_sample import StableRandom


@dataclass(frozen=True)
class FinderBatch:
    """Crops of passages, and their questions: `questions[i]` is about `crops[right[i]]`."""

    crops: list[PassageCrop]
    questions: list[str]
    kinds: list[str]
    right: list[int]

    @classmethod
    def of(cls, crops: list[PassageCrop]) -> FinderBatch:
        rows = [(at, one) for at, crop in enumerate(crops) for one in crop.questions]
        return cls(
            crops, [one.text for _, one in rows], [one.kind for _, one in rows],
            [at for at, _ in rows],
        )  # fmt: skip


class FinderBatches:
    """Batches of passages, epoch after epoch.

    Args:
        batch: passages of a step at most; a text's passages are divided evenly.

    Raises:
        UsageError: no text has two passages.
    """

    def __init__(self, texts: Sequence[FinderText], *, batch: int, seed: int) -> None:
        self.texts = [text for text in texts if len(text.passages) > 1]
        self.batch, self.seed = batch, seed
        if not self.texts:
            raise UsageError(
                "a text must have two passages to train on, got texts with one", "use other pairs"
            )

    def order(self, epoch: int) -> list[tuple[FinderText, list[int]]]:
        """The text and the numbers of the passages of each step of an epoch."""
        found = []
        for text in self.texts:
            numbers = neighbours(len(text.passages), StableRandom(self.seed, epoch, text.name))
            steps = math.ceil(len(numbers) / self.batch)
            cuts = [round(at * len(numbers) / steps) for at in range(steps + 1)]
            found += [(text, numbers[a:b]) for a, b in pairwise(cuts)]
        return StableRandom(self.seed, epoch, "order").draw_items(found, len(found))

    def after(self, epoch: int, batch: int) -> Iterator[tuple[int, int, FinderBatch]]:
        """Batches without end from one on, each with the epoch and number of the next one."""
        while True:
            order = self.order(epoch)
            for at in range(batch, len(order)):
                text, numbers = order[at]
                rng = StableRandom(self.seed, epoch, "crops", at)
                crops = [text.crop(text.passages[number], rng) for number in numbers]
                yield epoch, at + 1, FinderBatch.of(crops)
            epoch, batch = epoch + 1, 0


def neighbours(count: int, rng: StableRandom) -> list[int]:
    """The numbers below `count` in random order, each followed by the next where that is free: like
    passages then compete in one step."""
    free, found = set(range(count)), list[int]()
    for number in rng.draw_items(range(count), count):
        if number in free:
            pair = [one for one in (number, number + 1) if one in free]
            free -= set(pair)
            found += pair
    return found
