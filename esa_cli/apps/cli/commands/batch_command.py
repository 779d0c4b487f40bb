"""`esa batch`: many questions from a file, their answers into another."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from esa_cli.apps.batch import (
    BatchQuestion,
    answers_file,
    join_answers,
    read_questions,
    run_batch,
    shard_of_questions,
)
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import (
    GenerationOptions,
    ModelOptions,
    ReaderOptions,
    ShardOptions,
)
from esa_cli.apps.cli.output.progress_display import token_progress
from esa_cli.apps.cli.output.terminal import Reporter, print_json
from esa_cli.errors import PARTIAL, UsageError
from esa_cli.system.machine import time_text


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
    model: ModelOptions,
    generation: GenerationOptions,
    answer: ReaderOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer the questions of a file, in order.

    Stopped in the middle, the same command goes on where it was. Exit code 7: some questions
    got an error in place of an answer.
    """
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.qa.opening import answerable

    chosen = answer.load_preset(model, method)
    asking = {**generation.arguments(), "evidence": top}
    reader, shard, started = answer.reader_choice(), shards.check(out), time.monotonic()
    with Reporter(quiet) as reporter:
        chosen = chosen if method else answerable(chosen, reporter)
        settings = chosen.model_dump(mode="json", exclude={"name", "description"})
        depends = {**asking, **answer.dependencies, "preset": settings}
        asked = _read_questions(questions, out, documents or [], depends, reporter)
        end = len(asked[:limit])
        if not shard.whole:
            count, asked = end, shard_of_questions(asked[:limit], shard)
            end = len(asked)
            reporter.note(f"esa: shard {shard}: {end} of {count} questions", dim=False)
        with answers_file(out, asked, retry_failed) as answers:
            join_answers(answers, asked[:end], shards.join or ())
            before = sum(answers.has(index) for index in range(end))
            if before:
                reporter.note(f"esa: {before} questions of an earlier run are kept")
            if before < end:
                shown = token_progress(reporter, "", unit="questions")
                done = itertools.count(1)
                try:
                    with opened(chosen, model, reporter, keep=keep, reader=reader) as asker:
                        run_batch(
                            asker, asked, answers, asking, limit=end,
                            progress=lambda: shown(next(done), end - before),
                            say=lambda text: reporter.warn(f"esa: {text}"),
                        )  # fmt: skip
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
