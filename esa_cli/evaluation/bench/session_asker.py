"""Asks a session a record's question: over rows with the prompt of the benchmark's official code,
or from text.

Decoding is greedy. Consecutive records with the same document share one prefill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from esa_cli.evaluation.bench.bench_runner import BenchRecord, BenchReply
from esa_cli.evaluation.text_asker import TextAsker
from esa_cli.qa.presets.preset import Preset, Prompt
from esa_cli.qa.presets.resolved_preset import FROM_TEXT
from esa_cli.system.progress import Progress

if TYPE_CHECKING:
    from esa_cli.qa.answering.session import Session

Reading = Callable[[BenchRecord], Progress | None]
"""Called before a prefill; returns progress(done, all)."""


@dataclass
class RecordAsker:
    """Answers records with one method; the record's prompt replaces the preset's.

    Args:
        preset: the method. reading: called before a prefill; returns progress(done, all).
    """

    session: Session
    preset: Preset
    reading: Reading
    _read: tuple[str, str, bool] | None = field(default=None, init=False)

    def __call__(self, record: BenchRecord) -> BenchReply:
        wanted = (record.before, record.document, record.chat)
        if wanted != self._read:
            self._read = None
            self.session.clear()
        # The text after the document may change with every record.
        prompt = Prompt(before=record.before, after="{question}", chat=record.chat)
        self.session.use(self.preset.model_copy(update={"prompt": prompt}))
        self.session.check(record.question, prime=record.prime, max_new_tokens=record.longest)
        if self._read is None:
            self.session.read(record.document, self.reading(record))
            self._read = wanted
        pieces: list[str] = []
        answer = self.session.ask(
            record.question,
            prime=record.prime,
            max_new_tokens=record.longest,
            temperature=0.0,
            on_text=pieces.append,
        )
        text = "".join(pieces)
        margin = text[: len(text) - len(text.lstrip())]  # code is scored with its indentation
        tokens = self.session.document_tokens + answer.question_tokens
        return BenchReply(margin + answer.text, tokens)


@dataclass
class TextRecordAsker:
    """Answers records from text. The question is all that the benchmark puts behind its document;
    what it puts before it, and the first words of an answer, are not given.

    Args:
        reading: called before a text is read; returns progress(done, all).
    """

    asker: TextAsker
    reading: Reading
    _read: str | None = field(default=None, init=False)

    def __call__(self, record: BenchRecord) -> BenchReply:
        self.asker.check(record.question, record.longest)
        if record.document != self._read:
            self._read = None
            self.asker.read(record.document, self.reading(record))
            self._read = record.document
        reply = self.asker.ask(record.question, record.longest, temperature=0.0)
        return BenchReply(reply.text, len(self.asker.book.spans) + reply.question_tokens)


def record_asker(
    session: Session, method: str, preset: Preset, reading: Reading
) -> Callable[[BenchRecord], BenchReply]:
    """Answers records with a method; the session has no other user until the last record."""
    if method == FROM_TEXT:
        return TextRecordAsker(TextAsker(session, preset), reading)
    return RecordAsker(session, preset, reading)
