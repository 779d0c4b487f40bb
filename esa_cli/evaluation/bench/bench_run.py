"""Runs a public benchmark with several methods, and makes the table of their scores.

Methods over the KV cache get the prompt of the benchmark's official code. Decoding is greedy.
Consecutive records about one document share one prefill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from esa_cli.errors import DocumentError, UsageError
from esa_cli.evaluation.bench.benchmarks import REFETCH, Benchmark, BenchRecord, BenchTask
from esa_cli.evaluation.row_run import DocumentQuestions, QuestionCase, has_result_row
from esa_cli.evaluation.text_asker import TextAnswerer
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.cache_key import hash_method_settings
from esa_cli.qa.presets.preset import Preset, Prompt
from esa_cli.system.jsonl import Journal
from esa_cli.system.progress import ALL_WORK, Progress, WorkShard
from esa_cli.system.registry import suggest_name

KEY = ("method", "task", "id")
"""The fields that identify a row of a benchmark."""


def describe_invalid_row(row: Mapping[str, Any]) -> str:
    """Returns what is wrong with a result row of an earlier run, or else an empty text."""
    score, tokens = row.get("score", ""), row.get("tokens", "")
    is_valid = type(score) in (int, float) and type(tokens) is int and 0 <= score <= 1
    return "" if is_valid else f"score and tokens are {score!r} and {tokens!r}"


def choose_tasks(benchmark: Benchmark, folder: Path, asked: Sequence[str] | None) -> list[str]:
    """Returns the tasks to run in the table's order: the requested tasks, or by default every task
    whose file is in the folder. Raises UsageError: a task is unknown. DocumentError: no file."""
    if asked is None:
        tasks = benchmark.list_tasks_in_folder(folder)
        if not tasks:
            raise DocumentError(
                f"the folder {folder} has no file of the benchmark",
                f"get the official files: {benchmark.source}",
            )
        return tasks
    known = [task.name for task in benchmark.tasks]
    for name in asked:
        if name not in known:
            raise UsageError(f"the benchmark has no task {name!r}", suggest_name(name, known))
    return [name for name in known if name in asked]


def hash_benchmark_settings(method: str, preset: Preset) -> str:
    """Returns a hash of a method's settings, except the prompt, which the benchmark sets."""
    return hash_method_settings(method, preset, ("name", "description", "prompt", "generation"))


@dataclass(frozen=True)
class RecordSurvey:
    """The digest of every record by task and id, and the longest prompt of all records."""

    digests: Mapping[tuple[str, str], str]
    longest: str

    def has_all_rows(self, journal: Journal, presets: Mapping[str, Preset]) -> bool:
        """Says whether the journal has a result row for each record and method. Raises UsageError:
        a row belongs to another record or to other settings."""
        complete = True
        for method, preset in presets.items():
            settings = hash_benchmark_settings(method, preset)
            for (task, name), digest in self.digests.items():
                fields = {"method": method, "task": task, "id": name}
                fields |= {"settings": settings, "record": digest}
                complete = has_result_row(journal, fields) and complete
        return complete


@dataclass(frozen=True)
class BenchSelection:
    """The tasks of a benchmark to run, and the largest number of records for each task."""

    benchmark: Benchmark
    folder: Path
    tasks: Sequence[str]
    limit: int | None = None
    shard: WorkShard = ALL_WORK

    def load_records(self) -> Iterator[BenchRecord]:
        """Yields the selected records for all shards. Raises DocumentError, UsageError."""
        return self.benchmark.load_records(self.folder, self.tasks, self.limit)

    def group_records(self) -> Iterator[list[BenchRecord]]:
        """Yields the consecutive records about each document that this process answers."""
        documents = groupby(self.load_records(), lambda r: (r.task, r.before, r.document, r.chat))
        return self.shard.select_items(list(records) for _, records in documents)

    def survey_records(self) -> RecordSurvey:
        """Reads every record once, so that an invalid record is found before any question is asked.
        Raises DocumentError, UsageError."""
        digests: dict[tuple[str, str], str] = {}
        longest = ""
        for record in self.load_records():
            name = (record.task, record.id)
            if name in digests:  # the second answer would be taken for the first record's
                raise DocumentError(f"{record.task} has two records {record.id!r}", REFETCH)
            if not record.question.strip():
                raise DocumentError(f"{record.task}, record {record.id!r} has no question", REFETCH)
            digests[name] = record.digest
            longest = max(longest, record.before + record.document, key=len)
        return RecordSurvey(digests, longest)


