"""Asks the questions of a public benchmark by several methods, and makes the table of scores.

Consecutive questions about one document share one prefill of the document."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from statistics import fmean
from typing import Any

from esa_cli.errors import DocumentError, UsageError
from esa_cli.evaluation.bench.benchmarks import REFETCH, Benchmark, BenchRecord, BenchTask
from esa_cli.evaluation.row_run import DocumentQuestions, QuestionToAsk, has_result_row
from esa_cli.evaluation.text_asker import TextAnswerer
from esa_cli.models import LoadedModel
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.cache_key import hash_method_settings
from esa_cli.qa.presets.preset import Preset, Prompt
from esa_cli.system.jsonl import ResultsFile
from esa_cli.system.progress import ALL_WORK, Progress, WorkShard
from esa_cli.system.registry import suggest_name

KEY = ("method", "task", "id")
"""The fields that identify a row of a benchmark."""


def describe_invalid_row(row: Mapping[str, Any]) -> str:
    """Says what is wrong with a benchmark's result row from a file, or returns an empty text."""
    score, tokens = row.get("score", ""), row.get("tokens", "")
    is_valid = type(score) in (int, float) and type(tokens) is int and 0 <= score <= 1
    return "" if is_valid else f"score and tokens are {score!r} and {tokens!r}"


def choose_tasks(benchmark: Benchmark, folder: Path, task_names: Sequence[str] | None) -> list[str]:
    """Returns the requested tasks, or by default every task of the benchmark whose file is in the
    folder. Raises UsageError: a task is unknown. DocumentError: the folder has no file."""
    known = [task.name for task in benchmark.tasks]
    if task_names is None:
        tasks = [name for name in known if benchmark.find_file(folder, name)]
        if not tasks:
            problem = f"the folder {folder} has no data file of the benchmark"
            hint = f"download the benchmark's official files: {benchmark.source}"
            raise DocumentError(problem, hint)
        return tasks
    for name in task_names:
        if name not in known:
            raise UsageError(f"the benchmark has no task {name!r}", suggest_name(name, known))
    return [name for name in known if name in task_names]


def hash_settings_without_prompt(method: str, preset: Preset) -> str:
    """Returns a hash of a method's settings, without the prompt, which a benchmark replaces."""
    return hash_method_settings(method, preset, ("name", "description", "prompt", "generation"))


RecordHashes = Mapping[tuple[str, str], str]
"""The hash of each record's content, by the record's task and id."""


def has_all_result_rows(
    journal: ResultsFile, presets: Mapping[str, Preset], record_hashes: RecordHashes
) -> bool:
    """Says whether every record has a row of every method. Raises UsageError."""
    complete = True
    for method, preset in presets.items():
        settings = hash_settings_without_prompt(method, preset)
        for (task, name), record_hash in record_hashes.items():
            fields = {"method": method, "task": task, "id": name}
            fields |= {"settings": settings, "record": record_hash}
            complete = has_result_row(journal, fields) and complete
    return complete


@dataclass(frozen=True)
class BenchRecordSelection:
    """A selection of a benchmark's tasks, with at most `limit` records of each task."""

    benchmark: Benchmark
    folder: Path
    tasks: Sequence[str]
    limit: int | None = None
    shard: WorkShard = ALL_WORK

    def load_records(self) -> Iterator[BenchRecord]:
        """Yields the selected records. Raises DocumentError, UsageError: a library is missing."""
        benchmark, folder = self.benchmark, self.folder
        for task in self.tasks:
            if not benchmark.find_file(folder, task):
                missing, source = folder / benchmark.files(task)[0], benchmark.source
                raise DocumentError(f"{missing} is missing", f"get the files: {source}")
            yield from islice(benchmark.read(folder, task), self.limit)

    def group_records_by_document(self) -> Iterator[list[BenchRecord]]:
        """Yields the lists of consecutive records about one document that this process asks."""
        documents = groupby(self.load_records(), lambda r: (r.task, r.before, r.document, r.chat))
        return self.shard.select_items(list(records) for _, records in documents)

    def check_and_hash_records(self) -> tuple[RecordHashes, str]:
        """Reads every record before any is asked; returns the hashes of all and the longest prompt.
        Raises DocumentError, UsageError."""
        hashes: dict[tuple[str, str], str] = {}
        longest = ""
        for record in self.load_records():
            name = (record.task, record.id)
            if name in hashes:  # the second answer would be taken for the first record's
                raise DocumentError(f"{record.task} has two records with id {record.id!r}", REFETCH)
            if not record.question.strip():
                raise DocumentError(f"{record.task}: record {record.id!r} has no question", REFETCH)
            hashes[name] = record.compute_hash()
            longest = max(longest, record.before + record.document, key=len)
        return hashes, longest


