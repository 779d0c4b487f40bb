"""`esa batch`: many questions from a file, their answers into another."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.answer_options import AnswerOptions
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.engine_options import ShardOptions
from esa_cli.apps.cli.options.options import GenerationOptions, ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import PARTIAL, UsageError

if TYPE_CHECKING:
    from esa_cli.apps.batch import BatchQuestion
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.qa.reading.reader_choice import ReaderChoice
    from esa_cli.system.jsonl import OrderedJsonLines
    from esa_cli.system.work_shard import WorkShard

File = Annotated[
    Path,
    typer.Argument(
        metavar="QUESTIONS.jsonl", help='Lines like {"question": "...", "documents": ["a.pdf"]}.'
    ),
]
Documents = Annotated[
    list[str] | None,
    typer.Argument(metavar="DOC...", help="What questions without documents are about."),
]
Out = Annotated[
    Path, option("--out -o FILE", "Answers as JSON lines; an existing file is continued.")
]
Limit = Annotated[int | None, option("--limit N", "The first N questions only.", min=1)]
Top = Annotated[int, option("--top N", "Passages to keep of each answer.", min=0, max=50)]
Again = Annotated[bool, option("--retry-failed", "Ask again what got an error the last time.")]


@options.command
def batch(
    questions: File,
    out: Out,
    documents: Documents = None,
    limit: Limit = None,
    retry_failed: Again = False,
    top: Top = 3,
    keep: options.Keep = None,
    method: options.Method = None,
    *,
    shards: ShardOptions,
    model: ModelOptions,
    generation: GenerationOptions,
    answer: AnswerOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer the questions of a file, in order.

    Stopped in the middle, the same command goes on where it was. Exit code 7: some questions
    got an error in place of an answer.
    """
    from esa_cli.qa.opening import answerable

    chosen = answer.load_preset(model, method=method)
    asking = {**generation.arguments(), "evidence": top}
    reader, reporter, shard = answer.reader_choice(), Reporter(quiet), shards.check(out)
    try:
        chosen = chosen if method else answerable(chosen, reporter)
        settings = chosen.model_dump(mode="json", exclude={"name", "description"})
        depends = {**asking, **answer.dependencies, "preset": settings}
        asked = _read_questions(questions, out, documents or [], depends, reporter)
        asked, limit = _of_shard(asked, limit, shard, reporter)
        run = BatchRun(chosen, model, keep, reader, asking, asked, reporter)
        failed = run.run(out, limit, retry_failed, shards.join or (), as_json)
    finally:
        reporter.settle()
    if failed:
        raise typer.Exit(PARTIAL)


def _of_shard(
    questions: list[BatchQuestion], limit: int | None, shard: WorkShard, reporter: Reporter
) -> tuple[list[BatchQuestion], int | None]:
    """The questions of the shard, and how many of them are asked; None: all."""
    if shard.whole:
        return questions, limit
    from esa_cli.apps.batch import shard_of_questions

    every = questions[:limit]
    part = shard_of_questions(every, shard)
    reporter.note(f"esa: shard {shard}: {len(part)} of {len(every)} questions", dim=False)
    return part, None


def _read_questions(
    path: Path, out: Path, documents: Sequence[str], depends: Mapping[str, Any], reporter: Reporter
) -> list[BatchQuestion]:
    """Reads the questions and warns of those that cannot be asked, before anything is loaded.

    Raises:
        UsageError, DocumentError: none can, or the answers cannot be written.
    """
    from esa_cli.apps.batch import read_questions

    if "-" in documents:
        raise UsageError("documents must be files, got standard input (-)", "save it to a file")
    files.check("--out", out)
    if out.exists() and not out.is_file():  # its rows are read first, and a device has no end
        raise UsageError(f"--out must be a regular file, got {out}", "choose another --out")
    if out.exists() and out.samefile(path):
        raise UsageError(f"--out must not be the questions file, got {out}", "choose another --out")
    questions = read_questions(path, documents, depends)
    for one in questions:
        if one.fault:
            reporter.warn(f"esa: {path}, line {one.line}: {one.fault}")
    means = list(dict.fromkeys(one.meant for one in questions))
    for left_out in dict.fromkeys(rest for one in means for rest in one.left_out):
        reporter.warn(f"esa: {left_out.line}")
    for source in dict.fromkeys(source for one in means for source in one.paths):
        if not os.path.exists(source):
            reporter.warn(f"esa: there is no document {source}")
    return questions


