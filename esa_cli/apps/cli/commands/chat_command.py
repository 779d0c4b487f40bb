"""The commands `esa chat`, a conversation, and `esa batch`, which answers a file of questions."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from esa_cli.apps import batch as batches
from esa_cli.apps.cli.commands.ask_command import Top
from esa_cli.apps.cli.inputs import read_documents, read_numbered_lines
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.output import terminal
from esa_cli.apps.cli.output.answer_output import shown_passage_count
from esa_cli.apps.conversation import Conversation, read_terminal_lines
from esa_cli.errors import PARTIAL, UsageError
from esa_cli.system.machine import time_text


@options.typer_command
def chat(
    documents: Annotated[
        list[str], typer.Argument(metavar="DOC...", help="The documents to talk about.")
    ],
    keep: options.Keep = None,
    method: options.Method = None,
    top: Top = None,
    *,
    model: options.ModelOptions,
    generation_options: options.GenerationOptions,
    reader_options: options.ReaderOptions,
    quiet: options.Quiet = False,
) -> None:
    """Talk about documents; each question may refer to earlier ones.

    Without a terminal, each line of standard input is a question. Exit code 7 means that some lines
    got an error instead of an answer."""
    from esa_cli.apps.cli.open_esa import open_esa
    from esa_cli.qa.opening import adapt_to_model

    if "-" in documents:
        wrong = "standard input (-) cannot be a document, as it has the questions"
        raise UsageError(wrong, "save the document to a file")
    chosen = reader_options.load_preset(model, method)
    reader, shown = reader_options.choose_reader(), shown_passage_count(top, quiet)
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with terminal.Reporter(quiet) as reporter:
        gathered = read_documents(documents, reporter).documents
        chosen = chosen if method else adapt_to_model(chosen, reporter)
        with open_esa(chosen, model, reporter, keep=keep, reader=reader) as esa:
            books = [esa.ingest(document) for document in gathered]
            reporter.clear_spinner()
            names = [document.source for document in gathered]
            talk = Conversation(
                esa, books, names, reporter, generation_options.make_ask_arguments(),
                passages=shown, stoppable=on_terminal,
            )  # fmt: skip
            if on_terminal:
                about = f"{terminal.pluralize(len(names), 'document')}, {esa.name}"
                reporter.note(f"{about}; /help lists the commands, Ctrl-D ends")
                read_terminal_lines(talk)
                return
            for _, line in read_numbered_lines(sys.stdin):
                if not talk.handle_line(line):
                    break
    if talk.failed:
        raise typer.Exit(PARTIAL)


@options.typer_command
def batch(
    questions: Annotated[
        Path,
        typer.Argument(
            metavar="QUESTIONS.jsonl",
            help='Lines like {"question": "...", "documents": ["a.pdf"]}.',
        ),
    ],
    out: Annotated[
        Path, option("--out -o FILE", "Write answers to a JSON Lines file, or continue the file.")
    ],
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="DOC...", help="Documents for the questions that name none."),
    ] = None,
    limit: Annotated[
        int | None, option("--limit N", "Ask only the first N questions.", min=1)
    ] = None,
    retry_failed: Annotated[
        bool, option("--retry-failed", "Ask the questions again that got an error.")
    ] = False,
    top: Annotated[int, option("--top N", "Passages to store per answer.", min=0, max=50)] = 3,
    keep: options.Keep = None,
    method: options.Method = None,
    *,
    shards: options.ShardOptions,
    model: options.ModelOptions,
    generation_options: options.GenerationOptions,
    reader_options: options.ReaderOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer the questions of a file, in order.

    After a stop, the same command continues where it was. Exit code 7 means that some questions got
    an error instead of an answer."""
    from esa_cli.apps.cli.open_esa import open_esa
    from esa_cli.qa.opening import adapt_to_model

    chosen = reader_options.load_preset(model, method)
    asking = {**generation_options.make_ask_arguments(), "evidence": top}
    reader, shard = reader_options.choose_reader(), shards.parse_shard(out)
    started = time.monotonic()
    with terminal.Reporter(quiet) as reporter:
        chosen = chosen if method else adapt_to_model(chosen, reporter)
        settings = chosen.model_dump(mode="json", exclude={"name", "description"})
        answer_settings = {**asking, **reader_options.reader_dependencies, "preset": settings}
        asked = _read_questions(questions, out, documents or [], answer_settings, reporter)
        end = len(asked[:limit])
        if not shard.whole:
            count, asked = end, batches.shard_questions(asked[:limit], shard)
            end = len(asked)
            reporter.note(f"esa: shard {shard}: {end} of {count} questions", dim=False)
        with batches.make_answers_file(out, asked, retry_failed) as answers:
            batches.add_shard_answers(answers, asked[:end], shards.join or ())
            before = sum(answers.has(index) for index in range(end))
            if before:
                reporter.note(f"esa: {before} questions of an earlier run are kept")
            if before < end:
                progress, numbers = (reporter.make_progress("", "questions"), itertools.count(1))
                with open_esa(chosen, model, reporter, keep=keep, reader=reader) as esa:
                    batches.run_batch(
                        esa, asked, answers, asking, limit=end,
                        progress=lambda: progress(next(numbers), end - before),
                        warn=lambda text: reporter.warn(f"esa: {text}"),
                    )  # fmt: skip
        reporter.clear_spinner()
        seconds, failed = time.monotonic() - started, sum(index < end for index in answers.failed)
        if as_json:
            counts = {"questions": end, "answered": end - failed, "failed": failed, "kept": before}
            terminal.print_json({**counts, "seconds": round(seconds, 1), "out": str(out)})
        answered = f"{end - failed} of {end} questions answered"
        reporter.note(f"esa: {answered} in {time_text(seconds)}, in {out}")
        if failed:
            reporter.warn(f"esa: {failed} questions got an error; --retry-failed asks them again")
    if failed:
        raise typer.Exit(PARTIAL)


def _read_questions(
    path: Path,
    out: Path,
    documents: Sequence[str],
    answer_settings: Mapping[str, Any],
    reporter: terminal.Reporter,
) -> list[batches.BatchQuestion]:
    """Reads the questions file, and warns of each question that cannot be asked."""
    if "-" in documents:
        raise UsageError(
            "a document must be a file, got standard input (-)", "save the text to a file"
        )
    files.check_output_file("--out", out, [str(path)], "the questions file")
    if out.exists() and not out.is_file():  # rows are read before they are written
        raise UsageError(f"--out must be a regular file, got {out}", "choose another --out")
    questions = batches.read_questions(path, documents, answer_settings)
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
