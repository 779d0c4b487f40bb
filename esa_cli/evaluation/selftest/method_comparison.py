"""One question by several methods: answers, times and the passages that each selected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.step import ChunkTrace
from esa_cli.documents.document import Document
from esa_cli.evaluation.selftest.run_plan import MethodGroup
from esa_cli.evaluation.selftest.selftest_run import read_for
from esa_cli.evaluation.text_asker import TextAsker
from esa_cli.qa.answering.session import Session
from esa_cli.qa.books import Book
from esa_cli.qa.evidence.evidence import heaviest
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.machine import peak_memory
from esa_cli.system.progress import Progress


@dataclass
class SelectionCounts:
    """Counts of each token's selections while answering, over layers and heads.

    Args:
        counts: (N,) for the N tokens of the document.
    """

    counts: Tensor
    _layer: int = field(default=-1, repr=False)

    def __call__(self, seen: ChunkTrace) -> None:
        """Counts a chunk's selected tokens, without I and L, which are always in view."""
        if seen.start == self.counts.shape[0]:
            if seen.layer <= self._layer:
                self.counts.zero_()  # the question begins again: before it was the survey pass
            self._layer = seen.layer
        times = seen.stop - seen.start if seen.decoding else 1  # each token selects
        for row in seen.far_rows:
            chosen = row[seen.initial :].cpu()
            self.counts[chosen[chosen < self.counts.shape[0]]] += times / len(seen.far_rows)


@dataclass(frozen=True)
class SelectedPassage:
    """Characters [start, end) of the text, and their share of all selections."""

    start: int
    end: int
    weight: float

    def text(self, document: str) -> str:
        return document[self.start : self.end]


@dataclass(frozen=True)
class MethodAnswer:
    """One method's answer; times in seconds.

    Args:
        cache_bytes: of the prefill's cache, which methods may share. peak_bytes: the process's
            highest so far.
    """

    method: str
    answer: str
    read_s: float
    shared: bool
    first_token_s: float
    answer_s: float
    cache_bytes: int
    peak_bytes: int
    passages: list[SelectedPassage] = field(default_factory=list)


def selected_passages(counts: Tensor, book: Book, count: int) -> list[SelectedPassage]:
    """The `count` passages that were selected most, whole sentences, none overlapping.

    Args:
        counts: (N,) of `SelectionCounts`, for the N cached tokens that `book.rows` point into.
    """
    total = float(counts[book.rows.start : book.rows.stop].sum())
    best = heaviest(counts, [book], count)
    return [SelectedPassage(one.start, one.end, one.weight / total) for one in best]


def compare(
    loaded: Any,
    preset: Preset,
    groups: Sequence[MethodGroup],
    text: str,
    question: str,
    *,
    count: int = 3,
    reading: Callable[[Sequence[str]], Progress],
    most: int | None = None,
) -> list[MethodAnswer]:
    """Asks the question by every method.

    Args:
        groups: of `run_plan.groups`. count: passages for each method. reading: called with the
            names of the methods before their prefill; returns progress(done, total). most: new
            tokens.
    """
    out = []
    with Session(loaded.model, loaded.tokenizer, preset, loaded.cache) as session:
        spans = torch.tensor(session.prompt.offsets(text)).reshape(-1, 2)
        head = len(session.prompt.head())
        document = Document("", text, source="", encoding="", bytes=0)
        book = Book(document, None, spans, rows=range(head, head + len(spans)))
        for group in groups:
            if group.text:
                out.append(_from_text(session, group, text, question, count, reading, most))
                continue
            session.clear()
            session.use(group.presets[0])
            read = read_for(session, preset, group, text, reading(group.names))
            for name, one in zip(group.names, group.presets, strict=True):
                session.use(one)
                view = SelectionCounts(torch.zeros(session.document_tokens))
                answer = session.ask(question, max_new_tokens=most, trace=view)
                out.append(
                    MethodAnswer(
                        name,
                        answer.text,
                        read,
                        group.shared,
                        answer.first_token_s,
                        answer.total_s,
                        session.cache.nbytes,
                        peak_memory(str(loaded.device)),
                        selected_passages(view.counts, book, count),
                    )
                )
    return out


def _from_text(
    session: Session,
    group: MethodGroup,
    text: str,
    question: str,
    count: int,
    reading: Callable[[Sequence[str]], Progress],
    most: int | None,
) -> MethodAnswer:
    """The answer from text, its passages with their share of all that were read again."""
    asker = TextAsker(session, group.presets[0])
    read = asker.read(text, reading(group.names))
    reply = asker.ask(question, most)
    return MethodAnswer(
        group.names[0],
        reply.text,
        read,
        group.shared,
        reply.first_token_s,
        reply.total_s,
        asker.nbytes,
        peak_memory(str(session.model.device)),
        [SelectedPassage(one.start, one.end, one.weight) for one in reply.evidence[:count]],
    )
