"""Runs a self-test: prefills each document, asks each question by each method, writes each row.

Rows are written as they come (`jsonl.Journal`), so a stopped run can be resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Selection, Step
from esa_cli.errors import UsageError
from esa_cli.evaluation.selftest.needle_recall import (
    NeedleRecall,
    evidence_recall_fields,
    positions,
    recall_fields,
)
from esa_cli.evaluation.selftest.run_plan import (
    MethodGroup,
    ResumedRows,
    SelftestSettings,
    all_in_view,
    askable,
    askable_from_text,
    dense_group,
    dense_length,
    groups,
    prompted_preset,
)
from esa_cli.evaluation.tasks import find_task
from esa_cli.evaluation.tasks.task_sample import (
    Fact,
    Haystack,
    TaskQuestion,
    TaskRequest,
    TaskSample,
)
from esa_cli.evaluation.text_asker import TextAsker
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.cache_key import method_hash
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import build_method
from esa_cli.system.jsonl import Journal
from esa_cli.system.machine import peak_memory
from esa_cli.system.progress import Progress
from esa_cli.system.text import text_digest
from esa_cli.system.work_shard import ALL_WORK, WorkShard

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
        shard: of the prefills, each of a document for a group of methods, with their questions.
    """

    loaded: Any
    preset: Preset
    settings: SelftestSettings
    haystack: Haystack
    journal: Journal
    listener: SelftestEvents
    until: float | None = None
    shard: WorkShard = ALL_WORK
    stopped: bool = field(default=False, init=False)
    documents: SelftestDocuments = field(init=False)
    _text: TextAsker | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.documents = SelftestDocuments(self.settings, self.haystack, self._size)

    def _size(self, text: str) -> int:
        """Tokens of a text."""
        out = self.loaded.tokenizer(text, add_special_tokens=False, verbose=False)
        return len(out["input_ids"])

    def run(self) -> None:
        """Asks every question that has no row in the journal yet. Raises EsaError: a method, its
        settings or the haystack is wrong."""
        with self.session() as session:
            for sample, group in self.prefills():
                self.ask(session, sample, group)
                if self.stopped:
                    return

    @contextmanager
    def session(self) -> Iterator[Session]:
        """The run's session. Raises EsaError: a method, its settings or the haystack is wrong."""
        loaded = self.loaded
        with Session(loaded.model, loaded.tokenizer, self.preset, loaded.cache) as session:
            self._check(session)
            yield session

    def prefills(self) -> Iterator[tuple[TaskSample, MethodGroup]]:
        """The documents of the run's shard, each with the methods that share its prefill."""
        return self.shard.take(self._prefills())

    def _prefills(self) -> Iterator[tuple[TaskSample, MethodGroup]]:
        for test in self.settings.tests:
            for length, group in self._work(test):
                for sample in self._samples(test, length, group):
                    yield sample, group

    def _check(self, session: Session) -> None:
        """Builds each method and each test's first document once, so that mistakes come before the
        first long prefill."""
        methods: dict[int, list[Preset]] = {}
        text = False
        for test in self.settings.tests:
            for length in self.documents.lengths(test):
                if length not in methods:
                    made = groups(self.settings, self.preset, length)
                    methods[length] = [p for group in made if not group.text for p in group.presets]
                    text = any(group.text for group in made)
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
                    if text:
                        askable_from_text(self._asker(session), sample)

    def _asker(self, session: Session) -> TextAsker:
        if self._text is None:
            self._text = TextAsker(session, self.preset)
        return self._text

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

    def ask(self, session: Session, sample: TaskSample, group: MethodGroup) -> None:
        """Asks a document's questions by the group's methods, those without a row in the journal;
        `stopped` is set when the time limit comes first."""
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
        selective = not group.dense and not group.text
        if selective and (note := all_in_view(session.document_tokens, group.presets)):
            self.listener.note(f"{sample.test}: {note}")
        ask: Ask = (
            RowQuestions(session, sample)
            if not group.text
            else (TextQuestions(self._asker(session), sample))
        )
        for name, preset, question in todo:
            if self._late():
                return
            row = ask(preset, question)
            row |= {**kept.key_fields(name, question), "dense": group.dense}
            row["settings"] = method_hash(name, preset)
            row["reading"] = group.reading
            row["time"]["read_s"] = round(seconds, 2)
            self.journal.add(row)
            self.listener.row(row)

    def _late(self) -> bool:
        self.stopped = self.until is not None and time.monotonic() > self.until
        return self.stopped

    def _fits(self, session: Session, sample: TaskSample, group: MethodGroup) -> bool:
        """True if every question can be asked and answered inside the model's own window."""
        session.clear()
        session.use(prompted_preset(group.presets[0], sample))
        prompt = session.prompt
        longest = max(len(prompt.question(q.text, q.prime)) + q.longest for q in sample.questions)
        return len(prompt.document(sample.text)) + longest <= self.preset.context

    def _read(self, session: Session, sample: TaskSample, group: MethodGroup) -> float:
        total = self._size(sample.text)
        progress = self.listener.reading(sample.test, sample.length, group.names, total)
        if group.text:
            return self._asker(session).read(sample.text, progress)
        session.clear()
        session.use(prompted_preset(group.presets[0], sample))
        return read_for(session, self.preset, group, sample.text, progress)


