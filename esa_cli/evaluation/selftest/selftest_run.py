"""Runs a self-test: asks questions by several methods, and measures which facts each layer sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from esa_cli.attention.step import ChunkTrace
from esa_cli.errors import UsageError
from esa_cli.evaluation.row_run import DocumentQuestions, QuestionCase, answer_missing_rows
from esa_cli.evaluation.selftest import run_plan
from esa_cli.evaluation.tasks import find_selftest_task
from esa_cli.evaluation.tasks.task_sample import (
    Haystack,
    PlantedFact,
    TaskQuestion,
    TaskRequest,
    TaskSample,
)
from esa_cli.evaluation.text_asker import TextAnswerer
from esa_cli.qa.answering.session import Session
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.cache_key import hash_method_settings
from esa_cli.qa.presets.preset import Preset, Prompt
from esa_cli.system.jsonl import Journal
from esa_cli.system.machine import measure_peak_memory
from esa_cli.system.progress import ALL_WORK, WorkShard
from esa_cli.system.text import digest_text

OWN = "own"
"""The name of the test whose document is the user's whole text."""
IN_VIEW = 0.5
"""A fact is in view of a layer if at least this share of its tokens is."""
LAYERS = 0.25
"""A fact is selected if it is in view of at least this share of layers. About a quarter of the
default model's layers use a found passage (benchmarks/NOTES.md)."""
SHOWN = 3
"""The number of first passages that count as evidence, as many as `esa ask` shows."""


NeedleShare = tuple[float, float]
"""The share of a fact's tokens in view of one layer: the mean over heads, and the best head's
share, since one head with the fact in view is enough."""


@dataclass
class ChunkRecorder:
    """Records a question's last chunk in each layer; the argument `trace` of `Session.ask`."""

    last_chunks: dict[int, ChunkTrace] = field(default_factory=dict)

    def __call__(self, trace: ChunkTrace) -> None:
        if not trace.decoding:
            self.last_chunks[trace.layer] = trace

    def measure_facts(self, facts: Sequence[range]) -> list[NeedleShare]:
        """Returns for each layer the share of the facts' tokens that are in view: initial, selected
        or local tokens. `facts` has the absolute positions of each fact's tokens."""
        out = []
        for layer in sorted(self.last_chunks):
            pairs = [_measure_share_in_view(self.last_chunks[layer], fact) for fact in facts]
            mean, best = (sum(column) / len(facts) for column in zip(*pairs, strict=True))
            out.append((mean, best))
        return out


def _measure_share_in_view(trace: ChunkTrace, fact: range) -> NeedleShare:
    near = trace.start - trace.local
    inside = sum(at >= near for at in fact)
    stop, rows = min(fact.stop, near), trace.far_tokens_by_head
    selected = [int(((row >= fact.start) & (row < stop)).sum()) for row in rows]
    size, mean = max(1, len(fact)), sum(selected) / len(selected)
    return (inside + mean) / size, (inside + max(selected)) / size


def has_facts_in_view(shares: Sequence[float]) -> bool:
    """Says whether facts are in view of enough layers. `shares` has a share for each layer."""
    return sum(share >= IN_VIEW for share in shares) >= LAYERS * len(shares)


def _explain_missed_answer(score: float, is_selected: bool) -> str:
    """Returns why an answer was missed: the fact was not selected, or was selected but not used."""
    if score >= 1:
        return "answered"
    return "selected, not used" if is_selected else "not selected"


def make_layer_recall_fields(score: float, shares: Sequence[NeedleShare]) -> dict[str, Any]:
    """Returns the fields `recall` and `why` of a question's row from layers' shares of facts."""
    if not shares:
        return {"recall": None, "why": None}
    layers, best = ([round(share, 4) for share in column] for column in zip(*shares, strict=True))
    recall: dict[str, Any] = {"mean": round(sum(layers) / len(layers), 4), "layers": layers}
    if best != layers:
        recall["best_head"] = best
    return {"recall": recall, "why": _explain_missed_answer(score, has_facts_in_view(best))}


def find_token_positions(
    spans: Sequence[tuple[int, int]], start: int, end: int, head: int
) -> range:
    """Returns the absolute positions of the tokens that cover characters [start, end). `spans` has
    the characters of each token of the document, which begins after `head` prompt tokens."""
    inside = [at for at, (low, high) in enumerate(spans) if high > start and low < end]
    return range(inside[0] + head, inside[-1] + 1 + head) if inside else range(0)


def compute_covered_share(fact: PlantedFact, passages: Sequence[Passage]) -> float:
    """Returns the share of a fact's characters in the passages, which may overlap."""
    inside = {
        at
        for passage in passages
        for at in range(max(fact.start, passage.start), min(fact.end, passage.end))
    }
    return len(inside) / max(1, fact.end - fact.start)


