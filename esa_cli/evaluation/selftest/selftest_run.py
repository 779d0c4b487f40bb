"""Runs a self-test: prefills each document, asks each question by each method, writes each row.

Rows are written as they come (`jsonl.Journal`), so a stopped run can be resumed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from esa_cli.errors import UsageError
from esa_cli.evaluation.selftest.needle_recall import NeedleRecall, positions, recall_fields
from esa_cli.evaluation.selftest.preconditions import all_in_view, askable
from esa_cli.evaluation.selftest.resumed_rows import ResumedRows
from esa_cli.evaluation.selftest.run_plan import (
    MethodGroup,
    SelftestSettings,
    dense_group,
    dense_length,
    groups,
    prompted,
)
from esa_cli.evaluation.selftest.selftest_documents import SelftestDocuments
from esa_cli.evaluation.selftest.shared_prefill import read_for
from esa_cli.evaluation.tasks import find_task
from esa_cli.evaluation.tasks.haystack_text import Haystack
from esa_cli.evaluation.tasks.task_sample import TaskQuestion, TaskSample
from esa_cli.qa.preset import Preset
from esa_cli.qa.session import Session
from esa_cli.qa.settings_hash import settings_hash
from esa_cli.system.jsonl import Journal
from esa_cli.system.text import text_digest


class SelftestEvents(Protocol):
    """Callbacks of a run."""

    def reading(self, test: str, length: int, names: Sequence[str], total: int) -> Any:
        """Prefill of `total` tokens begins; returns progress(done, total)."""
        ...

    def row(self, row: dict[str, Any]) -> None:
        """A question was answered."""
        ...

    def note(self, text: str) -> None:
        """Something was left out, and why."""
        ...


@dataclass
class SelftestRun:
    """One run over one model.

    Args:
        loaded: model and tokenizer. preset: the base that methods are applied to.
        until: `time.monotonic` after which no prefill and no question begins; None: no limit.
    """

    loaded: Any
    preset: Preset
    settings: SelftestSettings
    haystack: Haystack
    journal: Journal
    listener: SelftestEvents
    until: float | None = None
    stopped: bool = field(default=False, init=False)
    documents: SelftestDocuments = field(init=False)

    def __post_init__(self) -> None:
        self.documents = SelftestDocuments(self.settings, self.haystack, self._size)

    def _size(self, text: str) -> int:
        """Tokens of a text."""
        out = self.loaded.tokenizer(text, add_special_tokens=False, verbose=False)
        return len(out["input_ids"])

    def run(self) -> None:
        """Asks every question that has no row in the journal yet. Raises EsaError: a method, its
        settings or the haystack is wrong."""
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        with Session(model, tokenizer, self.preset) as session:
            self._check(session)
            for test in self.settings.tests:
                for length, group in self._work(test):
                    for sample in self._samples(test, length, group):
                        self._sample(session, sample, group)
                        if self.stopped:
                            return

    def _check(self, session: Session) -> None:
        """Builds each method and each test's first document once, so that mistakes come before the
        first long prefill."""
        methods: dict[int, list[Preset]] = {}
        for test in self.settings.tests:
            for length in self.documents.lengths(test):
                if length not in methods:
                    made = groups(self.settings, self.preset, length)
                    methods[length] = [preset for group in made for preset in group.presets]
        for length, presets in methods.items():
            for preset in presets:
                session.use(preset)
                # Not every host has a base that can be changed.
                host = session.attachment.rope.frequencies
                session.method.position.frequencies(*host, length)
        for test in self.settings.tests:
            for length in self.documents.lengths(test):
                sample = next(self.documents.samples(test, length), None)
                if sample is not None:
                    askable(session, sample, methods[length])

    def _work(self, test: str) -> Iterator[tuple[int, MethodGroup]]:
        if self.settings.dense:
            yield dense_length(self.preset), dense_group(self.preset)
        for length in self.documents.lengths(test):
            for group in groups(self.settings, self.preset, length):
                yield length, group

    def _samples(self, test: str, length: int, group: MethodGroup) -> Iterator[TaskSample]:
        """The test's documents; none for a ceiling that does not fit in the model's window."""
        try:
            yield from self.documents.samples(test, length, dense=group.dense)
        except UsageError as error:
            if not group.dense:
                raise
            self.listener.note(f"{test}: no dense ceiling: {error.message}")

    def _sample(self, session: Session, sample: TaskSample, group: MethodGroup) -> None:
        kept = ResumedRows(self.journal, sample)
        todo = [
            (name, preset, question)
            for name, preset in zip(group.names, group.presets, strict=True)
            for question in sample.questions
            if not kept.done(name, preset, question)
        ]
        if not todo:
            return
        if self._late():
            return
        if group.dense and not self._fits(session, sample, group):
            window = f"{self.preset.context:,} tokens"
            self.listener.note(
                f"{sample.test}: no dense ceiling: document, question and answer do not fit into "
                f"the model's window of {window}"
            )
            return
        seconds = self._read(session, sample, group)
        if not group.dense and (note := all_in_view(session.document_tokens, group.presets)):
            self.listener.note(f"{sample.test}: {note}")
        spans = session.prompt.offsets(sample.text)
        head = len(session.prompt.head())
        using = None
        for name, preset, question in todo:
            if self._late():
                return
            if using != name:
                session.use(prompted(preset, sample))
                using = name
            row = self._ask(session, sample, question, spans, head)
            row |= {**kept.key_fields(name, question), "dense": group.dense}
            row["settings"] = settings_hash(preset)
            row["reading"] = "shared" if group.shared else "own"
            row["time"]["read_s"] = round(seconds, 2)
            self.journal.add(row)
            self.listener.row(row)

    def _late(self) -> bool:
        self.stopped = self.until is not None and time.monotonic() > self.until
        return self.stopped

    def _fits(self, session: Session, sample: TaskSample, group: MethodGroup) -> bool:
        """True if every question can be asked and answered inside the model's own window."""
        session.clear()
        session.use(prompted(group.presets[0], sample))
        prompt = session.prompt
        longest = max(len(prompt.question(q.text, q.prime)) + q.longest for q in sample.questions)
        return len(prompt.document(sample.text)) + longest <= self.preset.context

    def _read(self, session: Session, sample: TaskSample, group: MethodGroup) -> float:
        session.clear()
        session.use(prompted(group.presets[0], sample))
        total = self._size(sample.text)
        progress = self.listener.reading(sample.test, sample.length, group.names, total)
        return read_for(session, self.preset, group, sample.text, progress)

    def _ask(
        self,
        session: Session,
        sample: TaskSample,
        question: TaskQuestion,
        spans: Sequence[tuple[int, int]],
        head: int,
    ) -> dict[str, Any]:
        recall = NeedleRecall()
        answer = session.ask(
            question.text, max_new_tokens=question.longest, prime=question.prime, trace=recall
        )
        facts = [sample.facts[i] for i in question.facts]
        places = [positions(spans, fact.start, fact.end, head) for fact in facts]
        shares = recall.shares(places) if places else []
        score = find_task(sample.test).score(question, question.prime + answer.text)
        return {
            # The mean depth of several facts would be a depth without a fact.
            "depth": round(facts[0].depth, 4) if len(facts) == 1 else None,
            "before": session.tokenizer.decode(session.prompt.head()),
            "prompt": session.prompt.text(question.text, question.prime),
            "document": text_digest(sample.text)[:16],
            "answer": answer.text,
            "expected": list(question.answers),
            "score": round(score, 4),
            **recall_fields(score, shares),
            "tokens": {
                "document": session.document_tokens,
                "question": answer.question_tokens,
                "answer": answer.answer_tokens,
                "in_view": recall.in_view(),
            },
            "time": {
                "ask_s": round(answer.total_s, 3),
                "first_token_s": round(answer.first_token_s, 3),
            },
        }