class RecordAnswerer:
    """Answers the questions of a benchmark's records with one method. A record's prompt replaces
    the preset's prompt, except for a method that answers from text. `make_progress` is called
    before a document is ingested, and returns progress(done, total)."""

    def __init__(
        self, session: Session, method: str, preset: Preset, make_progress: Callable[[BenchRecord],
        Progress | None],
    ) -> None:  # fmt: skip
        self.session, self.method, self.preset = session, method, preset
        self.make_progress = make_progress
        self.settings = hash_benchmark_settings(method, preset)
        from_text = method == resolved_preset.FROM_TEXT
        self._text = TextAnswerer(session, preset) if from_text else None
        self._started = 0.0

    def make_cases(self, benchmark: Benchmark, records: Sequence[BenchRecord]) -> DocumentQuestions:
        """Returns the questions of several records about one document."""
        cases = []
        for record in records:
            fields = {
                "method": self.method, "task": record.task, "id": record.id,
                "settings": self.settings, "record": record.digest,
                "benchmark": record.benchmark, "answers": list(record.answers),
            }  # fmt: skip
            ask = partial(self._ask_record, benchmark, record)
            cases.append(QuestionCase(fields, ask, partial(self.check_length, record)))
        return DocumentQuestions(cases, partial(self._ingest_document, records[0]))

    def _set_record_prompt(self, record: BenchRecord) -> None:
        prompt = Prompt(before=record.before, after="{question}", chat=record.chat)
        self.session.use_preset(self.preset.model_copy(update={"prompt": prompt}))

    def check_length(self, record: BenchRecord) -> None:
        """Raises LengthError: the question and the answer do not fit into the model's window."""
        if self._text is not None:
            self._text.check_length(record.question, record.longest)
            return
        self.session.empty_cache()
        self._set_record_prompt(record)
        self.session.check_length(
            record.question, prime=record.prime, max_new_tokens=record.longest
        )

    def _ingest_document(self, record: BenchRecord) -> bool:
        self._started = time.monotonic()
        progress = self.make_progress(record)
        if self._text is not None:
            self._text.ingest_text(record.document, progress)
        else:
            self._set_record_prompt(record)
            self.session.read(record.document, progress)
        return True

    def _ask_record(self, benchmark: Benchmark, record: BenchRecord) -> dict[str, Any]:
        if self._text is not None:
            reply = self._text.ask(record.question, record.longest, temperature=0.0)
            output, document = reply.text, len(self._text.book.spans)
        else:
            pieces: list[str] = []
            reply = self.session.ask(
                record.question, prime=record.prime, max_new_tokens=record.longest,
                temperature=0.0, on_text=pieces.append,
            )  # fmt: skip
            text = "".join(pieces)
            margin = text[: len(text) - len(text.lstrip())]  # code is scored with its indentation
            output, document = margin + reply.text, self.session.document_tokens
        # The first question about a document includes the time of ingesting.
        seconds, self._started = time.monotonic() - self._started, time.monotonic()
        return {
            "output": output, "score": benchmark.score(record, output),
            "tokens": document + reply.question_tokens, "seconds": round(seconds, 2),
        }  # fmt: skip


Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""The scores of records, from 0 to 1, by method and task."""


def group_scores(rows: Iterable[Mapping[str, Any]]) -> Scores:
    """Groups the scores of rows by method and task. Methods are in order of first appearance."""
    scores: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        scores.setdefault(row["method"], {}).setdefault(row["task"], []).append(row["score"])
    return scores


def _mean_score(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _list_task_groups(benchmark: Benchmark) -> Iterator[tuple[str, list[BenchTask]]]:
    for group in dict.fromkeys(task.group for task in benchmark.tasks):
        yield group, [task for task in benchmark.tasks if task.group == group]


def _compute_task_means(
    tasks: Sequence[BenchTask], scores_by_task: Mapping[str, Sequence[float]]
) -> list[float]:
    """Returns the mean score of each task with scores, since averages count each task once."""
    return [_mean_score(scores_by_task[task.name]) for task in tasks if task.name in scores_by_task]


def make_score_table(benchmark: Benchmark, scores: Scores) -> tuple[list[str], list[list[str]]]:
    """Returns headers and rows of the table of scores in per cent. The table has a row for each
    task in the paper's order and for each group's average, and a column for each method."""
    lines = []
    for group, tasks in _list_task_groups(benchmark):
        asked = [task for task in tasks if any(task.name in done for done in scores.values())]
        for task in asked:
            cells = [done.get(task.name, ()) for done in scores.values()]
            lines.append(_make_table_row(task.title, cells, f"{task.size}"))
        if asked:
            means = [_compute_task_means(tasks, done) for done in scores.values()]
            lines.append(_make_table_row(f"{group} average", means, f"{len(tasks)} tasks"))
    return ["task", "records", *scores], lines


def _make_table_row(title: str, cells: Sequence[Sequence[float]], full_count: str) -> list[str]:
    """Makes a table row with the count of records: `5 of 200`, or `5 / 3 of 200` by method."""
    counts = [len(cell) for cell in cells]
    count = " / ".join(map(str, counts if len(set(counts)) > 1 else counts[:1]))
    means = (f"{100 * _mean_score(cell):.2f}" if cell else "-" for cell in cells)
    return [title, f"{count} of {full_count}", *means]


def make_score_dict(benchmark: Benchmark, scores: Scores) -> dict[str, Any]:
    """Returns the scores of each method's tasks and groups in per cent, as JSON data."""
    sizes = {task.name: task.size for task in benchmark.tasks}
    out: dict[str, Any] = {}
    for method, done in scores.items():
        tasks = {
            name: {"score": 100 * _mean_score(values), "records": len(values), "of": sizes[name]}
            for name, values in done.items()
        }
        averages = {
            group: {"score": 100 * _mean_score(means), "tasks": len(means), "of": len(members)}
            for group, members in _list_task_groups(benchmark)
            if (means := _compute_task_means(members, done))
        }
        out[method] = {"tasks": tasks, "averages": averages}
    return out
