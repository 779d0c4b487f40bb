"""Asks the questions of a self-test, and measures to which facts each layer attends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from esa_cli.attention.step import ChunkTrace
from esa_cli.errors import UsageError
from esa_cli.evaluation.row_run import DocumentQuestions, QuestionToAsk, ask_unanswered_questions
from esa_cli.evaluation.selftest import run_plan
from esa_cli.evaluation.tasks import TASKS, task_sample
from esa_cli.evaluation.tasks.task_sample import Haystack, PlantedFact, TaskDocument, TaskQuestion
from esa_cli.evaluation.text_asker import TextAnswerer
from esa_cli.models import LoadedModel
from esa_cli.qa.answering.session import Session
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.cache_key import hash_method_settings
from esa_cli.qa.presets.preset import Preset, Prompt
from esa_cli.system.jsonl import ResultsFile
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
"""The share of a fact's tokens in view of one layer, as the mean over heads and the best head's."""


@dataclass
class ChunkRecorder:
    """Records to which tokens the last chunk of a question attends in each layer."""

    last_chunks: dict[int, ChunkTrace] = field(default_factory=dict)

    def __call__(self, trace: ChunkTrace) -> None:
        if not trace.decoding:
            self.last_chunks[trace.layer] = trace

    def measure_facts_in_view(self, fact_positions: Sequence[range]) -> list[NeedleShare]:
        """Returns for each layer which share of the facts' tokens the layer attends to."""
        out = []
        for _, chunk in sorted(self.last_chunks.items()):
            pairs = [_measure_fact_share_in_view(chunk, fact) for fact in fact_positions]
            mean, best = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
            out.append((mean, best))
        return out


def _measure_fact_share_in_view(trace: ChunkTrace, fact_positions: range) -> NeedleShare:
    near = trace.start - trace.local
    inside = sum(at >= near for at in fact_positions)
    stop, rows = min(fact_positions.stop, near), trace.list_far_positions()
    selected = [int(((row >= fact_positions.start) & (row < stop)).sum()) for row in rows]
    size, mean = max(1, len(fact_positions)), sum(selected) / len(selected)
    return (inside + mean) / size, (inside + max(selected)) / size


def are_facts_in_view(layer_shares: Sequence[float]) -> bool:
    """Says whether a quarter of the layers attend to at least half of the facts' tokens."""
    return sum(share >= IN_VIEW for share in layer_shares) >= LAYERS * len(layer_shares)


def _explain_missed_answer(score: float, is_fact_selected: bool) -> str:
    if score >= 1:
        return "answered"
    return "selected, not used" if is_fact_selected else "not selected"


def make_layer_recall_fields(score: float, layer_shares: Sequence[NeedleShare]) -> dict[str, Any]:
    """Makes the fields `recall`, the share of the facts in view, and `why` of a missed answer."""
    if not layer_shares:
        return {"recall": None, "why": None}
    layers, best = ([round(x, 4) for x in column] for column in zip(*layer_shares, strict=True))
    recall: dict[str, Any] = {"mean": round(sum(layers) / len(layers), 4), "layers": layers}
    if best != layers:
        recall["best_head"] = best
    return {"recall": recall, "why": _explain_missed_answer(score, are_facts_in_view(best))}


def find_token_positions(
    token_offsets: Sequence[tuple[int, int]], text_start: int, text_end: int, tokens_before: int
) -> range:
    """Returns the positions in the prompt of the tokens that cover the characters from `text_start`
    to `text_end` of a document. The prompt has `tokens_before` tokens before the document."""
    tokens = enumerate(token_offsets)
    inside = [at for at, (low, high) in tokens if high > text_start and low < text_end]
    return range(inside[0] + tokens_before, inside[-1] + 1 + tokens_before) if inside else range(0)


def compute_fact_share_in_passages(fact: PlantedFact, passages: Sequence[Passage]) -> float:
    """Returns which share of a planted fact's characters the passages contain."""
    inside = {
        at
        for passage in passages
        for at in range(max(fact.start, passage.start), min(fact.end, passage.end))
    }
    return len(inside) / max(1, fact.end - fact.start)


