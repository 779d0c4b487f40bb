"""The commands `esa find`, for passages, and `esa collect`, for every place with an answer.

`esa find` loads the model only if a document has a token index, and otherwise uses BM25 alone."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.inputs import asks_whole_library, split_off_question
from esa_cli.apps.cli.options import options, output_paths
from esa_cli.apps.cli.options.command_help import argument, option
from esa_cli.apps.cli.output import passage_output, terminal
from esa_cli.apps.cli.output.answer_output import make_document_json_list
from esa_cli.documents.readers.text_builder import shorten_name_list
from esa_cli.documents.sources import find_files
from esa_cli.errors import NOT_FOUND, DocumentError, UsageError
from esa_cli.storage.library import Library
from esa_cli.system.jsonl import OUT_HINT, JsonLinesFile, read_json_lines, refuse_other_first_field

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.collecting import CollectedPlace, Collection, ReadingCoverage
    from esa_cli.qa.finding.passage import Passage
    from esa_cli.qa.finding.passage_finder import Book

FIRST = "collect"
"""The first field of the first row that `esa collect` writes to its output file."""
EVERY = 64
"""The number of passages that are read between two rows that store the progress."""


class CollectedPlacesFile(JsonLinesFile):
    """The output file of `esa collect`; `key` is a digest of question, documents and settings."""

    def __init__(self, path: Path | None, question: str, key: str, about: dict[str, Any]) -> None:
        super().__init__(path, {FIRST: question, "key": key, **about})
        from esa_cli.qa.collecting import EarlierRun

        self.earlier, self._read = EarlierRun(0, ()), 0

    def _load_rows(self, path: Path) -> None:
        from esa_cli.qa.collecting import CollectedPlace, EarlierRun

        refuse_other_first_field(path, FIRST)
        places = []
        for number, row in enumerate(read_json_lines(path), 1):
            if number == 1 and row.get("key") != self.header["key"]:
                wrong = "places for another question, or from other documents or settings"
                raise UsageError(f"{path} has {wrong}", OUT_HINT)
            try:
                if "text" in row:
                    places.append(CollectedPlace.from_json(row))
                elif number > 1:
                    self._read = int(row["read"])
            except (KeyError, TypeError, ValueError) as error:
                raise DocumentError(f"row {number} of {path} is incomplete", OUT_HINT) from error
        self.earlier = EarlierRun(self._read, tuple(places))

    def append_progress(self, collection: Collection, is_last: bool = False) -> None:
        """Appends a row with the number of passages read, every 64 passages and at the end."""
        done, coverage = collection.done_passage_count, collection.coverage
        if done >= self._read + (1 if is_last or done == coverage.chosen else EVERY):
            self.append({"read": done, "chosen": coverage.chosen, "of": coverage.passages})
            self._read = done


FIELDS = (
    "document", "source", "page", "line", "chapter", "start", "end", "text", "sentence",
    "score", "log_odds", "answer",
)  # fmt: skip
"""The columns of the CSV output of `esa collect`."""
Read = Annotated[
    Literal["first", "never"],
    option(
        "--read first|never",
        "Whether the model reads a new document before the search, to make its token index.",
    ),
]


@dataclass(frozen=True)
class FindCommandOptions(options.DocumentSearchOptions):
    top: Annotated[int | None, option("--top N", "Passages to show; by default 8.", min=1)] = None
    minimum: Annotated[
        float | None,
        option(
            "--min PROBABILITY",
            "Minimum probability that a passage has the answer, by default 0. With --all or "
            "--files, show passages by probability, not by their words.",
            min=0,
            max=1,
        ),
    ] = None
    shows_all: Annotated[
        bool, option("--all", "Show every passage that has the words, in document order.")
    ] = False
    files: Annotated[
        bool, option("--files", "Show only the names of files that have the words, best first.")
    ] = False
    read: Read = "never"
    verbose: Annotated[
        bool, option("--verbose -v", "Show characters of passages, and probabilities of 0.00.")
    ] = False

    @property
    def is_word_search(self) -> bool:
        """Whether `esa find` chooses passages only by the words that they contain."""
        return (self.shows_all or self.files) and self.minimum is None

    def refuse_conflicting_options(self) -> None:
        """Raises UsageError where options exclude each other."""
        wide, reads = "--all" if self.shows_all else "--files", self.read == "first"
        options.refuse_both("--all", "--files", self.shows_all and self.files)
        options.refuse_both("--all", f"--top {self.top}", self.shows_all and self.top)
        options.refuse_both("--keep", "--read never", self.keep and not reads, "add --read first")
        hint = f"leave out --read first, or add --min 0.02, so that {wide} compares probabilities"
        options.refuse_both(wide, "--read first", self.is_word_search and reads, hint)


@options.make_typer_command
def find(
    arguments: Annotated[
        list[str] | None,
        argument(
            "DOC... WORDS",
            "Files, folders or patterns, or - for standard input; then words or a question "
            "in quotes.",
        ),
    ] = None,
    *,
    opts: FindCommandOptions,
    model: options.ModelOptions,
) -> None:
    """Find passages in documents, without generating an answer.

    esa find book.txt "the white whale"
    """
    opts.refuse_conflicting_options()
    names, question = split_off_question(arguments, "find", documents_optional=opts.library)
    inputs = find_files(names)  # raises before torch is imported
    from esa_cli.apps.cli.model_and_documents import DocumentOpener, LazyPassageFinder, open_model
    from esa_cli.qa.finding.passage_finder import add_token_ranges
    from esa_cli.qa.finding.word_search import find_passages_with_words
    from esa_cli.qa.presets.preset import check_adapter_and_finder_exist, make_preset_for_finding

    with terminal.Reporter(opts.quiet) as reporter, ExitStack() as stack:
        chosen = make_preset_for_finding(model.load_preset(), opts.is_word_search)
        check_adapter_and_finder_exist(chosen.answer)
        library, reads = Library(), opts.read == "first"

        def load_model() -> Esa:
            # If nothing is read, nothing is stored, so the library need not be writable.
            keep = opts.keep if reads or library.is_writable else False
            opened = open_model(chosen, model, reporter, keep=keep, library=library)
            return stack.enter_context(opened)

        documents = DocumentOpener(
            inputs, library, reporter, question, limit=chosen.answer.documents,
            in_library=opts.library, keep=opts.keep, all_that_match=opts.is_word_search,
        )  # fmt: skip
        finder = LazyPassageFinder(chosen, model, library, reporter, load_model, ingests_new=reads)
        named = [finder.open_document(document) for document in documents.gathered.documents]
        books = documents.open_documents(named, finder.open_stored_document, finder.open_document)
        reporter.show_spinner("searching")
        placed = add_token_ranges(books)
        passages: Sequence[Passage]
        if opts.is_word_search:
            passages, found, asked = find_passages_with_words(question, placed)
            if 0 < found < asked:
                part = f"{found} of the {asked} words"
                reporter.show_note(
                    f"esa: no passage has all of the words; these passages have {part}"
                )
        else:
            count = None if opts.shows_all or opts.files else opts.top or 8
            passages = finder.find_passages(question, books, count, opts.minimum)
        if opts.shows_all:
            order = {book.document.name: number for number, book in enumerate(placed)}
            passages = sorted(passages, key=lambda one: (order[one.document], one.start))
        reporter.clear_spinner()
        files = summarise_passages_by_file(passages)[: opts.top] if opts.files else []
        if opts.as_json:
            matches = files if opts.files else [passage.as_found() for passage in passages]
            facts = {
                "files" if opts.files else "passages": matches,
                "read": all(book.read for book in books),
                "documents": make_document_json_list(books),
                **({"searched": documents.searched} if documents.searched else {}),
                "left_out": [file.to_dict() for file in documents.gathered.left_out],
                "model": chosen.model if finder.is_loaded else None,
                "preset": chosen.name,
            }
            terminal.print_json(facts)
        elif opts.files:
            for file in files:
                print(format_path_unless_stdin(file["document"], file["source"]))
        else:
            print_marked_passages(passages, question, opts.verbose, shows_all=opts.shows_all)
        unread = [book.document.name for book in books if not book.read]
        if unread and chosen.answer.makes_token_index:
            which, them = shorten_name_list(unread), "it" if len(unread) == 1 else "them"
            note = f"not read, searched with BM25 alone: {which}; --read first reads {them}"
            reporter.show_note(f"esa: {note}")
    if not passages:
        reporter.warn("esa: no passage fits the question")
        raise typer.Exit(NOT_FOUND)


def summarise_passages_by_file(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    """Returns the name, path, best score and passage count of each document that has passages."""
    files = dict[str, dict[str, Any]]()
    for one in passages:
        facts = {"document": one.document, "source": one.source, "score": round(one.score, 3)}
        files.setdefault(one.document, {**facts, "passages": 0})["passages"] += 1
    return list(files.values())


def format_path_unless_stdin(document_name: str, path_or_dash: str) -> str:
    """Returns the path of a document, or the name of a document from standard input (-)."""
    return terminal.make_printable_line(document_name if path_or_dash == "-" else path_or_dash)


def print_marked_passages(
    passages: Sequence[Passage], question: str, is_verbose: bool, *, shows_all: bool
) -> None:
    """Prints passages, each below its place; on a terminal the question's words are red.
    Unless `shows_all`, none whose sentences with most of these words were printed before."""
    from rich.text import Text

    from esa_cli.qa.finding.words import find_sentence_spans, find_shared_words

    console, printed = terminal.make_rich_console(sys.stdout), set[tuple[str, int]]()
    for number, passage in enumerate(passages):
        words = find_shared_words(passage.text, question)
        counts = {
            (passage.document, passage.start + a): sum(a <= at < b for at, _ in words)
            for a, b in find_sentence_spans(passage.text)
        }
        best = {one for one, count in counts.items() if count == max(counts.values())}
        if number and not shows_all and best <= printed:
            continue
        printed |= counts.keys()
        details = [f"characters {passage.start}-{passage.end}"] * is_verbose
        if passage.probability is not None and (is_verbose or passage.probability >= 0.005):
            details.append(f"probability {passage.probability:.2f}")
        path = format_path_unless_stdin(passage.document, passage.source)
        place = terminal.make_printable_line(passage.describe_place(path))
        console.print("\n" * bool(number), end="")
        style = f"bold{passage_output.make_link_style(passage.source)}"
        heading = Text.assemble((place, style), ("  " + ", ".join(details), "dim"))
        passage_output.print_wrapped_text(console, heading, 0)
        body = passage_output.format_passage_text(passage)
        for start, end in find_shared_words(body.plain, question):
            body.stylize("bold red", start, end)
        passage_output.print_wrapped_text(console, body, 2)


@dataclass(frozen=True)
class CollectCommandOptions(options.DocumentSearchOptions):
    count: Annotated[bool, option("--count", "Print only the number of places.")] = False
    form: Annotated[
        Literal["table", "csv", "jsonl"],
        option("--format table|csv|jsonl", "Format of standard output."),
    ] = "table"
    minimum: Annotated[
        float | None,
        option(
            "--min PROBABILITY",
            "Read only passages with at least this probability of the finder; by default 0.00005, "
            "or less if the passage is nearly as good as the best. Of up to 200 passages all are "
            "read.",
            min=0,
            max=1,
        ),
    ] = None
    reads_all: Annotated[bool, option("--all", "Read all passages, however improbable.")] = False
    min_confidence: Annotated[
        float | None,
        option(
            "--least NUMBER",
            "Minimum confidence of a place, the reader's log-odds and half of the finder's; by "
            "default -6.5. Of up to 200 passages, the reader's alone; by default -3. A higher "
            "number gives fewer, surer places.",
        ),
    ] = None
    distinct: Annotated[
        bool, option("--distinct", "Print only the first of several places with the same words.")
    ] = False
    read: Read = "first"
    out: Annotated[
        Path | None,
        option("--out -o FILE", "Write places to a JSON Lines file at once, or continue the file."),
    ] = None

    def refuse_conflicting_options(self) -> None:
        """Raises UsageError where options exclude each other."""
        form, is_table = f"--format {self.form}", self.form == "table"
        options.refuse_both("--all", "--min", self.reads_all and self.minimum is not None)
        options.refuse_both("--json", form, self.as_json and not is_table)
        options.refuse_both("--count", form, self.count and not is_table)
        options.refuse_both("--keep", "--read never", self.keep and self.read == "never")

    def make_esa_collect_arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments of `Esa.collect` that choose passages and places."""
        least = {} if self.min_confidence is None else {"least": self.min_confidence}
        return {"minimum": self.minimum, "every": self.reads_all, **least}


