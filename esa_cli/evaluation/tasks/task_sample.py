"""What a self-test is made of: documents, the facts in them, questions and scores.

A probe knows texts only. It has no model, and counts tokens only with the function it is given.
Everything it yields is determined by the test, the length, the seed and the sample's index, and by
the haystack, the counting function, the depths and the number of samples in the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from esa_cli.evaluation.tasks.haystack_text import Haystack


@dataclass(frozen=True)
class Fact:
    """What a question is about: `text` is `text[start:end]` of the sample; depth 0 is its start."""

    text: str
    start: int
    end: int
    depth: float


@dataclass(frozen=True)
class TaskQuestion:
    """One question of a sample.

    Args:
        key: unique within the sample and the same in every run.
        text: what is asked. answers: what is accepted, or what is looked for one by one.
        facts: indices into `TaskSample.facts`. longest: new tokens allowed.
        prime: the first words of the answer, put into the model's mouth.
        data: what else the score needs.
    """

    key: str
    text: str
    answers: tuple[str, ...]
    facts: tuple[int, ...]
    longest: int
    prime: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSample:
    """One document, which is read once, and its questions.

    `before` and `after` are the benchmark's own words around the document; `after` holds
    `{question}`. When `after` is None the preset's prompt is used.
    """

    test: str
    length: int
    index: int
    text: str
    facts: tuple[Fact, ...]
    questions: tuple[TaskQuestion, ...]
    before: str = ""
    after: str | None = None


@dataclass(frozen=True)
class TaskRequest:
    """What is wanted of a probe.

    Args:
        length: tokens of a document, by `size`. Always the same function object, please: the
            haystack remembers its counts.
        depths: where facts stand, 0..1, gone through again when there are more facts; None: even,
            or as the benchmark has it.
        samples: how many questions altogether; one document serves several where the form allows.
            The exact form of `needle` asks each of them at every depth in `depths`.
        exact: the benchmark's own form; otherwise the shared one, where a document serves many
            questions if it can.
    """

    length: int
    size: Callable[[str], int]
    haystack: Haystack
    depths: tuple[float, ...] | None
    samples: int
    seed: int
    exact: bool


class Task(Protocol):
    """One test. `differs` says in a sentence or two where the shared form leaves the benchmark."""

    name: str
    about: str
    source: str
    differs: str

    def samples(self, request: TaskRequest) -> Iterator[TaskSample]:
        """Yields the documents one at a time, with increasing `index`."""
        ...

    def score(self, question: TaskQuestion, output: str) -> float:
        """0..1; `output` includes the prime."""
        ...
