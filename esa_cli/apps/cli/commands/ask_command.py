"""The command `esa ask`. Errors that can be found without the model come before it is loaded."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from esa_cli.apps.cli.inputs import asks_whole_library, split_off_question
from esa_cli.apps.cli.options import options, output_paths
from esa_cli.apps.cli.options.command_help import argument, option
from esa_cli.apps.cli.output import answer_output
from esa_cli.apps.cli.output.terminal import Reporter, print_json
from esa_cli.apps.question_log import LoggedConversation
from esa_cli.documents.readers.text_builder import shorten_name_list
from esa_cli.documents.sources import find_files
from esa_cli.errors import UsageError
from esa_cli.storage.library import Library
from esa_cli.system.progress import Progress, combine_progress_callbacks
from esa_cli.system.text import digest_text

if TYPE_CHECKING:
    from esa_cli.qa.answering.reply import Reply
    from esa_cli.qa.finding.passage_finder import Book

Arguments = Annotated[
    list[str] | None,
    argument(
        "DOC... QUESTION",
        "Files, folders or patterns, or - for standard input; by default the library. Then the "
        "question in quotes.",
    ),
]
Top = Annotated[
    int | None, option("--top N", "Passages to show below the answer; by default 3.", min=0, max=50)
]

_LIST_REQUEST = re.compile(
    r"(?i)\W*(?:please )?(?:list (?:all|every|each|the)|(?:name|give me) (?:all|every|each)"
    r"|(?:nenne?|zähle|liste) (?:\w+ )?all|liste[rz]? (?:tou|le)|énumère|enumera|nombra tod)"
)


@dataclass(frozen=True)
class AskCommandOptions(options.DocumentSearchOptions):
    read: Annotated[
        Literal["after", "first", "never"],
        option(
            "--read first|never",
            "When the model reads a new document to make its token index.",
            show_default="after a first answer, on a terminal",
        ),
    ] = "after"
    top: Top = None
    goes_on: Annotated[
        bool,
        option(
            "--continue -c",
            "Go on from the last question about these documents or, without DOC, from the last "
            "question.",
        ),
    ] = False
    report: Annotated[
        Path | None,
        option("--report FILE", "Write an HTML page with the documents and the answer's passages."),
    ] = None
    method: options.Method = None
    thorough: Annotated[
        bool,
        option("--thorough", "Read 32 passages, not 12: slower; finds more, mostly for --reader."),
    ] = False
    verbose: options.Verbose = False


@options.make_typer_command
def ask(
    arguments: Arguments = None,
    *,
    opts: AskCommandOptions,
    model: options.AnswerModelOptions,
    generation_options: options.AnswerGenerationOptions,
) -> None:
    """Answer a question about documents of any length.

    An answer was right at least 85 times in 100 on the test questions. After "perhaps:" the marked
    words may be the answer: read the passages. "Nothing found" means only that the search found no
    answer.

    esa ask book.txt "Who is Ahab?"
    """
    if asks_whole_library(arguments) and not opts.goes_on:
        opts = replace(opts, library=True)
    no_document = opts.library or opts.goes_on
    names, question = split_off_question(arguments, "ask", documents_optional=no_document)
    options.refuse_both("--keep", "--read never", opts.keep and opts.read == "never")
    with Reporter(opts.quiet, opts.verbose) as reporter, ExitStack() as stack:
        if not opts.as_json:
            reporter.hold_warnings()
        begin = LoggedConversation.resume if opts.goes_on else LoggedConversation
        talk = begin(names, opts.library)
        opts = replace(opts, library=talk.library)
        if talk.turns:
            about = ", ".join([*talk.documents, *["the library"] * talk.library])
            reporter.show_note(f"esa: about {about}, after: {talk.turns[-1].question}")
        generation = asdict(generation_options)
        run = AskCommandRun(question, talk, opts, generation, reporter, model, stack)
        try:
            run.answer_question()
        finally:
            if run.last_reply is not None:
                talk.append(question, run.last_reply, run.esa, reporter.show_note)


class AskCommandRun:
    """One run of `esa ask`: it loads the model, opens the documents and answers the question."""

    def __init__(
        self, question: str, talk: LoggedConversation, opts: AskCommandOptions,
        generation: dict[str, Any], reporter: Reporter, model: options.AnswerModelOptions,
        stack: ExitStack,
    ) -> None:  # fmt: skip
        self.question, self.talk, self.opts = question, talk, opts
        self.generation, self.reporter = generation, reporter
        is_quiet = opts.quiet and not opts.as_json
        self.shown = answer_output.choose_passage_count(opts.top, is_quiet)
        self.started = [time.perf_counter()]
        """When loading, opening and answering began, and the time of the answer."""
        self.last_reply: Reply | None = None
        files, library = find_files(talk.documents), Library()  # raises before torch is imported
        from esa_cli.apps.cli.model_and_documents import DocumentOpener, open_model
        from esa_cli.models import find_model_folder
        from esa_cli.models.tokenization.tokenizer import begin_loading_standalone_tokenizer
        from esa_cli.qa.opening import check_before_loading, choose_answer_source
        from esa_cli.qa.presets.resolved_preset import check_can_join_documents

        chosen = model.load_preset(later_method=opts.method)
        output_paths.check_output_file("--report", opts.report, files.paths)
        chosen = chosen if opts.method else choose_answer_source(chosen, reporter)
        from_text = chosen.answer.source == "text" and opts.method is None
        if from_text and (folder := find_model_folder(chosen.model)) is not None:
            begin_loading_standalone_tokenizer(folder)
        reader = model.choose_reader()
        limit = chosen.answer.documents if from_text else None
        searched = "\n".join([*(turn.question for turn in talk.turns[-1:]), question])
        self.documents = DocumentOpener(
            files, library, reporter, searched, limit=limit, in_library=opts.library, keep=opts.keep
        )
        named = self.documents.gathered.documents
        sized = () if opts.library else named  # the documents of the library may have any length
        keep, place = opts.keep, model.choose_device_and_dtype()
        ready = check_before_loading(
            chosen, place, reporter, method=opts.method, documents=sized, keep=keep
        )
        needs_kv_cache = ready.resolved.preset.answer.needs_kv_cache
        if len(named) > 1 and needs_kv_cache:
            is_stateful = ready.ingest_planner.costs.shape.stateful > 0
            check_can_join_documents(ready.resolved, ready.model.config["model_type"], is_stateful)
        if needs_kv_cache and (opts.thorough or opts.read == "never"):
            name = "--thorough" if opts.thorough else "--read never"
            wrong = f"{name} needs answers from passages, not from the KV cache"
            raise UsageError(wrong, "add --set answer.from=text, and leave out --method")
        if needs_kv_cache and not opts.keep:
            stored = library.list_text_digests()
            new = [one.text for one in named if digest_text(one.text) not in stored]
            ready.ingest_planner.check_memory_suffices(sum(map(ready.model.count_tokens, new)))
        # A script, and a user with --thorough, get one answer only, the better one.
        wants_one = opts.as_json or opts.thorough or not sys.stdout.isatty()
        # Whether the model reads new documents only after a first answer.
        self.reads_later = opts.read == "after" and not wants_one and ready.index is not None
        self.esa = esa = stack.enter_context(
            open_model(ready, model, reporter, keep=opts.keep, library=library, reader=reader)
        )
        self.started.append(time.perf_counter())
        open_book = esa.open if self.reads_later or opts.read == "never" else esa.ingest
        books = [open_book(source) for source in named]
        open_file = None if needs_kv_cache else open_book
        self.books: Sequence[Book] = self.documents.open_documents(books, esa.stored, open_file)
        self.started.append(time.perf_counter())

    def answer_question(self) -> None:
        """Answers the question, prints the answer with its passages, and writes the report."""
        reply = self._ask_question(streams_answer=not self.opts.as_json)
        self.started.append(time.perf_counter())
        if self.reads_later and not all(book.read for book in self.books):
            reply = self._ingest_documents_and_ask_again(reply)
        if not self.opts.as_json:
            answer_output.show_reader_hint(reply, self.reporter)
        else:
            steps = zip(("load_s", "ingest_s", "answer_s"), pairwise(self.started), strict=True)
            seconds = {name: end - start for name, (start, end) in steps}
            left_out, searched = self.documents.gathered.left_out, self.documents.searched
            facts = answer_output.make_answer_json(self.esa, self.books, reply, seconds, left_out)
            print_json({**facts, **({"searched": searched} if searched else {})})
        self._write_html_report(reply)

    def _ingest_documents_and_ask_again(self, first_reply: Reply) -> Reply:
        """Ingests documents that are not ingested yet, asks again, and prints a changed answer."""
        reporter, books = self.reporter, self.books
        unread = shorten_name_list([book.document.name for book in books if not book.read])
        reporter.warn(  # with --quiet, too: the command goes on for minutes
            f"esa: not read yet: {unread}. This answer was found with BM25 alone. Reading now; "
            "Ctrl-C keeps the answer"
        )
        try:
            self.books = [b if b.read else self.esa.ingest(b.document) for b in books]
            reply = self._ask_question(streams_answer=False)
        except BaseException as error:
            reporter.clear_spinner()
            if isinstance(error, KeyboardInterrupt):
                reporter.show_note("esa: the answer above was found with BM25 alone", dim=False)
            self.books = books
            self._write_html_report(first_reply)
            raise
        replies = first_reply, reply
        places = [[(e.document, e.start) for e in one.evidence[:1]] for one in replies]
        if first_reply.text.strip() == reply.text.strip() and places[0] == places[1]:
            reporter.show_note("esa: reading changed neither the answer nor its first passage")
        else:
            reporter.warn("esa: the answer after reading:")
            self._print_answer(reply)
        return reply

    def _print_answer(
        self, reply: Reply, notes: Sequence[str] = (), is_printed: bool = False
    ) -> None:
        asked = "The opened documents" if self.documents.searched else "The documents"
        answer_output.print_answer_and_passages(
            reply, self.shown, self.reporter, notes=notes, is_printed=is_printed, asked=asked
        )

    def _ask_question(self, streams_answer: bool) -> Reply:
        from esa_cli.qa.reading.reader import MAX_PASSAGES

        opts, reporter = self.opts, self.reporter
        streams = streams_answer and answer_output.writes_answer_in_pieces(self.esa)
        # Before the spinner, which replaces sys.stdout by a stream that ends each piece as a line.
        printer = answer_output.AnswerPrinter(sys.stdout, reporter) if streams else None
        # Not all passages are shown, and another model may cite any that it reads.
        least = 0 if opts.as_json else MAX_PASSAGES
        reporter.show_spinner("answering")
        progress: Progress | None = None
        if reporter.live and (opts.thorough or self.esa.reader is not None):
            progress = combine_progress_callbacks(
                reporter.start_progress("reading", "passages"),
                lambda done, total: reporter.show_spinner("answering") if done == total else None,
            )
        try:
            reply = self.last_reply = self.talk.ask(
                self.esa, self.question, self.books,
                evidence=max(self.shown, least), on_text=printer,
                thorough=opts.thorough, progress=progress, **self.generation,
            )  # fmt: skip
        finally:  # a message about an answer that broke off begins on a line of its own
            reporter.clear_spinner()
            if printer is not None and printer.has_text:
                print(flush=True)
        if streams_answer:
            notes = list[str]()
            if reply.answered_from == "section" and self.esa.reader is None:
                notes.append("--reader MODEL writes a summary of the whole text.")
            elif _LIST_REQUEST.match(self.question):
                notes.append("`esa collect` looks for every place.")
            self._print_answer(reply, notes, is_printed=streams)
        return reply

    def _write_html_report(self, reply: Reply) -> None:
        if self.opts.report is not None:
            page = self.esa.report(reply, self.question)
            output_paths.write_text_file(self.opts.report, page)
            self.reporter.show_note(f"esa: wrote {self.opts.report}")