def make_passage_recall_fields(
    score: float, facts: Sequence[PlantedFact], passages: Sequence[Passage]
) -> dict[str, Any]:
    """Makes the fields `recall`, the share of the facts in passages, and `why` of a miss."""
    if not facts:
        return {"recall": None, "why": None}
    shown, read = (
        round(sum(compute_fact_share_in_passages(fact, some) for fact in facts) / len(facts), 4)
        for some in (passages[:SHOWN], passages)
    )
    why = _explain_missed_answer(score, read >= IN_VIEW)
    return {"recall": {"mean": shown, "read": read}, "why": why}


@dataclass
class SelftestRun:
    """A run of a self-test, in which one model answers with several attention methods.
    `reporter` has `start_progress(label, unit)` and `show_note(text)`."""

    loaded: LoadedModel
    preset: Preset
    settings: run_plan.SelftestSettings
    haystack: Haystack
    journal: ResultsFile
    reporter: Any
    deadline: float | None = None  # of `time.monotonic`, after which no question is asked
    shard: WorkShard = ALL_WORK  # the share of the prefills that this process does
    asker: TextAnswerer | None = field(default=None, init=False)

    def ask_all_questions(self) -> bool:
        """Asks every question that has no row in the result file. Returns False if the deadline
        passed. Raises EsaError: a method, its settings or the haystack is wrong."""
        loaded = self.loaded
        with Session(loaded.model, loaded.tokenizer, self.preset, loaded.cache) as session:
            self._check_methods_and_questions(session)
            documents = (
                SelftestAnswerer(self, session, *pair).make_questions()
                for pair in self.shard.select_items(self._pair_documents_with_groups())
            )
            return ask_unanswered_questions(documents, self.journal, deadline=self.deadline)

    def count_tokens(self, text: str) -> int:
        encode = self.loaded.tokenizer
        return len(encode(text, add_special_tokens=False, verbose=False)["input_ids"])

    @cached_property
    def user_document_token_count(self) -> int:
        """The number of tokens of the user's document after facts were planted."""
        return next(self.make_documents(OWN, 0)).length

    def make_documents(self, test_name: str, document_tokens: int) -> Iterator[TaskDocument]:
        """Yields documents of about `document_tokens` tokens. Raises UsageError."""
        settings = self.settings
        request = task_sample.TaskRequest(
            document_tokens, self.count_tokens, self.haystack, settings.samples, settings.seed
        )
        return TASKS[test_name].samples(request)

    def _pair_documents_with_groups(self) -> Iterator[tuple[TaskDocument, run_plan.PrefillGroup]]:
        """Yields every document with every group of methods that share its prefill."""
        for test in self.settings.tests:
            if self.settings.dense:
                group = run_plan.make_full_attention_group(self.preset)
                length = run_plan.get_max_full_attention_tokens(self.preset)
                try:
                    yield from ((sample, group) for sample in self.make_documents(test, length))
                except UsageError as error:
                    wrong = f"full attention was not measured: {error.message}"
                    self.reporter.show_note(f"esa: {test}: {wrong}")
            for length in self._list_document_lengths(test):
                for group in run_plan.group_methods_by_prefill(self.settings, self.preset, length):
                    yield from ((sample, group) for sample in self.make_documents(test, length))

    def _list_document_lengths(self, test_name: str) -> tuple[int, ...]:
        return (self.user_document_token_count,) if test_name == OWN else self.settings.lengths

    def _check_methods_and_questions(self, session: Session) -> None:
        """Reports errors of methods and of first questions before the first long prefill."""
        for test in self.settings.tests:
            for length in self._list_document_lengths(test):
                sample = next(self.make_documents(test, length))
                for group in run_plan.group_methods_by_prefill(self.settings, self.preset, length):
                    for preset in group.presets.values() if group.reading != "text" else ():
                        session.use_preset(preset)
                        # Some position encodings cannot change the frequencies of some models.
                        host = session.attachment.rotary_embedding.get_inverse_frequencies()
                        session.method.position.frequencies(*host, length)
                    SelftestAnswerer(self, session, sample, group).check_question_lengths()


