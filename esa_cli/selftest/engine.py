"""Runs a self-test: reads each document, asks each question by each method, writes each row.

Rows are kept as they come (see `journal`), so a run that was stopped goes on where it was. Knows
nothing about the terminal; it tells a listener.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .. import build
from ..journal import Journal
from ..preset import Preset
from ..probes import probe
from ..probes.haystack import Haystack
from ..probes.sample import Question, Request, Sample
from ..session import Session
from .plan import DENSE, Group, Settings, dense_group, dense_length, groups, prompted
from .recall import Recall, positions, why
from .shared import shared_reading

KEY = ("test", "method", "length", "sample", "question")


class Listener(Protocol):
    """Hears how far a run is."""

    def reading(self, test: str, length: int, names: Sequence[str], total: int) -> Any:
        """A text of `total` tokens is about to be read; returns progress(done, total)."""
        ...

    def row(self, row: dict[str, Any]) -> None:
        """A question was answered."""
        ...


@dataclass
class Engine:
    """One run over one model.

    Args:
        loaded: model and tokenizer. preset: the base that methods are laid over.
        until: seconds on `time.monotonic` after which nothing new is begun; None: no limit.
    """

    loaded: Any
    preset: Preset
    settings: Settings
    haystack: Haystack
    journal: Journal
    listener: Listener
    until: float | None = None
    stopped: bool = field(default=False, init=False)

    def size(self, text: str) -> int:
        """Tokens of a text."""
        out = self.loaded.tokenizer(text, add_special_tokens=False, verbose=False)
        return len(out["input_ids"])

    def run(self) -> None:
        """Asks everything that the journal does not hold yet.

        Raises:
            EsaError: a method, its settings or the haystack does not hold.
        """
        # Every method is made once first, so that mistakes come before the first long reading.
        for length in self.settings.lengths:
            for group in groups(self.settings, self.preset, length):
                for made in group.presets:
                    build.method(made)
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        with Session(model, tokenizer, self.preset) as session:
            for test in self.settings.tests:
                for length, group in self._work():
                    for sample in probe(test).samples(self._request(length, group)):
                        self._sample(session, sample, group)
                        if self.stopped:
                            return

    def _work(self) -> Iterator[tuple[int, Group]]:
        if self.settings.dense:
            yield dense_length(self.preset), dense_group(self.preset)
        for length in self.settings.lengths:
            for group in groups(self.settings, self.preset, length):
                yield length, group

    def _request(self, length: int, group: Group) -> Request:
        settings = self.settings
        return Request(
            length=length,
            size=self.size,
            haystack=self.haystack,
            depths=settings.depths,
            samples=settings.samples,
            seed=settings.seed,
            exact=settings.exact,
        )

    def _sample(self, session: Session, sample: Sample, group: Group) -> None:
        todo = [
            (name, preset, question)
            for name, preset in zip(group.names, group.presets, strict=True)
            for question in sample.questions
            if not self.journal.done(_identity(sample, name, question))
        ]
        if not todo:
            return
        if self.until is not None and time.monotonic() > self.until:
            self.stopped = True
            return
        seconds = self._read(session, sample, group)
        spans = session.prompt.offsets(sample.text)
        head = len(session.prompt.head())
        using = None
        for name, preset, question in todo:
            if using != name:
                session.use(prompted(preset, sample))
                using = name
            row = self._ask(session, sample, question, spans, head)
            row |= {**_identity(sample, name, question), "dense": group.dense}
            row["time"]["read_s"] = round(seconds, 2)
            self.journal.add(row)
            self.listener.row(row)

    def _read(self, session: Session, sample: Sample, group: Group) -> float:
        started = time.perf_counter()
        session.forget()
        session.use(prompted(group.presets[0], sample))
        if group.shared:
            base = build.method(self.preset)
            made = [build.method(preset) for preset in group.presets]
            session.attachment.method = shared_reading(base, made)
        total = self.size(sample.text)
        progress = self.listener.reading(sample.test, sample.length, group.names, total)
        session.read(sample.text, progress)
        return time.perf_counter() - started

    def _ask(
        self,
        session: Session,
        sample: Sample,
        question: Question,
        spans: Sequence[tuple[int, int]],
        head: int,
    ) -> dict[str, Any]:
        recall = Recall()
        session.attachment.watch = recall
        try:
            answer = session.ask(
                question.text, max_new_tokens=question.longest, prime=question.prime
            )
        finally:
            session.attachment.watch = None
        facts = [sample.facts[i] for i in question.facts]
        places = [positions(spans, fact.start, fact.end, head) for fact in facts]
        shares = [round(share, 4) for share in recall.shares(places)] if places else []
        score = probe(sample.test).score(question, question.prime + answer.text)
        depth = sum(fact.depth for fact in facts) / len(facts) if facts else None
        return {
            "depth": None if depth is None else round(depth, 4),
            "prompt": session.prompt.text(question.text, question.prime),
            "document": hashlib.sha256(sample.text.encode()).hexdigest()[:16],
            "answer": answer.text,
            "expected": list(question.answers),
            "score": round(score, 4),
            "recall": {"mean": round(sum(shares) / len(shares), 4), "layers": shares}
            if shares
            else None,
            "why": why(score, shares) if shares else None,
            "tokens": {
                "document": session.document_tokens,
                "question": answer.question_tokens,
                "answer": answer.answer_tokens,
            },
            "time": {
                "ask_s": round(answer.total_s, 3),
                "first_token_s": round(answer.first_token_s, 3),
            },
        }


def _identity(sample: Sample, method: str, question: Question) -> dict[str, Any]:
    return {
        "test": sample.test,
        "method": method,
        "length": sample.length,
        "sample": sample.index,
        "question": question.key,
    }


__all__ = ["DENSE", "KEY", "Engine", "Listener"]