@dataclass(frozen=True)
class BatchRun:
    """Questions, and how they are answered.

    Args:
        asking: keyword arguments for `Esa.ask`.
    """

    preset: Preset
    model: ModelOptions
    keep: bool | None
    reader: ReaderChoice | None
    asking: Mapping[str, Any]
    questions: Sequence[BatchQuestion]
    reporter: Reporter

    def run(
        self, out: Path, limit: int | None, retry: bool, joined: Sequence[Path], as_json: bool
    ) -> int:
        """Answers the questions that have no row in `out`, and returns how many got an error.

        Args:
            joined: files with rows of other shards, which are taken first.

        Raises:
            UsageError: `out` has other contents, or another process is writing it.
        """
        from esa_cli.apps.batch import answers_file, join_answers
        from esa_cli.apps.cli.output.terminal import print_json
        from esa_cli.system.machine import time_text

        started, reporter = time.monotonic(), self.reporter
        end = len(self.questions) if limit is None else min(limit, len(self.questions))
        with answers_file(out, self.questions, retry) as answers:
            join_answers(answers, self.questions[:end], joined)
            before = sum(answers.has(index) for index in range(end))
            if before:
                reporter.note(f"esa: {before} questions of an earlier run are kept")
            if before < end:
                try:
                    self._ask(answers, end, before)
                except KeyboardInterrupt:
                    reporter.settle()
                    reporter.warn("esa: stopped; the same command goes on")
                    raise
        reporter.settle()
        took, failed = time.monotonic() - started, sum(index < end for index in answers.failed)
        if as_json:
            print_json(
                {
                    "questions": end, "answered": end - failed, "failed": failed, "kept": before,
                    "seconds": round(took, 1), "out": str(out),
                }
            )  # fmt: skip
        answered = f"{end - failed} of {end} questions answered"
        reporter.note(f"esa: {answered} in {time_text(took)}, in {out}")
        if failed:
            reporter.warn(f"esa: errors in place of answers: {failed}; --retry-failed asks again")
        return failed

    def _ask(self, answers: OrderedJsonLines, end: int, before: int) -> None:
        """Answers those of the first `end` questions that have no row. Raises EsaError."""
        from esa_cli.apps.batch import run_batch
        from esa_cli.apps.cli.open_esa import opened

        with opened(
            self.preset, self.model, self.reporter, keep=self.keep, reader=self.reader
        ) as asker:
            run_batch(
                asker, self.questions, answers, self.asking, limit=end,
                progress=self._progress(answers, end, before),
                say=lambda text: self.reporter.warn(f"esa: {text}"),
            )  # fmt: skip

    def _progress(self, answers: OrderedJsonLines, end: int, before: int) -> Callable[[], None]:
        """Shows rate and time left after each answer: a spinner, or a line now and then."""
        from esa_cli.system.machine import time_text

        started, done, reporter = time.monotonic(), itertools.count(before + 1), self.reporter
        show = reporter.waiting if reporter.live else reporter.throttled()

        def progress() -> None:
            now = next(done)
            each = (time.monotonic() - started) / (now - before)
            failed = f", {len(answers.failed)} with errors" if answers.failed else ""
            rate, left = f"{60 / max(each, 1e-9):.3g} a minute", time_text(each * (end - now))
            show(f"{now} of {end} questions{failed}, {rate}, {left} left")

        return progress
