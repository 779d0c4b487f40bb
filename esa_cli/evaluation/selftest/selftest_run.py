"""Runs a self-test: makes the documents, prefills them, asks each question by each method."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Selection, Step
from esa_cli.errors import LengthError, UsageError
from esa_cli.evaluation.row_run import Case, DocumentCases, write_rows
from esa_cli.evaluation.selftest.needle_recall import (
    NeedleRecall,
    evidence_recall_fields,
    positions,
    recall_fields,
)
from esa_cli.evaluation.selftest.run_plan import (
    KEY,
    MethodGroup,
    SelftestSettings,
    all_in_view,
    dense_group,
    dense_length,
    groups,
)
from esa_cli.evaluation.tasks import find_task
from esa_cli.evaluation.tasks.task_sample import Haystack, TaskQuestion, TaskRequest, TaskSample
from esa_cli.evaluation.text_asker import TextAsker
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.cache_key import method_hash
from esa_cli.qa.presets.preset import Preset, Prompt
from esa_cli.qa.presets.resolved_preset import build_method
from esa_cli.system.jsonl import Journal
from esa_cli.system.machine import peak_memory
from esa_cli.system.progress import Progress
from esa_cli.system.text import text_digest
from esa_cli.system.work_shard import ALL_WORK, WorkShard

OWN = "own"
"""The test whose document is the user's text, whole."""


