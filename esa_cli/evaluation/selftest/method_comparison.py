"""One question by several methods: answers, times and the passages that each selected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.step import ChunkTrace
from esa_cli.documents.document import Document
from esa_cli.evaluation.selftest.run_plan import MethodGroup
from esa_cli.evaluation.selftest.selftest_run import read_for
from esa_cli.evaluation.text_asker import TextAsker
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.answering.session import Session
from esa_cli.qa.attention_evidence import heaviest
from esa_cli.qa.finding.books import Book
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.machine import peak_memory
from esa_cli.system.progress import Progress


class SelectionCounts:
    """Counts of each token's selections while answering, over layers and heads: (N,) `counts` for
    the N tokens of the document. A `trace` of `Session.ask`."""

    def __init__(self, tokens: int) -> None:
        self.counts = torch.zeros(tokens)
        self._layer = -1

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


def selected_passages(counts: Tensor, book: Book, count: int) -> list[Passage]:
    """The `count` passages that were selected most, whole sentences, none overlapping; a passage's
    weight is its share of all selections. counts: (N,), for the N cached tokens that `book.rows`
    point into."""
    total = float(counts[book.rows.start : book.rows.stop].sum())
    return [
        Passage.of(book.document, passage.start, passage.end, weight=passage.weight / total)
        for passage in heaviest(counts, [book], count)
    ]


def compare(
    loaded: Any,
    preset: Preset,
    groups: Sequence[MethodGroup],
    text: str,
    question: str,
    *,
    count: int,
    reading: Callable[[Sequence[str]], Progress],
    most: int | None,
) -> list[dict[str, Any]]:
    """A row for each method; times in seconds, `cache_bytes` of the prefill's cache, which methods
    may share, `peak_bytes` the process's highest.

    Args:
        groups: of `run_plan.groups`. count: passages for each method. reading: called with the
            names of the methods before their prefill; returns progress(done, total). most: new
            tokens.
    """
    rows = []
    with Session(loaded.model, loaded.tokenizer, preset, loaded.cache) as session:
        spans = torch.tensor(session.prompt.offsets(text)).reshape(-1, 2)
        head = len(session.prompt.head())
        document = Document("", text, source="", encoding="", bytes=0)
        book = Book(document, None, spans, rows=range(head, head + len(spans)))
        for group in groups:
            if group.reading == "text":
                asker = TextAsker(session, group.presets[0])
                read_s = asker.read(text, reading(group.names))
                reply = asker.ask(question, most)
                best = reply.evidence[:count]
                rows.append(_row(group.names[0], group, read_s, reply, asker.nbytes, best))
                continue
            session.clear()
            session.use(group.presets[0])
            read_s = read_for(session, preset, group, text, reading(group.names))
            for name, laid_over in zip(group.names, group.presets, strict=True):
                session.use(laid_over)
                view = SelectionCounts(session.document_tokens)
                answer = session.ask(question, max_new_tokens=most, trace=view)
                passages = selected_passages(view.counts, book, count)
                rows.append(_row(name, group, read_s, answer, session.cache.nbytes, passages))
    return [{**row, "peak_bytes": peak_memory(str(loaded.device))} for row in rows]


def _row(
    name: str,
    group: MethodGroup,
    read_s: float,
    answer: Reply,
    nbytes: int,
    passages: Sequence[Passage],
) -> dict[str, Any]:
    keys = ("start", "end", "weight", "text")
    return {
        "method": name,
        "answer": answer.text,
        "read_s": read_s,
        "shared": group.reading == "shared",
        "first_token_s": answer.first_token_s,
        "answer_s": answer.total_s,
        "cache_bytes": nbytes,
        "passages": [{key: getattr(passage, key) for key in keys} for passage in passages],
    }
