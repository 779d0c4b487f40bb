"""The questions of one document, asked by methods over cached rows or from text; the fields of a
question's row that depend on the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from esa_cli.evaluation.selftest.evidence_recall import evidence_recall_fields
from esa_cli.evaluation.selftest.needle_recall import NeedleRecall, positions, recall_fields
from esa_cli.evaluation.selftest.run_plan import prompted_preset
from esa_cli.evaluation.tasks import find_task
from esa_cli.evaluation.tasks.task_sample import Fact, TaskQuestion, TaskSample
from esa_cli.evaluation.text_asker import TextAsker
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.answering.session import Answer, Session
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.machine import peak_memory
from esa_cli.system.text import text_digest

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


def _times(answer: Answer | Reply) -> dict[str, float]:
    return {
        "ask_s": round(answer.total_s, 3),
        "first_token_s": round(answer.first_token_s, 3),
    }
