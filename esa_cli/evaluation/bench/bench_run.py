"""The records of a benchmark, asked by methods: over the KV cache with the prompt of the
benchmark's official code, or from text.

Decoding is greedy. Consecutive records about the same document share one prefill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from esa_cli.errors import DocumentError, UsageError
from esa_cli.evaluation.bench.records import AGAIN, Benchmark, BenchRecord
from esa_cli.evaluation.row_run import Case, DocumentCases, Share, has_row, reason
from esa_cli.evaluation.text_asker import TextAsker
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.cache_key import method_hash
from esa_cli.qa.presets.preset import Preset, Prompt
from esa_cli.system.jsonl import Journal
from esa_cli.system.progress import ALL_WORK, Progress, WorkShard
from esa_cli.system.registry import nearest

if TYPE_CHECKING:
    from esa_cli.qa.answering.session import Session

KEY = ("method", "task", "id")
"""Fields that identify a row."""


class _CheckedRow(BaseModel):
    model_config = ConfigDict(strict=True)

    score: Share
    tokens: int


def wrong(row: Mapping[str, Any]) -> str:
    """Says what is wrong with a row of an earlier run; empty for a valid one."""
    return reason(_CheckedRow, row)


def chosen_tasks(benchmark: Benchmark, folder: Path, asked: Sequence[str] | None) -> list[str]:
    """The tasks to run, in the table's order: those asked for, else those whose files are there.
    Raises UsageError: there is no such task. DocumentError: nothing of it is in the folder."""
    if not folder.is_dir():
        raise DocumentError(f"there is no folder {folder}", f"official files: {benchmark.source}")
    known = [task.name for task in benchmark.tasks]
    if asked is None:
        tasks = benchmark.there(folder)
        if not tasks:
            raise DocumentError(
                f"{folder} has none of the benchmark's files", f"official: {benchmark.source}"
            )
        return tasks
    for name in asked:
        if name not in known:
            raise UsageError(f"unknown task {name!r}", nearest(name, known))
    return [name for name in known if name in asked]


def settings_of(method: str, preset: Preset) -> str:
    """The hash of a method's settings without the prompt, which is the benchmark's."""
    return method_hash(method, preset, ("name", "description", "prompt", "generation"))


@dataclass(frozen=True)
class Survey:
    """What the files say, before any question is asked: the digest of each record, by task and id,
    and the longest prompt."""

    digests: Mapping[tuple[str, str], str]
    longest: str

    def is_complete(self, journal: Journal, presets: Mapping[str, Preset]) -> bool:
        """True if the journal has a row of each record by each method. Raises UsageError: one is of
        another record, or by other settings."""
        complete = True
        for method, preset in presets.items():
            settings = settings_of(method, preset)
            for (task, name), digest in self.digests.items():
                fields = {"method": method, "task": task, "id": name}
                fields |= {"settings": settings, "record": digest}
                complete = has_row(journal, fields) and complete
        return complete


@dataclass(frozen=True)
class BenchSelection:
    """Tasks of a benchmark from the files in a folder, the first `limit` records of each."""

    benchmark: Benchmark
    folder: Path
    tasks: Sequence[str]
    limit: int | None = None
    shard: WorkShard = ALL_WORK

    def records(self) -> Iterator[BenchRecord]:
        """Those of all shards. Raises DocumentError, UsageError."""
        return self.benchmark.load(self.folder, self.tasks, self.limit)

    def documents(self) -> Iterator[list[BenchRecord]]:
        """The shard's records, consecutive ones about one document together."""
        documents = groupby(self.records(), lambda r: (r.task, r.before, r.document, r.chat))
        return self.shard.take(list(records) for _, records in documents)

    def survey(self) -> Survey:
        """Reads every line once, so that an invalid one is found before any question is asked.
        Raises DocumentError, UsageError."""
        digests: dict[tuple[str, str], str] = {}
        longest = ""
        for record in self.records():
            name = (record.task, record.id)
            if name in digests:  # its second answer would be taken for the first one's
                raise DocumentError(f"{record.task} has two records {record.id!r}", AGAIN)
            if not record.question.strip():
                raise DocumentError(f"{record.task}, record {record.id!r} has no question", AGAIN)
            digests[name] = record.digest
            longest = max(longest, record.before + record.document, key=len)
        return Survey(digests, longest)


class RecordAsker:
    """Answers records with one method; a record's prompt replaces the preset's.

    From text the question is all that the benchmark puts after its document; what it puts before
    it, and the first words of an answer, are not given.

    Args:
        reading: called before a document is read; returns progress(done, all).
    """

    def __init__(
        self,
        session: Session,
        method: str,
        preset: Preset,
        reading: Callable[[BenchRecord], Progress | None],
    ) -> None:
        self.session, self.method, self.preset, self.reading = session, method, preset, reading
        self.settings = settings_of(method, preset)
        from_text = method == resolved_preset.FROM_TEXT
        self._text = TextAsker(session, preset) if from_text else None
        self._started = 0.0

    def cases(self, benchmark: Benchmark, records: Sequence[BenchRecord]) -> DocumentCases:
        """The records, which are about one document."""
        cases = []
        for record in records:
            fields = {
                "method": self.method, "task": record.task, "id": record.id,
                "settings": self.settings, "record": record.digest,
                "benchmark": record.benchmark, "answers": list(record.answers),
            }  # fmt: skip
            ask = partial(self._row, benchmark, record)
            cases.append(Case(fields, ask, partial(self.check, record)))
        return DocumentCases(cases, partial(self._read, records[0]))

    def _use(self, record: BenchRecord) -> None:
        prompt = Prompt(before=record.before, after="{question}", chat=record.chat)
        self.session.use(self.preset.model_copy(update={"prompt": prompt}))

    def check(self, record: BenchRecord) -> None:
        """Raises LengthError: there is no room for the question and the answer."""
        if self._text is not None:
            self._text.check(record.question, record.longest)
            return
        self.session.clear()
        self._use(record)
        self.session.check(record.question, prime=record.prime, max_new_tokens=record.longest)

    def _read(self, record: BenchRecord) -> bool:
        self._started = time.monotonic()
        progress = self.reading(record)
        if self._text is not None:
            self._text.read(record.document, progress)
        else:
            self._use(record)
            self.session.read(record.document, progress)
        return True

    def _ask(self, record: BenchRecord) -> tuple[str, int]:
        """The answer as generated, and the number of the prompt's tokens."""
        if self._text is not None:
            reply = self._text.ask(record.question, record.longest, temperature=0.0)
            return reply.text, len(self._text.book.spans) + reply.question_tokens
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
        return margin + answer.text, self.session.document_tokens + answer.question_tokens

    def _row(self, benchmark: Benchmark, record: BenchRecord) -> dict[str, Any]:
        output, tokens = self._ask(record)
        # The first question after a document was read includes the time of reading.
        seconds, self._started = time.monotonic() - self._started, time.monotonic()
        return {
            "output": output,
            "score": benchmark.score(record, output),
            "tokens": tokens,
            "seconds": round(seconds, 2),
        }
