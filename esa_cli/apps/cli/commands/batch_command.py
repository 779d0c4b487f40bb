"""`esa batch`: many questions from a file, their answers into another."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli.apps.cli.commands.batch_request import BatchRequest, Begin
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.answer_options import AS_ANSWERED, AnswerOptions
from esa_cli.apps.cli.options.engine_options import LOCAL, EngineOptions
from esa_cli.apps.cli.options.options import GenerationOptions, ModelOptions
from esa_cli.apps.cli.options.shard_options import WHOLE, ShardOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import PARTIAL, UsageError

if TYPE_CHECKING:
    from esa_cli.apps.batch.batch_questions import BatchQuestion
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.system.ordered_jsonl import OrderedJsonLines
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
    Path,
    typer.Option(
        "--out", "-o", metavar="FILE", help="The answers, JSON lines; what is there is continued."
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="The first N questions only.")
]
Kept = Annotated[
    int,
    typer.Option(
        "--evidence", metavar="N", min=0, max=50, help="Passages to keep of each answer, up to 50."
    ),
]
Again = Annotated[
    bool, typer.Option("--retry-failed", help="Ask again what got an error the last time.")
]


@options.command
def batch(
    questions: File,
    out: Out,
    documents: Documents = None,
    limit: Limit = None,
    retry_failed: Again = False,
    evidence: Kept = 3,
    shards: ShardOptions = WHOLE,
    engines: EngineOptions = LOCAL,
    keep: options.Keep = None,
    method: options.Method = None,
    model: ModelOptions = options.DEFAULTS,
    generation: GenerationOptions = options.AS_PRESET,
    answer: AnswerOptions = AS_ANSWERED,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer the questions of a file, in order.

    Stopped in the middle, the same command goes on where it was. Exit code 7: some questions
    got an error in place of an answer.
    """
    from esa_cli.apps.cli.model_choice.known_model import answerable

    engines.check()
    chosen = answer.load_preset(model, method=method)
    asking = {**generation.arguments(), "evidence": evidence}
    reader, reporter, shard = answer.reader_choice(), Reporter(quiet), shards.check(out)
    try:
        chosen = chosen if method else answerable(chosen, reporter)
        depends = _dependencies(chosen, {**asking, **answer.dependencies})
        found = check(questions, out, documents or [], depends, reporter)
        found, limit = _of_shard(found, limit, shard, reporter)
        request = BatchRequest(chosen, model, keep, reader, asking, found, reporter)
        ask = request.answer_here if engines.local else partial(request.answer_by, engines)
        code = run(
            ask, found, out, reporter,
            limit=limit, retry=retry_failed, joined=shards.join or (), as_json=as_json,
        )  # fmt: skip
    finally:
        reporter.settle()
    if code:
        raise typer.Exit(code)


def _dependencies(chosen: Preset, others: Mapping[str, Any]) -> dict[str, Any]:
    """What answers depend on."""
    settings = chosen.model_dump(mode="json", exclude={"name", "description"})
    return {**others, "preset": settings}


def _of_shard(
    questions: list[BatchQuestion], limit: int | None, shard: WorkShard, reporter: Reporter
) -> tuple[list[BatchQuestion], int | None]:
    """The questions of the shard, and how many of them are asked; None: all."""
    if shard.whole:
        return questions, limit
    from esa_cli.apps.batch.schedule import shard_of_questions

    every = questions[:limit]
    found = shard_of_questions(every, shard)
    reporter.note(f"esa: shard {shard}: {len(found)} of {len(every)} questions", dim=False)
    return found, None


def check(
    path: Path, out: Path, documents: Sequence[str], depends: Mapping[str, Any], reporter: Reporter
) -> list[BatchQuestion]:
    """Reads the questions and warns of those that cannot be asked, before anything is loaded.

    Raises:
        UsageError, DocumentError: none can, or the answers cannot be written.
    """
    from esa_cli.apps.batch.batch_questions import read_questions

    if "-" in documents:
        raise UsageError("documents must be files, got standard input (-)", "save it to a file")
    files.check("--out", out)
    if out.exists() and not out.is_file():  # its rows are read first, and a device has no end
        raise UsageError(f"--out must be a regular file, got {out}", "choose another --out")
    if out.exists() and out.samefile(path):
        raise UsageError(f"--out must not be the questions file, got {out}", "choose another --out")
    found = read_questions(path, documents, depends)
    for one in found:
        if one.fault:
            reporter.warn(f"esa: {path}, line {one.line}: {one.fault}")
    means = list(dict.fromkeys(one.meant for one in found))
    for left_out in dict.fromkeys(rest for one in means for rest in one.left_out):
        reporter.warn(f"esa: {left_out.line}")
    for source in dict.fromkeys(source for one in means for source in one.paths):
        if not os.path.exists(source):
            reporter.warn(f"esa: there is no document {source}")
    return found


def run(
    ask: Callable[[OrderedJsonLines, int, Begin], None],
    questions: Sequence[BatchQuestion],
    out: Path,
    reporter: Reporter,
    *,
    limit: int | None = None,
    retry: bool = False,
    joined: Sequence[Path] = (),
    as_json: bool = False,
) -> int:
    """Answers the questions that have no row in `out`, and returns the exit code.

    Args:
        ask: called with the answers and the number of questions, only if there is work.
        joined: files with rows of other shards, which are taken first.

    Raises:
        UsageError: `out` has other contents, or another process is writing it.
    """
    from esa_cli.apps.batch.batch_run import answers_file, join_answers

    started = time.monotonic()
    end = len(questions) if limit is None else min(limit, len(questions))
    with answers_file(out, questions, retry) as answers:
        join_answers(answers, questions[:end], joined)
        before = sum(answers.has(index) for index in range(end))
        if before:
            reporter.note(f"esa: {before} questions of an earlier run are kept")
        if before < end:
            try:
                ask(answers, end, lambda: _display(reporter, answers, end, before))
            except KeyboardInterrupt:
                reporter.settle()
                reporter.warn("esa: stopped; the same command goes on")
                raise
    reporter.settle()
    return _summarise(answers, out, end, before, time.monotonic() - started, reporter, as_json)


def _summarise(
    answers: OrderedJsonLines,
    out: Path,
    end: int,
    before: int,
    took: float,
    reporter: Reporter,
    as_json: bool,
) -> int:
    from esa_cli.apps.cli.output.terminal import print_json
    from esa_cli.system.machine import time_text

    failed = sum(index < end for index in answers.failed)
    if as_json:
        print_json(
            {
                "questions": end, "answered": end - failed, "failed": failed, "kept": before,
                "seconds": round(took, 1), "out": str(out),
            }
        )  # fmt: skip
    reporter.note(f"esa: {end - failed} of {end} questions answered in {time_text(took)}, in {out}")
    if failed:
        reporter.warn(f"esa: errors in place of answers: {failed}; --retry-failed asks again")
    return PARTIAL if failed else 0


def _display(
    reporter: Reporter, answers: OrderedJsonLines, end: int, before: int
) -> Callable[[], None]:
    """Shows rate and time left after each answer: a spinner, or a line now and then."""
    from esa_cli.system.machine import time_text

    started, done = time.monotonic(), itertools.count(before + 1)
    show = reporter.waiting if reporter.live else reporter.throttled()

    def progress() -> None:
        now = next(done)
        each = (time.monotonic() - started) / (now - before)
        failed = f", {len(answers.failed)} with errors" if answers.failed else ""
        rate, left = f"{60 / max(each, 1e-9):.3g} a minute", time_text(each * (end - now))
        show(f"{now} of {end} questions{failed}, {rate}, {left} left")

    return progress
