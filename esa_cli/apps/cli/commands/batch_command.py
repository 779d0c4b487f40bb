"""`esa batch`: many questions from a file, their answers into another."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli.apps.batch.batch_questions import BatchQuestion, read_questions, shard_of_questions
from esa_cli.apps.batch.batch_run import answers_file, join_answers, run_batch
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.answer_options import AnswerOptions
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.engine_options import EngineOptions, ShardOptions
from esa_cli.apps.cli.options.options import GenerationOptions, ModelOptions
from esa_cli.apps.cli.output.progress_display import token_progress
from esa_cli.apps.cli.output.terminal import Reporter, print_json
from esa_cli.errors import PARTIAL, UsageError
from esa_cli.system.machine import time_text

if TYPE_CHECKING:
    from esa_cli.system.jsonl import OrderedJsonLines

    Answering = Callable[[OrderedJsonLines, int, Callable[[], None]], None]
    """Answers those of so many questions that have no row, and calls back after each."""


@options.command
def batch(
    questions: Annotated[
        Path,
        typer.Argument(
            metavar="QUESTIONS.jsonl",
            help='Lines like {"question": "...", "documents": ["a.pdf"]}.',
        ),
    ],
    out: Annotated[
        Path, option("--out -o FILE", "Answers as JSON lines; an existing file is continued.")
    ],
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="DOC...", help="What questions without documents are about."),
    ] = None,
    limit: Annotated[int | None, option("--limit N", "The first N questions only.", min=1)] = None,
    retry_failed: Annotated[
        bool, option("--retry-failed", "Ask again what got an error the last time.")
    ] = False,
    top: Annotated[int, option("--top N", "Passages to keep of each answer.", min=0, max=50)] = 3,
    keep: options.Keep = None,
    method: options.Method = None,
    *,
    shards: ShardOptions,
    engines: EngineOptions,
    model: ModelOptions,
    generation: Annotated[GenerationOptions, options.Hidden()],
    answer: Annotated[AnswerOptions, options.Hidden("answer")],
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer the questions of a file, in order.

    Stopped in the middle, the same command goes on where it was. Exit code 7: some questions
    got an error in place of an answer.
    """
    from esa_cli.qa.opening import answerable

    engines.check()
    chosen = answer.load_preset(model, method)
    asking = {**generation.arguments(), "evidence": top}
    reader, reporter, shard = answer.reader_choice(), Reporter(quiet), shards.check(out)

    def answer_here(answers: OrderedJsonLines, end: int, progress: Callable[[], None]) -> None:
        from esa_cli.apps.cli.open_esa import opened

        with opened(chosen, model, reporter, keep=keep, reader=reader) as asker:
            run_batch(
                asker, asked, answers, asking, limit=end, progress=progress,
                say=lambda text: reporter.warn(f"esa: {text}"),
            )  # fmt: skip

    def answer_by_workers(
        answers: OrderedJsonLines, end: int, progress: Callable[[], None]
    ) -> None:
        from esa_cli.apps.engine.batch_worker import BatchWorker, batch_by
        from esa_cli.qa.opening import prepare
        from esa_cli.storage.library.library_paths import default_root

        prepare(chosen, model.place, reporter, keep=keep)
        if reader is not None and reader.address is not None:
            url = reader.address.url
            reporter.note(f"esa: questions and the passages found are sent to {url}", dim=False)
        worker = BatchWorker(chosen, model, keep, reader, asking, default_root().absolute())
        with engines.open(reporter, model.device) as engine:
            batch_by(engine, worker, asked, answers, end, progress)

    try:
        chosen = chosen if method else answerable(chosen, reporter)
        settings = chosen.model_dump(mode="json", exclude={"name", "description"})
        depends = {**asking, **answer.dependencies, "preset": settings}
        asked = _read_questions(questions, out, documents or [], depends, reporter)
        end = len(asked[:limit])
        if not shard.whole:
            count, asked = end, shard_of_questions(asked[:limit], shard)
            end = len(asked)
            reporter.note(f"esa: shard {shard}: {end} of {count} questions", dim=False)
        answering = answer_here if engines.local else answer_by_workers
        joined = shards.join or ()
        failed = _run(asked, end, answering, out, retry_failed, joined, reporter, as_json)
    finally:
        reporter.settle()
    if failed:
        raise typer.Exit(PARTIAL)


def _read_questions(
    path: Path, out: Path, documents: Sequence[str], depends: Mapping[str, Any], reporter: Reporter
) -> list[BatchQuestion]:
    """Reads the questions and warns of those that cannot be asked, before anything is loaded."""
    if "-" in documents:
        raise UsageError("documents must be files, got standard input (-)", "save it to a file")
    files.check("--out", out)
    if out.exists() and not out.is_file():  # its rows are read first, and a device has no end
        raise UsageError(f"--out must be a regular file, got {out}", "choose another --out")
    files.spare("--out", out, [str(path)], "the questions file")
    questions = read_questions(path, documents, depends)
    for question in questions:
        if question.fault:
            reporter.warn(f"esa: {path}, line {question.line}: {question.fault}")
    sources = list(dict.fromkeys(question.meant for question in questions))
    for left_out in dict.fromkeys(one for source in sources for one in source.left_out):
        reporter.warn(f"esa: {left_out.line}")
    for document in dict.fromkeys(one for source in sources for one in source.paths):
        if not os.path.exists(document):
            reporter.warn(f"esa: there is no document {document}")
    return questions


def _run(
    questions: Sequence[BatchQuestion],
    end: int,
    answering: Answering,
    out: Path,
    retry: bool,
    joined: Sequence[Path],
    reporter: Reporter,
    as_json: bool,
) -> int:
    """Answers those of the first `end` questions that have no row in `out`, and returns how
    many got an error."""
    started = time.monotonic()
    with answers_file(out, questions, retry) as answers:
        join_answers(answers, questions[:end], joined)
        before = sum(answers.has(index) for index in range(end))
        if before:
            reporter.note(f"esa: {before} questions of an earlier run are kept")
        if before < end:
            try:
                shown = token_progress(reporter, "", unit="questions")
                done = itertools.count(1)
                answering(answers, end, lambda: shown(next(done), end - before))
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