@options.make_typer_command
def collect(
    arguments: Annotated[
        list[str] | None,
        argument(
            "DOC... QUESTION",
            "Files, folders or patterns, or - for standard input; by default the library. Then a "
            "question in quotes, which says what to look for.",
        ),
    ] = None,
    *,
    opts: CollectCommandOptions,
    model: options.AnswerModelOptions,
) -> None:
    """Collect every place in documents that answers a question.

    esa collect book.txt "How old is somebody?"
    """
    opts.refuse_conflicting_options()
    in_library = opts.library or asks_whole_library(arguments)
    names, question = split_off_question(arguments, "collect", documents_optional=in_library)
    files = find_files(names)  # raises before torch is imported
    if opts.out is not None:
        refuse_other_first_field(opts.out, FIRST)
    from esa_cli.apps.cli.model_and_documents import DocumentOpener, open_model
    from esa_cli.qa.collecting import NEAR, SCORE_WEIGHT, SIEVE, WHOLE, drop_repeated_places
    from esa_cli.qa.presets.cache_key import hash_text_answer_settings
    from esa_cli.qa.presets.preset import check_adapter_and_finder_exist
    from esa_cli.system.text import digest_text

    with terminal.Reporter(opts.quiet) as reporter, ExitStack() as stack:
        chosen = model.load_preset().alter_answer_settings(source="text")
        if opts.min_confidence is not None and chosen.answer.reader is not None:
            raise UsageError(
                f"--least cannot be used with the reader {chosen.answer.reader}",
                "either leave out --least, or leave out --model and --reader",
            )
        check_adapter_and_finder_exist(chosen.answer)
        library, reader = Library(), model.choose_reader()
        output_paths.check_output_file("--out", opts.out, files.paths)
        documents = DocumentOpener(files, library, reporter, question, in_library=in_library)
        esa = stack.enter_context(
            open_model(chosen, model, reporter, keep=opts.keep, library=library, reader=reader)
        )
        open_book = esa.ingest if opts.read == "first" else esa.open
        named = [open_book(document) for document in documents.gathered.documents]
        books = documents.open_documents(named, esa.stored, open_book)
        about = {"documents": [book.document.name for book in books], "preset": chosen.name}
        inputs = {
            "question": question,
            "documents": [(digest_text(b.document.text), b.index is not None) for b in books],
            "preset": hash_text_answer_settings(chosen),
            "sieve": (WHOLE, SIEVE, NEAR, SCORE_WEIGHT),
            **opts.make_esa_collect_arguments(),
        }
        key = digest_text(json.dumps(inputs, sort_keys=True))[:16]
        file = stack.enter_context(CollectedPlacesFile(opts.out, question, key, about))
        places, coverage = _collect_and_print_places(esa, question, books, opts, file, reporter)
        caveat = f"{esa.reader.name if esa.reader else esa.name} misses places and adds wrong ones"
        different = drop_repeated_places(places)
        if opts.as_json:
            facts = {
                "question": question,
                "count": len(places),
                "distinct": len(different),
                "caveat": caveat,
                "places": [p.to_json() for p in (different if opts.distinct else places)],
                "coverage": coverage._asdict(),
                "documents": make_document_json_list(books),
                "left_out": [file.to_dict() for file in documents.gathered.left_out],
                "model": chosen.model,
                "reader": None if esa.reader is None else esa.reader.name,
                "preset": chosen.name,
            }
            terminal.print_json(facts)
        elif coverage.read and opts.count:
            count = terminal.pluralize(len(places), "place")
            print(f"{count}, {len(different):,} distinct ({caveat})")
        elif coverage.read:
            reporter.show_note(f"esa: {caveat}: see docs/answers.md")
        if coverage.read and not places:
            lower = "" if esa.reader else "a lower --least gives less sure ones; "
            tries = f"{lower}`esa find --all` gives places with words"
            reporter.show_note(f"esa: no place found; {tries}", dim=False)
    if not places:
        raise typer.Exit(NOT_FOUND)