class SelftestAnswerer:
    """Answers the questions about one document of a self-test by methods that share a prefill."""

    def __init__(
        self, run: SelftestRun, session: Session, sample: TaskDocument, group: run_plan.PrefillGroup
    ) -> None:
        self.run, self.session, self.sample, self.group = run, session, sample, group
        self._asker: TextAnswerer | None = None
        if group.reading == "text":
            self._asker = run.asker = run.asker or TextAnswerer(run.loaded, session, run.preset)

    def make_questions(self) -> DocumentQuestions:
        """Returns the document's questions, each once for every method of the group."""
        sample, group, questions = self.sample, self.group, list[QuestionToAsk]()
        document = digest_text(sample.text)[:16]
        for name, preset in group.presets.items():
            settings = hash_method_settings(name, preset)
            for question in sample.questions:
                key = (sample.test, name, sample.length, sample.index, question.key)
                fields = {
                    **dict(zip(run_plan.KEY, key, strict=True)), "dense": group.dense,
                    "settings": settings, "reading": group.reading, "document": document,
                }  # fmt: skip
                ask = partial(self._ask_and_score_question, preset, question)
                questions.append(QuestionToAsk(fields, ask))
        return DocumentQuestions(
            questions, self._prefill_or_index_document, self._show_answer_progress
        )

    def _show_answer_progress(self, done_count: int, total_count: int) -> None:
        if not done_count:
            label = f"{self.sample.test} at {self.sample.length:,} tokens: answering"
            self._progress = self.run.reporter.start_progress(label, "answers")
        self._progress(done_count, total_count)

    def check_question_lengths(self) -> None:
        """Raises LengthError: a question does not fit into the model's window."""
        for preset in self.group.presets.values():
            for question in self.sample.questions:
                self._set_session_preset(preset)
                answerer = self._asker or self.session
                answerer.check_length(question.text, question.prime, question.max_new_tokens)

    def _set_session_preset(self, preset: Preset) -> None:
        """Sets the session's preset, with the prompt of the self-test if the test has a prompt."""
        sample = self.sample
        if sample.after is not None:
            prompt = Prompt(system=preset.prompt.system, before=sample.before, after=sample.after)
            preset = preset.model_copy(update={"prompt": prompt})
        self.session.use_preset(preset)

    def _prefill_or_index_document(self) -> bool:
        """Returns False if the document is too long for full attention inside the window."""
        run, session, sample, group = self.run, self.session, self.sample, self.group
        if self._asker is None:
            session.empty_cache()
            self._set_session_preset(next(iter(group.presets.values())))
            prompt, context = session.prompt, run.preset.context
            self._spans = prompt.find_token_offsets(sample.text)
            asked = (
                len(prompt.encode_question(q.text, q.prime)) + q.max_new_tokens
                for q in sample.questions
            )
            if group.dense and len(prompt.encode_document(sample.text)) + max(asked) > context:
                run.reporter.show_note(
                    f"esa: {sample.test}: full attention was not measured: document, question, "
                    f"answer do not fit into the model's window of {context:,} tokens"
                )
                return False
        label = f"{sample.test} at {sample.length:,} tokens: reading for {', '.join(group.presets)}"
        progress = run.reporter.start_progress(label)
        answerer, presets = self._asker or session, group.presets.values()
        self._read_s = run_plan.read_text(answerer, run.preset, group, sample.text, progress)
        note = run_plan.explain_if_attention_is_full(session.document_tokens, presets)
        if note is not None and not (group.dense or self._asker):
            run.reporter.show_note(f"esa: {sample.test}: {note}")
        return True

    def _ask_and_score_question(self, preset: Preset, question: TaskQuestion) -> dict[str, Any]:
        session, asker, sample = self.session, self._asker, self.sample
        facts = [sample.facts[fact] for fact in question.facts]
        score_of = TASKS[sample.test].score
        if asker is not None:
            reply = asker.ask(question.text)
            score = round(score_of(question, reply.text), 4)
            document, stored = asker.document_tokens, asker.nbytes
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
            shares = recall.measure_facts_in_view(places) if places else []
            fields = {
                "before": session.tokenizer.decode(prompt.encode_prompt_start()),
                "prompt": prompt.render_question(question.text, question.prime),
                **make_layer_recall_fields(score, shares),
            }
        peak = measure_peak_memory(str(session.model.device))
        return {
            # The mean depth of several facts would be a depth without a fact.
            "depth": round(facts[0].depth, 4) if len(facts) == 1 else None,
            "expected": list(question.answers),
            "answer": reply.text,
            "score": score,
            "memory": {"kept_bytes": stored, "peak_bytes": peak},
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
