"""The interface of a self-test's task: documents with facts, questions about them, and scores.

A task works on texts only. Its samples are determined by its name, the request (length, seed,
haystack, counting function, depths, number of samples) and the sample's index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from esa_cli.evaluation.tasks.haystack_text import Haystack


@dataclass(frozen=True)
class Fact:
    """The text that a question asks for, `text[start:end]` of the sample; depth 0 is its start."""

    text: str
    start: int
    end: int
    depth: float


@dataclass(frozen=True)
class TaskQuestion:
    """One question of a sample.

    Args:
        key: unique within the sample and the same in every run.
        text: the question. answers: those accepted, or texts that are searched one by one.
        facts: indices into `TaskSample.facts`. longest: new tokens allowed.
        prime: the answer's first words, given to the model.
        data: further values for the score.
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
    """One document and its questions.

    `before` and `after` are the benchmark's own words around the document; `after` contains
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
    """The arguments of a task.

    Args:
        length: tokens of a document, by `size`, which must be one function object: the haystack
            caches its counts.
        depths: depths of facts, 0..1, repeated when there are more facts; None: even, or the
            benchmark's own.
        samples: number of questions. The exact form of `needle` asks each at every depth.
        exact: the benchmark's own form; otherwise the shared form, with many questions about a
            document where possible.
    """

    length: int
    size: Callable[[str], int]
    haystack: Haystack
    depths: tuple[float, ...] | None
    samples: int
    seed: int
    exact: bool


class Task(Protocol):
    """One test, known by its name."""

    name: str

    def samples(self, request: TaskRequest) -> Iterator[TaskSample]:
        """Yields the documents one at a time, with increasing `index`."""
        ...

    def score(self, question: TaskQuestion, output: str) -> float:
        """0..1; `output` includes the prime."""
        ...