def _collect_and_print_places(
    esa: Esa, question: str, books: Sequence[Book], opts: CollectCommandOptions,
    file: CollectedPlacesFile, reporter: terminal.Reporter,
) -> tuple[list[CollectedPlace], ReadingCoverage]:  # fmt: skip
    """Prints the places of this and an earlier run even after Ctrl-C, and returns the places."""
    progress = reporter.start_progress("reading again", "passages")

    def show_progress(read_passages: int, all_passages: int) -> None:
        file.append_progress(collection)
        progress(read_passages, all_passages)

    reporter.show_spinner("finding passages")
    places = list(file.earlier.places)
    how = {**opts.make_esa_collect_arguments(), "progress": show_progress, "after": file.earlier}
    collection = esa.collect(question, books, **how)
    if places:
        count = terminal.pluralize(len(places), "place")
        reporter.show_note(f"esa: kept from an earlier run: {count}")
    is_stopped = True
    try:
        try:
            for place in collection:
                file.append(place.to_json())
                places.append(place)
            is_stopped = False
        finally:
            file.append_progress(collection, is_last=True)
    finally:
        reporter.clear_spinner()
        _print_collected_places(places, opts)
        coverage = collection.coverage
        share = f"{100 * coverage.read_share:.0f} %"
        passages = terminal.pluralize(coverage.passages, "passage")
        text = f"read {coverage.read:,} of {passages} ({share}) again"
        if is_stopped:
            reporter.warn(f"esa: stopped: {text}{'; the same command continues' * bool(opts.out)}")
        elif coverage.read:
            lower = "; a lower --min may find more" if coverage.read < coverage.passages else ""
            reporter.show_note(f"esa: {text}{lower}")
        else:
            reporter.warn("esa: no passage was read, as none is so probable; try a lower --min")
    return places, coverage


def _print_collected_places(places: Sequence[CollectedPlace], opts: CollectCommandOptions) -> None:
    from esa_cli.qa.collecting import drop_repeated_places

    if not places or opts.count or opts.as_json:
        return
    places = drop_repeated_places(places) if opts.distinct else places
    if opts.form == "table":
        rows = []
        for place in places:
            cells = (place.describe_place(), place.answer or place.text, place.sentence)
            rows.append([terminal.make_printable_line(" ".join(cell.split())) for cell in cells])
        headers = ["place", "words", "sentence"]
        if sys.stdout.isatty():
            terminal.print_table(headers, rows)
        else:
            print("\n".join("\t".join(cells) for cells in (headers, *rows)))
    elif opts.form == "jsonl":
        for place in places:
            print(terminal.format_json(place.to_json()))
    else:
        writer = csv.DictWriter(sys.stdout, FIELDS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in (place.to_json() for place in places):
            given = {name: str(value) for name, value in row.items() if value is not None}
            writer.writerow({k: terminal.strip_control_chars(v) for k, v in given.items()})