def count_tokens(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


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
    _text: TextAsker | None = field(default=None, init=False)

    def run(self) -> bool:
        """Asks every question that has no row yet; False when the time limit came first. Raises
        EsaError: a method, its settings or the haystack is wrong."""
        loaded = self.loaded
        with Session(loaded.model, loaded.tokenizer, self.preset, loaded.cache) as session:
            self._check(session)
            work = self.shard.take(self._work())
            documents = (self._questions(session, *pair).cases() for pair in work)
            return write_rows(documents, self.journal, until=self.until, on_row=self.listener.row)

    def size(self, text: str) -> int:
        """Tokens of a text."""
        return count_tokens(self.loaded.tokenizer, text)

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
        haystack = self._cut(length) if dense and test == OWN else self.haystack
        request = TaskRequest(
            length, self.size, haystack, settings.depths, settings.samples, settings.seed,
            settings.exact,
        )  # fmt: skip
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

    def _work(self) -> Iterator[tuple[TaskSample, MethodGroup]]:
        """Each document with each group of methods that share its prefill."""
        for test in self.settings.tests:
            if self.settings.dense:
                group = dense_group(self.preset)
                try:
                    for sample in self.samples(test, dense_length(self.preset), dense=True):
                        yield sample, group
                except UsageError as error:
                    self.listener.note(f"{test}: no dense ceiling: {error.message}")
            for length in self.lengths(test):
                for group in groups(self.settings, self.preset, length):
                    yield from ((sample, group) for sample in self.samples(test, length))

    def _check(self, session: Session) -> None:
        """Builds each method, and checks the questions of each test's first document, so that
        mistakes come before the first long prefill."""
        for test in self.settings.tests:
            for length in self.lengths(test):
                grouped = groups(self.settings, self.preset, length)
                for preset in [
                    p for group in grouped if group.reading != "text" for p in group.presets
                ]:
                    session.use(preset)
                    # Not every host has a base that can be changed.
                    host = session.attachment.rope.frequencies
                    session.method.position.frequencies(*host, length)
                sample = next(self.samples(test, length))
                for group in grouped:
                    self._questions(session, sample, group).check()

    def _questions(
        self, session: Session, sample: TaskSample, group: MethodGroup
    ) -> DocumentQuestions:
        if group.reading == "text" and self._text is None:
            self._text = TextAsker(session, self.preset)
        text = self._text if group.reading == "text" else None
        return DocumentQuestions(session, sample, group, self.preset, self.listener, text)


@dataclass
class DocumentQuestions:
    """One document's questions by a group of methods.

    From text, the words around document and question, and the answer's first ones, are those of the
    preset, not the benchmark's.

    Args:
        base: the preset that methods are laid over. text: what answers from text; None: answers
            come from the KV cache.
    """

    session: Session
    sample: TaskSample
    group: MethodGroup
    base: Preset
    listener: SelftestEvents
    text: TextAsker | None = None
    _preset: Preset | None = field(default=None, init=False)
    _read_s: float = field(default=0.0, init=False)

    def cases(self) -> DocumentCases:
        """Each question by each method."""
        sample, group, cases = self.sample, self.group, list[Case]()
        document = text_digest(sample.text)[:16]
        for name, preset in zip(group.names, group.presets, strict=True):
            settings = method_hash(name, preset)
            for question in sample.questions:
                key = (sample.test, name, sample.length, sample.index, question.key)
                fields = {
                    **dict(zip(KEY, key, strict=True)),
                    "dense": group.dense,
                    "settings": settings,
                    "reading": group.reading,
                    "document": document,
                }
                cases.append(Case(fields, partial(self.row, preset, question)))
        return DocumentCases(cases, self.read)

    def check(self) -> None:
        """Raises LengthError: a question does not fit the model's window."""
        try:
            for preset in self.group.presets:
                if self.text is None:
                    self._use(preset)
                for question in self.sample.questions:
                    if self.text is not None:
                        self.text.check(question.text, question.longest)
                    else:
                        self.session.check(
                            question.text, prime=question.prime, max_new_tokens=question.longest
                        )
        except LengthError as error:
            raise LengthError(
                f"{self.sample.test} cannot be asked: {error.message}",
                "leave the test out, or lower window.selected with --set",
            ) from error

    def read(self) -> bool:
        """Reads the document; False for a ceiling that does not fit into the model's window."""
        session, sample, group = self.session, self.sample, self.group
        total = count_tokens(session.tokenizer, sample.text)
        if self.text is None:
            session.clear()
            self._use(group.presets[0])
            self._spans, self._head = (
                session.prompt.offsets(sample.text),
                len(session.prompt.head()),
            )
        if group.dense and not self._fits():
            self.listener.note(
                f"{sample.test}: no dense ceiling: document, question and answer do not fit into "
                f"the model's window of {self.base.context:,} tokens"
            )
            return False
        progress = self.listener.reading(sample.test, sample.length, group.names, total)
        if self.text is not None:
            self._read_s = self.text.read(sample.text, progress)
            return True
        self._read_s = read_for(session, self.base, group, sample.text, progress)
        note = None if group.dense else all_in_view(session.document_tokens, group.presets)
        if note is not None:
            self.listener.note(f"{sample.test}: {note}")
        return True

    def _use(self, preset: Preset) -> None:
        """Sets the preset, with the benchmark's prompt where the sample has one."""
        if self._preset is preset:
            return
        self._preset, sample = preset, self.sample
        if sample.after is not None:
            prompt = Prompt(system=preset.prompt.system, before=sample.before, after=sample.after)
            preset = preset.model_copy(update={"prompt": prompt})
        self.session.use(preset)

    def _fits(self) -> bool:
        """True if every question can be asked and answered inside the model's own window."""
        prompt, asked = self.session.prompt, self.sample.questions
        longest = max(len(prompt.question(q.text, q.prime)) + q.longest for q in asked)
        return len(prompt.document(self.sample.text)) + longest <= self.base.context

    def row(self, preset: Preset, question: TaskQuestion) -> dict[str, Any]:
        """The fields of a question's row that its answer gives."""
        if self.text is not None:
            return self._row_from_text(self.text, preset, question)
        self._use(preset)
        session, recall = self.session, NeedleRecall()
        answer = session.ask(
            question.text, max_new_tokens=question.longest, prime=question.prime, trace=recall
        )
        facts = [self.sample.facts[fact] for fact in question.facts]
        places = [positions(self._spans, fact.start, fact.end, self._head) for fact in facts]
        fields = self._fields(question, question.prime + answer.text, answer, session.cache.nbytes)
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
        }

    def _row_from_text(
        self, asker: TextAsker, preset: Preset, question: TaskQuestion
    ) -> dict[str, Any]:
        reply = asker.ask(question.text, question.longest)
        facts = [self.sample.facts[fact] for fact in question.facts]
        fields = self._fields(question, reply.text, reply, asker.nbytes)
        return fields | {
            "before": "",
            "prompt": preset.answer.prompt.replace("{question}", question.text),
            "answer": reply.text,
            "found": reply.found,
            "quoted": reply.quotation is not None,
            **evidence_recall_fields(fields["score"], facts, reply.evidence),
            "tokens": {
                "document": len(asker.book.spans),
                "question": reply.question_tokens,
                "answer": reply.answer_tokens,
                "in_view": asker.tokens_of(reply.evidence),
            },
        }

    def _fields(
        self, question: TaskQuestion, output: str, answer: Reply, stored: int
    ) -> dict[str, Any]:
        """The fields of both ways.

        Args:
            stored: bytes of what the document was read into.
        """
        # The mean depth of several facts would be a depth without a fact.
        only = self.sample.facts[question.facts[0]] if len(question.facts) == 1 else None
        return {
            "depth": None if only is None else round(only.depth, 4),
            "expected": list(question.answers),
            "score": round(find_task(self.sample.test).score(question, output), 4),
            "memory": {
                "kept_bytes": stored,
                "peak_bytes": peak_memory(str(self.session.model.device)),
            },
            "time": {
                "ask_s": round(answer.total_s, 3),
                "first_token_s": round(answer.first_token_s, 3),
                "read_s": round(self._read_s, 2),
            },
        }


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
    if group.reading == "shared":
        methods = [build_method(preset) for preset in group.presets]
        method = shared_reading(build_method(base), methods)
    session.read(text, progress, method)
    return time.perf_counter() - started