@dataclass(frozen=True)
class ObservedSelector(Selector):
    """A selector that lets others observe, which have their layer states at question time then."""

    inner: Selector
    others: tuple[Selector, ...]

    def select(self, step: Step, budget: int) -> Selection:
        return self.inner.select(step, budget)

    def observe(self, step: Step) -> None:
        for other in self.others:
            other.observe(step)


def shared_reading(base: Method, methods: Sequence[Method]) -> Method:
    """The base method, with prefill by I and L only, observed by all methods that observe, and with
    the methods' compressor (they have the same one)."""
    others = tuple(dict.fromkeys(m.selector for m in methods if m.selector.observes))
    selector = ObservedSelector(base.selector, others) if others else base.selector
    fitting = next((m for m in methods if m.score.features), base)
    return replace(
        base, selector=selector, score=fitting.score, compressor=fitting.compressor, reading="local"
    )


def read_for(
    session: Session, base: Preset, group: MethodGroup, text: str, progress: Progress
) -> float:
    """Prefills a text for the group's methods, in the session's preset; returns the seconds."""
    started = time.perf_counter()
    method = None
    if group.shared:
        made = [build_method(preset) for preset in group.presets]
        method = shared_reading(build_method(base), made)
    session.read(text, progress, method)
    return time.perf_counter() - started


Ask = Callable[[Preset, TaskQuestion], dict[str, Any]]
"""Asks one question by one method; returns fields of its row."""


class RowQuestions:
    """Asks about the document that a session has cached."""

    def __init__(self, session: Session, sample: TaskSample) -> None:
        self.session, self.sample = session, sample
        self._spans = session.prompt.offsets(sample.text)
        self._head = len(session.prompt.head())
        self._using: Preset | None = None

    def __call__(self, preset: Preset, question: TaskQuestion) -> dict[str, Any]:
        session, recall = self.session, NeedleRecall()
        if self._using is not preset:
            session.use(prompted_preset(preset, self.sample))
            self._using = preset
        answer = session.ask(
            question.text, max_new_tokens=question.longest, prime=question.prime, trace=recall
        )
        facts = _facts(self.sample, question)
        places = [positions(self._spans, fact.start, fact.end, self._head) for fact in facts]
        fields = _fields(self.sample, question, question.prime + answer.text)
        return fields | {
            "before": session.tokenizer.decode(session.prompt.head()),
            "prompt": session.prompt.text(question.text, question.prime),
            "answer": answer.text,
            **recall_fields(fields["score"], recall.shares(places) if places else []),
            "tokens": {
                "document": session.document_tokens,
                "question": answer.question_tokens,
                "answer": answer.answer_tokens,
                "in_view": recall.in_view(),
            },
            "memory": _memory(session, session.cache.nbytes),
            "time": _times(answer),
        }


class TextQuestions:
    """Asks about the document that a `TextAsker` has read. The words around document and question,
    and the answer's first ones, are those of the preset, not the benchmark's."""

    def __init__(self, asker: TextAsker, sample: TaskSample) -> None:
        self.asker, self.sample = asker, sample

    def __call__(self, preset: Preset, question: TaskQuestion) -> dict[str, Any]:
        asker = self.asker
        reply = asker.ask(question.text, question.longest)
        fields = _fields(self.sample, question, reply.text)
        return fields | {
            "before": "",
            "prompt": preset.answer.prompt.replace("{question}", question.text),
            "answer": reply.text,
            "found": reply.found,
            "quoted": reply.quotation is not None,
            **evidence_recall_fields(
                fields["score"], _facts(self.sample, question), reply.evidence
            ),
            "tokens": {
                "document": len(asker.book.spans),
                "question": reply.question_tokens,
                "answer": reply.answer_tokens,
                "in_view": asker.tokens_of(reply.evidence),
            },
            "memory": _memory(asker.session, asker.nbytes),
            "time": _times(reply),
        }


def _facts(sample: TaskSample, question: TaskQuestion) -> list[Fact]:
    return [sample.facts[i] for i in question.facts]


def _fields(sample: TaskSample, question: TaskQuestion, output: str) -> dict[str, Any]:
    facts = _facts(sample, question)
    return {
        # The mean depth of several facts would be a depth without a fact.
        "depth": round(facts[0].depth, 4) if len(facts) == 1 else None,
        "document": text_digest(sample.text)[:16],
        "expected": list(question.answers),
        "score": round(find_task(sample.test).score(question, output), 4),
    }


def _memory(session: Session, kept: int) -> dict[str, int]:
    return {"kept_bytes": kept, "peak_bytes": peak_memory(str(session.model.device))}


def _times(answer: Reply) -> dict[str, float]:
    return {"ask_s": round(answer.total_s, 3), "first_token_s": round(answer.first_token_s, 3)}
