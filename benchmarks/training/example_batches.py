"""Examples as token ids, in batches of about one length, in an order that the seed determines.

One epoch has an example of every pair. The examples of epoch n are the same whatever came before,
so training can go on in the middle of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reader_examples import ExampleText, ReaderExample
from recurring_spans import cloze_examples

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.task_sample import StableRandom
from esa_cli.qa.reading.span import PassagePrompt

POOL = 24
"""Batches of examples that are sorted by length together."""


@dataclass(frozen=True)
class TokenExample:
    """Token ids of a prompt and of the answer that follows."""

    prompt: list[int]
    answer: list[int]
    source: str

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def encode(example: ReaderExample, prompt: PassagePrompt) -> TokenExample:
    answer = (
        prompt.unanswered_ids if example.answer is None else prompt.encode_answer(example.answer)
    )
    return TokenExample(
        prompt.encode_prompt(example.question, example.passage), answer, example.source
    )


class ExampleBatches:
    """Batches of examples, epoch after epoch.

    Args:
        wrong: probability of an example of a wrong window for each pair with an answer.
        swapped: probability of an example of a question about another name for each such pair.
        cloze: cloze questions as a share of the other examples.
        longest: tokens of an example at most; longer ones are left out and counted.
    """

    def __init__(
        self, texts: Sequence[ExampleText], prompt: PassagePrompt, *,
        batch: int, seed: int, wrong: float, swapped: float, cloze: float, longest: int,
    ) -> None:  # fmt: skip
        self.texts, self.prompt = texts, prompt
        self.batch, self.seed, self.wrong, self.cloze = batch, seed, wrong, cloze
        self.swapped = swapped
        self.longest = longest
        self.left_out = 0

    def examples(self, epoch: int) -> list[ReaderExample]:
        """All examples of an epoch, in its order."""
        found: list[ReaderExample] = []
        for text in self.texts:
            found += text.examples(
                StableRandom(self.seed, epoch, text.name), self.wrong, self.swapped
            )
        rng = StableRandom(self.seed, epoch, "cloze")
        found += cloze_examples(self.texts, round(self.cloze * len(found)), rng)
        return StableRandom(self.seed, epoch, "order").draw_items(found, len(found))

    def epoch(self, epoch: int) -> list[list[TokenExample]]:
        """The batches of an epoch. Raises UsageError: all examples are too long."""
        every = [encode(example, self.prompt) for example in self.examples(epoch)]
        short = [example for example in every if len(example) <= self.longest]
        self.left_out = len(every) - len(short)
        if not short:
            raise UsageError(
                f"examples must have at most {self.longest} tokens, got none",
                "use pairs with shorter passages, or a model with a longer context",
            )
        rng = StableRandom(self.seed, epoch, "batches")
        batches: list[list[TokenExample]] = []
        for at in range(0, len(short), self.batch * POOL):
            pool = sorted(short[at : at + self.batch * POOL], key=len)
            made = [pool[k : k + self.batch] for k in range(0, len(pool), self.batch)]
            batches += rng.draw_items(made, len(made))
        return batches

    def after(self, epoch: int, batch: int) -> Iterator[tuple[int, int, list[TokenExample]]]:
        """Batches without end from one on, each with the epoch and number of the next one."""
        while True:
            batches = self.epoch(epoch)
            for at in range(batch, len(batches)):
                yield epoch, at + 1, batches[at]
            epoch, batch = epoch + 1, 0