def make_passage_recall_fields(
    score: float, facts: Sequence[PlantedFact], passages: Sequence[Passage]
) -> dict[str, Any]:
    """Returns the fields `recall` and `why` of a question's row from the passages of its answer.
    `mean` is the share of the facts in the first passages, and `read` the share in all passages
    that the model read. The facts count as selected if `read` is at least `IN_VIEW`."""
    if not facts:
        return {"recall": None, "why": None}
    shown, read = (
        round(sum(compute_covered_share(fact, some) for fact in facts) / len(facts), 4)
        for some in (passages[:SHOWN], passages)
    )
    return {
        "recall": {"mean": shown, "read": read},
        "why": _explain_missed_answer(score, read >= IN_VIEW),
    }


def count_tokens(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


@dataclass
class SelftestRun:
    """A run of a self-test on one model, by several methods applied to a preset.

    Args:
        listener: has `reading(test, length, names, tokens)`, which returns progress(done, total),
            `row(row)` for each answer, and `note(text)` for a part that is left out.
        until: when to stop, by `time.monotonic`. shard: the prefills for this process."""

    loaded: Any
    preset: Preset
    settings: run_plan.SelftestSettings
    haystack: Haystack
    journal: Journal
    listener: Any
    until: float | None = None
    shard: WorkShard = ALL_WORK
    asker: TextAnswerer | None = field(default=None, init=False)

    def run(self) -> bool:
        """Asks every question without a row in the journal. Returns False if the time limit came
        first. Raises EsaError: a method, its settings or the haystack is wrong."""
        loaded = self.loaded
        with Session(loaded.model, loaded.tokenizer, self.preset, loaded.cache) as session:
            self._check_questions(session)
            documents = (
                SelftestDocument(self, session, *pair).make_cases()
                for pair in self.shard.select_items(self._pair_documents_with_groups())
            )
            return answer_missing_rows(
                documents, self.journal, until=self.until, on_row=self.listener.row
            )

    def count_tokens(self, text: str) -> int:
        """Counts the tokens of a text with the model's tokenizer."""
        return count_tokens(self.loaded.tokenizer, text)

    @cached_property
    def own_document_token_count(self) -> int:
        """Number of tokens of the user's text with the planted facts."""
        return next(self.make_samples(OWN, 0)).length

    def make_samples(self, test: str, length: int) -> Iterator[TaskSample]:
        """Yields the documents of a test at one length. Raises UsageError: a document cannot hold
        so many facts, or the haystack is too short."""
        settings = self.settings
        request = TaskRequest(
            length, self.count_tokens, self.haystack, settings.samples, settings.seed
        )
        return find_selftest_task(test).samples(request)

    def _pair_documents_with_groups(self) -> Iterator[tuple[TaskSample, run_plan.MethodGroup]]:
        """Yields each document with each group of methods that share a prefill of the document."""
        for test in self.settings.tests:
            if self.settings.dense:
                group = run_plan.make_ceiling_group(self.preset)
                length = run_plan.choose_ceiling_length(self.preset)
                try:
                    yield from ((sample, group) for sample in self.make_samples(test, length))
                except UsageError as error:
                    self.listener.note(f"{test}: full attention was not measured: {error.message}")
            for length in self._list_lengths_of_test(test):
                for group in run_plan.group_by_prefill(self.settings, self.preset, length):
                    yield from ((sample, group) for sample in self.make_samples(test, length))

    def _list_lengths_of_test(self, test: str) -> tuple[int, ...]:
        return (self.own_document_token_count,) if test == OWN else self.settings.lengths

    def _check_questions(self, session: Session) -> None:
        """Builds every method, and checks the questions of each test's first document, so that
        errors are reported before the first long prefill."""
        for test in self.settings.tests:
            for length in self._list_lengths_of_test(test):
                sample = next(self.make_samples(test, length))
                for group in run_plan.group_by_prefill(self.settings, self.preset, length):
                    for preset in group.presets if group.reading != "text" else ():
                        session.use_preset(preset)
                        # Some position encodings cannot change the frequencies of some models.
                        host = session.attachment.rope.frequencies
                        session.method.position.frequencies(*host, length)
                    SelftestDocument(self, session, sample, group).check_lengths()


class SelftestDocument:
    """The questions about one document, asked by a group of methods with the KV cache or from text.
    A question that is answered from text has the preset's prompt instead of the benchmark's."""

    def __init__(
        self, run: SelftestRun, session: Session, sample: TaskSample, group: run_plan.MethodGroup
    ) -> None:
        self.run, self.session, self.sample, self.group = run, session, sample, group
        self._asker: TextAnswerer | None = None
        if group.reading == "text":
            self._asker = run.asker = run.asker or TextAnswerer(session, run.preset)

    def make_cases(self) -> DocumentQuestions:
        """Returns all questions about the document, one for each question and method."""
        sample, group, cases = self.sample, self.group, list[QuestionCase]()
        document = digest_text(sample.text)[:16]
        for name, preset in zip(group.names, group.presets, strict=True):
            settings = hash_method_settings(name, preset)
            for question in sample.questions:
                key = (sample.test, name, sample.length, sample.index, question.key)
                fields = {
                    **dict(zip(run_plan.KEY, key, strict=True)),
                    "dense": group.dense,
                    "settings": settings,
                    "reading": group.reading,
                    "document": document,
                }
                cases.append(QuestionCase(fields, partial(self._ask_question, preset, question)))
        return DocumentQuestions(cases, self._ingest_document)

    def check_lengths(self) -> None:
        """Raises LengthError: a question does not fit into the model's window."""
        for preset in self.group.presets:
            for question in self.sample.questions:
                if self._asker is not None:
                    self._asker.check_length(question.text, question.max_new_tokens)
                    continue
                self._set_session_preset(preset)
                self.session.check_length(
                    question.text, prime=question.prime, max_new_tokens=question.max_new_tokens
                )

    def _set_session_preset(self, preset: Preset) -> None:
        """Sets the session's preset, with the benchmark's prompt if the sample has a prompt."""
        sample = self.sample
        if sample.after is not None:
            prompt = Prompt(system=preset.prompt.system, before=sample.before, after=sample.after)
            preset = preset.model_copy(update={"prompt": prompt})
        self.session.use_preset(preset)

    def _ingest_document(self) -> bool:
        """Reads the document, or returns False if full attention does not fit into the window."""
        run, session, sample, group = self.run, self.session, self.sample, self.group
        if self._asker is None:
            session.empty_cache()
            self._set_session_preset(group.presets[0])
            prompt, context = session.prompt, run.preset.context
            self._spans = prompt.find_token_offsets(sample.text)
            asked = (
                len(prompt.encode_question(q.text, q.prime)) + q.max_new_tokens
                for q in sample.questions
            )
            if group.dense and len(prompt.encode_document(sample.text)) + max(asked) > context:
                run.listener.note(
                    f"{sample.test}: full attention was not measured: document, question, answer "
                    f"do not fit into the model's window of {context:,} tokens"
                )
                return False
        total = run.count_tokens(sample.text)
        progress = run.listener.reading(sample.test, sample.length, group.names, total)
        if self._asker is not None:
            self._read_s = self._asker.ingest_text(sample.text, progress)
            return True
        self._read_s = run_plan.prefill_for_group(session, run.preset, group, sample.text, progress)
        note = run_plan.describe_full_attention(session.document_tokens, group.presets)
        if note is not None and not group.dense:
            run.listener.note(f"{sample.test}: {note}")
        return True

    def _ask_question(self, preset: Preset, question: TaskQuestion) -> dict[str, Any]:
        """Asks a question, and returns the row's fields that depend on the answer."""
        session, asker = self.session, self._asker
        facts = [self.sample.facts[fact] for fact in question.facts]
        score_of = find_selftest_task(self.sample.test).score
        if asker is not None:
            reply = asker.ask(question.text, question.max_new_tokens)
            score = round(score_of(question, reply.text), 4)
            document, stored = len(asker.book.spans), asker.nbytes
            fields = {
                "before": "",
                "prompt": preset.answer.prompt.replace("{question}", question.text),
                "found": reply.found,
                "quoted": reply.quotation is not None,
                **make_passage_recall_fields(score, facts, reply.evidence),
            }
        else:
            self._set_session_preset(preset)
            recall, prompt = ChunkRecorder(), session.prompt
            reply = session.ask(
                question.text, max_new_tokens=question.max_new_tokens, prime=question.prime,
                trace=recall,
            )  # fmt: skip
            score = round(score_of(question, question.prime + reply.text), 4)
            document, stored = session.document_tokens, session.cache.nbytes
            head = len(prompt.encode_prompt_start())
            places = [find_token_positions(self._spans, f.start, f.end, head) for f in facts]
            fields = {
                "before": session.tokenizer.decode(prompt.encode_prompt_start()),
                "prompt": prompt.render_question(question.text, question.prime),
                **make_layer_recall_fields(score, recall.measure_facts(places) if places else []),
            }
        return {
            # The mean depth of several facts would be a depth without a fact.
            "depth": round(facts[0].depth, 4) if len(facts) == 1 else None,
            "expected": list(question.answers),
            "answer": reply.text,
            "score": score,
            "memory": {
                "kept_bytes": stored,
                "peak_bytes": measure_peak_memory(str(session.model.device)),
            },
            "time": {
                "ask_s": round(reply.total_s, 3), "first_token_s": round(reply.first_token_s, 3),
                "read_s": round(self._read_s, 2),
            },
            **fields,
            "tokens": {
                "document": document, "question": reply.question_tokens,
                "answer": reply.answer_tokens,
            },
        }  # fmt: skip
