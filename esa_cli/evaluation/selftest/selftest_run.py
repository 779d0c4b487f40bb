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
from esa_cli.system.progress import ALL_WORK, Progress, WorkShard
from esa_cli.system.text import text_digest

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
        settings, haystack = self.settings, self.haystack
        if dense and test == OWN and self._own > length:
            # The text is cut to the tokens that the needles leave.
            left = length - (self._own - self.size(haystack.text))
            if left < 1:
                raise UsageError(
                    f"length must have room for the needles, got {length:,} tokens",
                    "ask for a greater one",
                )
            haystack = Haystack.of(haystack.name, "\n\n".join(haystack.cut(self.size, left)))
        request = TaskRequest(
            length, self.size, haystack, settings.depths, settings.samples, settings.seed,
            settings.exact,
        )  # fmt: skip
        return find_task(test).samples(request)

    @cached_property
    def _own(self) -> int:
        return next(self.samples(OWN, 0)).length

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
                sample = next(self.samples(test, length))
                for group in groups(self.settings, self.preset, length):
                    for preset in group.presets if group.reading != "text" else ():
                        session.use(preset)
                        # Not every host has a base that can be changed.
                        host = session.attachment.rope.frequencies
                        session.method.position.frequencies(*host, length)
                    try:
                        self._questions(session, sample, group).check()
                    except LengthError as error:
                        raise LengthError(
                            f"{test} cannot be asked: {error.message}",
                            "leave the test out, or lower window.selected with --set",
                        ) from error

    def _questions(
        self, session: Session, sample: TaskSample, group: MethodGroup
    ) -> DocumentQuestions:
        common = session, sample, group, self.preset, self.listener
        if group.reading != "text":
            return DocumentQuestions(*common)
        self._text = self._text or TextAsker(session, self.preset)
        return TextQuestions(*common, self._text)


@dataclass
class DocumentQuestions:
    """One document's questions by a group of methods, over the KV cache.

    Args:
        base: the preset that methods are laid over.
    """

    session: Session
    sample: TaskSample
    group: MethodGroup
    base: Preset
    listener: SelftestEvents

    def __post_init__(self) -> None:
        self._preset: Preset | None = None
        self._read_s = 0.0

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
        for preset in self.group.presets:
            self._use(preset)
            for question in self.sample.questions:
                self.session.check(
                    question.text, prime=question.prime, max_new_tokens=question.longest
                )

    def read(self) -> bool:
        """Reads the document; False for a ceiling that does not fit into the model's window."""
        session, sample, group = self.session, self.sample, self.group
        session.clear()
        self._use(group.presets[0])
        prompt = session.prompt
        self._spans, self._head = prompt.offsets(sample.text), len(prompt.head())
        asked = sample.questions
        longest = max(len(prompt.question(q.text, q.prime)) + q.longest for q in asked)
        if group.dense and len(prompt.document(sample.text)) + longest > self.base.context:
            self.listener.note(
                f"{sample.test}: no dense ceiling: document, question and answer do not fit into "
                f"the model's window of {self.base.context:,} tokens"
            )
            return False
        self._read_s = read_for(session, self.base, group, sample.text, self._progress())
        note = None if group.dense else all_in_view(session.document_tokens, group.presets)
        if note is not None:
            self.listener.note(f"{sample.test}: {note}")
        return True

    def _progress(self) -> Progress:
        sample, total = self.sample, count_tokens(self.session.tokenizer, self.sample.text)
        progress: Progress = self.listener.reading(
            sample.test, sample.length, self.group.names, total
        )
        return progress

    def _use(self, preset: Preset) -> None:
        """Sets the preset, with the benchmark's prompt where the sample has one."""
        if self._preset is preset:
            return
        self._preset, sample = preset, self.sample
        if sample.after is not None:
            prompt = Prompt(system=preset.prompt.system, before=sample.before, after=sample.after)
            preset = preset.model_copy(update={"prompt": prompt})
        self.session.use(preset)

    def row(self, preset: Preset, question: TaskQuestion) -> dict[str, Any]:
        """The fields of a question's row that its answer gives."""
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
            **recall_fields(fields["score"], recall.shares(places) if places else []),
            "tokens": {
                "document": session.document_tokens,
                "question": answer.question_tokens,
                "answer": answer.answer_tokens,
                "in_view": recall.in_view(),
            },
        }

    def _fields(
        self, question: TaskQuestion, output: str, answer: Reply, stored: int
    ) -> dict[str, Any]:
        """The fields of both ways. stored: bytes of its index or KV cache."""
        # The mean depth of several facts would be a depth without a fact.
        only = self.sample.facts[question.facts[0]] if len(question.facts) == 1 else None
        return {
            "depth": None if only is None else round(only.depth, 4),
            "expected": list(question.answers),
            "answer": answer.text,
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


@dataclass
class TextQuestions(DocumentQuestions):
    """The same, answered from text: the words around document and question, and the answer's first
    ones, are those of the preset, not the benchmark's."""

    asker: TextAsker

    def check(self) -> None:
        for question in self.sample.questions:
            self.asker.check(question.text, question.longest)

    def read(self) -> bool:
        self._read_s = self.asker.read(self.sample.text, self._progress())
        return True

    def row(self, preset: Preset, question: TaskQuestion) -> dict[str, Any]:
        asker = self.asker
        reply = asker.ask(question.text, question.longest)
        facts = [self.sample.facts[fact] for fact in question.facts]
        fields = self._fields(question, reply.text, reply, asker.nbytes)
        return fields | {
            "before": "",
            "prompt": preset.answer.prompt.replace("{question}", question.text),
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
