"""Prints an answer while the model generates it, then the answer's passages or JSON object."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from esa_cli.apps.cli.output import terminal
from esa_cli.apps.cli.output.passage_output import print_passages, wrap_text
from esa_cli.apps.cli.output.terminal import Reporter, strip_control_chars
from esa_cli.qa.answering.passage_choice import choose_passages, find_cited_numbers
from esa_cli.qa.answering.reply import NEEDS_READER, Reply
from esa_cli.system.local_servers import (
    HINT_S,
    SERVERS,
    find_running_servers,
    list_answering_models,
)
from esa_cli.system.machine import measure_peak_memory

if TYPE_CHECKING:
    from esa_cli.documents.sources import LeftOutFiles
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.passage_finder import Book

SHOWN = 3
"""The number of passages shown with an answer if --top does not set another."""
NOT_FOUND = "The documents may not contain the answer."
CUT_OFF = "The answer was cut off; --max-new-tokens allows longer answers."
UNCERTAIN = "Not certain; the marked words may be the answer."
NEAREST = "The nearest passages:"


class AnswerPrinter:
    """Prints each piece of an answer as soon as the model has generated it."""

    def __init__(self, out: IO[str], reporter: Reporter) -> None:
        self.out, self.reporter, self.has_text = out, reporter, False

    def __call__(self, piece: str) -> None:
        piece = piece if self.has_text else piece.lstrip()
        if piece:
            self.has_text = True
            self.reporter.clear_spinner()
            self.out.write(strip_control_chars(piece))
            self.out.flush()


def choose_passage_count(top_option: int | None, is_quiet: bool) -> int:
    """Returns how many passages to show: the value of --top, or else 3, or 0 with --quiet."""
    return (0 if is_quiet else SHOWN) if top_option is None else top_option


def print_answer_and_passages(
    reply: Reply, passage_count: int, reporter: Reporter, *,
    notes: Sequence[str] = (), is_printed: bool = False, asked: str = "The documents",
) -> None:  # fmt: skip
    """Prints an answer, unless it `is_printed` already, `notes`, the most important first, on a
    terminal in one line, and the passages. An uncertain answer comes after the passages, whose
    marked words it repeats. `asked` is the subject of a sentence about the documents' words."""
    if reply.answered_from == "section":  # its text names the places
        passage_count = 0
    passages = choose_passages(reply, passage_count)
    comes_last = reply.certainty == "perhaps" and bool(passages) and not is_printed
    has_failed = reply.certainty == "nothing" or not reply.found
    text = strip_control_chars(reply.text_with_certainty)
    if sys.stdout.isatty():
        from rich.text import Text

        console = terminal.make_rich_console(sys.stdout)
        text = "\n".join(line.plain for line in wrap_text(Text(text), console.width, console))
    if not is_printed and not comes_last:
        print(text, flush=True)
    missing = ""
    if reply.certainty or not reply.found:
        missing = reply.describe_missing_words(asked, [passage for _, passage in passages])
    lead, heading = UNCERTAIN * comes_last, NEAREST * (bool(passages) and has_failed)
    notes = [note for note in (missing, *notes, reply.describe_foreign_languages()) if note]
    _print_notes(reply, notes, lead, heading, reporter)
    for one in reply.unsupported_sentences:
        sentence = " ".join(reply.text[one.start : one.end].split())
        reporter.warn(f"  ? {one.format_mark()} ({sentence})")
    has_numbers = bool(find_cited_numbers(reply))
    print_passages(passages, reply.quotations, reporter.console, has_numbers=has_numbers)
    if comes_last:
        if reporter.live:
            reporter.warn("")
        print(text, flush=True)


def _print_notes(
    reply: Reply, notes: Sequence[str], lead: str, heading: str, reporter: Reporter
) -> None:
    """Prints doubts about an answer, and notes, between two sentences; on a terminal one line with
    the first doubt, note or warning, the first file left out, and the number of the others."""
    doubts = [NOT_FOUND] * reply.doubtful + [CUT_OFF] * reply.cut
    warnings = [f"{line.removeprefix('esa: ')}." for line in reporter.release_warnings()]
    if reporter.live and not reporter.is_verbose:
        first, *others = [*doubts, *notes, *warnings] or [""]
        file = next((line for line in others if line.startswith("left out: ")), "")
        count = len(others) - bool(file)
        more = f"({terminal.pluralize(count, 'more note')}: add -v)" if count else ""
        heading = " ".join(filter(None, (lead, first, file, more, heading)))
        doubts, notes, lead = [], [], ""
    for doubt in filter(None, (lead, *doubts)):
        reporter.warn(doubt)
    for note in filter(None, (*notes, heading)):
        reporter.show_note(note)


def show_reader_hint(reply: Reply, reporter: Reporter) -> bool:
    """Shows below a reply without an answer how another model can answer, and returns whether a
    hint was shown. Only then this machine is searched for servers, for less than 50 ms."""
    # Answers of another model have no certainty, but without passages it is not asked.
    if reply.certainty != "nothing" or not reply.evidence or reporter.quiet:
        return False
    hint = (
        "`esa models suggest` names a model for this machine" if reply.text == NEEDS_READER else ""
    )
    running = find_running_servers(HINT_S)
    name = next((name for name in running if list_answering_models(running[name])), None)
    if name is not None:
        hint = f"{SERVERS[name].title} runs here: with --reader {name} its model answers"
    if hint:
        reporter.show_note(f"  {hint}")
    return bool(hint)


def writes_answer_in_pieces(esa: Esa) -> bool:
    """Whether the model writes answers token by token; the default reader quotes at once."""
    return esa.reader is not None or esa.spans is None


def make_answer_json(
    esa: Esa, books: Sequence[Book], reply: Reply, step_seconds: Mapping[str, float],
    left_out: Sequence[LeftOutFiles] = (),
) -> dict[str, Any]:  # fmt: skip
    """Returns the JSON object of `esa ask --json`, with the seconds that each step took."""
    chosen, new = esa.preset, [book for book in books if book.read_s]
    rate = sum(book.tokens for book in new) / (sum(book.read_s for book in new) or 1.0)
    times = {**step_seconds, "ingest_tokens_per_s": rate, "first_token_s": reply.first_token_s}
    sizes, fields = ("initial", "selected", "local", "chunk"), reply.to_json()
    document_tokens = esa.cached_document_tokens or sum(book.tokens for book in books)
    return {
        **fields,
        "model": chosen.model,
        "reader": None if esa.reader is None else esa.reader.name,
        "preset": chosen.name,
        "selector": chosen.selector["name"],
        "position": chosen.position["name"],
        "window": {name: getattr(chosen.window, name) for name in sizes},
        "documents": make_document_json_list(books),
        "left_out": [file.to_dict() for file in left_out],
        "tokens": {"document": document_tokens, **fields["tokens"]},
        "timing": {name: round(value, 3) for name, value in times.items()},
        "peak_memory_bytes": measure_peak_memory(str(esa.loaded.device)),
    }


def make_document_json_list(books: Sequence[Book]) -> list[dict[str, Any]]:
    """Returns the JSON objects of the documents that a question was asked about."""
    return [
        {
            "name": book.document.name,
            "source": book.document.source,
            "tokens": book.tokens,
            "id": book.entry.id if book.entry else None,
            "read": book.read,
            "read_s": round(book.read_s, 3),
            "missing": list(book.document.missing),
        }
        for book in books
    ]