class BenchAnswerer:
    """Answers the questions of a benchmark's records with one method, by greedy decoding."""

    def __init__(
        self, loaded: LoadedModel, session: Session, method: str, preset: Preset,
        start_progress: Callable[[str], Progress | None],
    ) -> None:  # fmt: skip
        self.session, self.method, self.preset = session, method, preset
        self.start_progress, self._started = start_progress, 0.0
        self.settings = hash_settings_without_prompt(method, preset)
        from_text = method == resolved_preset.FROM_TEXT
        self._answerer = TextAnswerer(loaded, session, preset) if from_text else session

    def make_questions(self, benchmark: Benchmark, records: list[BenchRecord]) -> DocumentQuestions:
        questions = []
        for record in records:
            fields = {
                "method": self.method, "task": record.task, "id": record.id,
                "settings": self.settings, "record": record.compute_hash(),
                "benchmark": record.benchmark, "answers": list(record.answers),
            }  # fmt: skip
            ask = partial(self._answer_and_score_record, benchmark, record)
            questions.append(QuestionToAsk(fields, ask, partial(self.check_prompt_length, record)))
        return DocumentQuestions(questions, partial(self._prefill_or_index_document, records[0]))

    def _use_record_prompt(self, record: BenchRecord) -> None:
        prompt = Prompt(before=record.before, after="{question}", chat=record.chat)
        self.session.use_preset(self.preset.model_copy(update={"prompt": prompt}))

    def check_prompt_length(self, record: BenchRecord) -> None:
        """Raises LengthError: the question and the answer do not fit into the model's window."""
        self.session.empty_cache()
        self._use_record_prompt(record)
        self._answerer.check_length(record.question, record.prime, record.longest)

    def _prefill_or_index_document(self, record: BenchRecord) -> bool:
        self._started = time.monotonic()
        progress = self.start_progress(f"{self.method}: {record.task}, record {record.id}")
        self._use_record_prompt(record)
        self._answerer.read(record.document, progress)
        return True

    def _answer_and_score_record(self, benchmark: Benchmark, record: BenchRecord) -> dict[str, Any]:
        pieces: list[str] = []
        reply = self._answerer.ask(
            record.question, prime=record.prime, max_new_tokens=record.longest,
            temperature=0.0, on_text=pieces.append,
        )  # fmt: skip
        text = "".join(pieces)
        margin = text[: len(text) - len(text.lstrip())]  # code is scored with its indentation
        output, document = margin + reply.text, self._answerer.document_tokens
        # The first question about a document includes the time of ingesting.
        seconds, self._started = time.monotonic() - self._started, time.monotonic()
        return {
            "output": output, "score": benchmark.score(record, output),
            "tokens": document + reply.question_tokens, "seconds": round(seconds, 2),
        }  # fmt: skip


Scores = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""JSON data: each method's mean scores in per cent, by `tasks` and by `averages` of their groups,
with the number of `records` or `tasks` that have a score, and `of` how many."""


def _list_task_groups(benchmark: Benchmark) -> Iterator[tuple[str, list[BenchTask]]]:
    for group in dict.fromkeys(task.group for task in benchmark.tasks):
        yield group, [task for task in benchmark.tasks if task.group == group]


def compute_scores(benchmark: Benchmark, rows: Iterable[Mapping[str, Any]]) -> Scores:
    """Computes the mean scores of a benchmark's result rows, in which each task counts once."""
    records: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        records.setdefault(row["method"], {}).setdefault(row["task"], []).append(row["score"])
    sizes = {task.name: task.size for task in benchmark.tasks}
    scores = dict[str, Any]()
    for method, by_task in records.items():
        tasks = {
            name: {"score": 100 * fmean(values), "records": len(values), "of": sizes[name]}
            for name, values in by_task.items()
        }
        averages = {}
        for group, members in _list_task_groups(benchmark):
            if means := [fmean(by_task[one.name]) for one in members if one.name in by_task]:
                mean = 100 * fmean(means)
                averages[group] = {"score": mean, "tasks": len(means), "of": len(members)}
        scores[method] = {"tasks": tasks, "averages": averages}
    return scores


def make_score_table(benchmark: Benchmark, scores: Scores) -> tuple[list[str], list[list[str]]]:
    """Returns headers and rows of the table of scores in per cent, by task and by method."""
    lines = []
    for group, members in _list_task_groups(benchmark):
        parts = [("tasks", "records", one.name, one.title, f"{one.size}") for one in members]
        average = f"{group} average", f"{len(members)} tasks"
        for part, counted, name, title, total in [*parts, ("averages", "tasks", group, *average)]:
            cells = [by_part[part].get(name) for by_part in scores.values()]
            if any(cells):
                counts = [cell[counted] if cell else 0 for cell in cells]
                count = " / ".join(map(str, counts if len(set(counts)) > 1 else counts[:1]))
                means = (f"{cell['score']:.2f}" if cell else "-" for cell in cells)
                lines.append([title, f"{count} of {total}", *means])
    return ["task", "records", *scores], lines
