"""Prints an answer while the model generates it, then the answer's passages or JSON object."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

from esa_cli.apps.cli.output.terminal import Reporter, strip_control_chars
from esa_cli.documents.document import SentenceSplitter
from esa_cli.qa.answering.reply import Quotation, Reply
from esa_cli.qa.finding.passage import Passage
from esa_cli.system.machine import measure_peak_memory

if TYPE_CHECKING:
    from esa_cli.documents.document import LeftOutFiles
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.passage_finder import Book

SHOWN = 3
"""The number of passages shown below an answer if --top does not set another."""
NOT_FOUND = "the documents may not contain the answer"
WEIGHTS = "  passages, with how much each counts for the answer:"
PIPE_WIDTH = 160


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


def format_passage_place(passage: Passage, shows_weight: bool, chapter: str = "") -> str:
    """Formats where a passage is and, if wanted, its weight, like `a.pdf, line 4 (12%)`."""
    page = "" if passage.page is None else f", page {passage.page}"
    weight = f" ({passage.weight:.0%})" if shows_weight else ""
    return f"{passage.document}{page}, line {passage.line}{chapter}{weight}"


def format_passage_line(
    passage: Passage, width: int, quotation: Quotation | None = None, answer_found: bool = True
) -> str:
    """Formats a passage as one line of at most `width` columns, beginning with its place. A passage
    that contains the answer's quotation is shown from the quoted sentence on, with »marks«."""
    words, place = passage.text, format_passage_place(passage, answer_found)
    at = quotation.start if quotation and quotation.document == passage.document else -1
    if quotation and passage.start <= at < passage.end:
        first, last = at - passage.start, quotation.end - passage.start
        start = SentenceSplitter(words).find_sentence_around(first)[0]
        before, room = words[start:first], max(0, width - len(place) - 8 - (last - first))
        if len(before) > room:  # what stands farther before the quotation makes room for it
            before = f"…{before[len(before) - room :].partition(' ')[2]}"
        words = f"{before}»{words[first:last]}«{words[last:]}"
    return _format_line(f"{place}: {words}", width)


def format_best_passages_as_lines(reply: Reply, passage_count: int, is_terminal: bool) -> list[str]:
    """Formats the best passages of an answer as lines that fit the terminal or a pipe."""
    width, passages = _measure_width(is_terminal), reply.evidence[:passage_count]
    return [format_passage_line(one, width, reply.quotation, reply.found) for one in passages]


def format_unsupported_sentences(reply: Reply, is_terminal: bool) -> list[str]:
    """Formats each sentence that no passage supports as a line that fits the terminal or a pipe."""
    width = _measure_width(is_terminal)
    return [
        _format_line(f"? {one.format_mark()} ({reply.text[one.start : one.end]})", width)
        for one in reply.unsupported_sentences
    ]


def _measure_width(is_terminal: bool) -> int:
    return max(40, shutil.get_terminal_size().columns) if is_terminal else PIPE_WIDTH


def _format_line(text: str, width: int) -> str:
    """Formats a text as one line of at most `width` columns."""
    from rich.cells import cell_len, set_cell_size

    text = strip_control_chars("  " + " ".join(text.split()))
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def print_answer_and_passages(
    reply: Reply, passage_count: int, reporter: Reporter, *, is_printed: bool = False
) -> None:
    """Prints an answer and its passages; an uncertain answer comes after the passages that may
    contain it. A streamed answer `is_printed` already."""
    text = strip_control_chars(reply.text_with_certainty)
    comes_last = reply.certainty == "perhaps" and not is_printed
    if not is_printed and not comes_last:
        print(text, flush=True)
    print_notes_and_passages(reply, passage_count, reporter)
    if comes_last:
        print(text, flush=True)


def print_notes_and_passages(reply: Reply, passage_count: int, reporter: Reporter) -> None:
    """Prints below an answer whether the answer is doubtful or cut off, which of its sentences no
    passage supports, and the best passages."""
    for line in format_unsupported_sentences(reply, reporter.live):
        reporter.warn(line)
    if reply.doubtful:
        reporter.warn(f"  {NOT_FOUND}")
    if reply.cut:
        reporter.warn("  the answer was cut off; --max-new-tokens allows longer answers")
    if reply.evidence[:passage_count]:
        nearest = reply.certainty == "perhaps" or not reply.found
        reporter.show_note("  the nearest passages:" if nearest else WEIGHTS)
    for line in format_best_passages_as_lines(reply, passage_count, reporter.live):
        reporter.warn(line)


def format_full_passages(evidence: Sequence[Passage], answer_found: bool) -> str:
    """Formats the passages of an answer, each with its number, place and full text."""
    parts = []
    for number, passage in enumerate(evidence, 1):
        chapter = f", {passage.chapter}" if passage.chapter else ""
        head = f"{number}. {format_passage_place(passage, answer_found, chapter)}"
        body = "\n".join(f"   {line}" for line in passage.text.strip().splitlines())
        parts.append(strip_control_chars(f"{head}\n{body}"))
    return "\n\n".join(parts)


def make_answer_json(
    esa: Esa,
    books: Sequence[Book],
    reply: Reply,
    step_seconds: Mapping[str, float],
    left_out: Sequence[LeftOutFiles] = (),
) -> dict[str, Any]:
    """Returns the JSON object of `esa ask --json`, with the seconds that each step took."""
    chosen, new = esa.preset, [book for book in books if book.read_s]
    rate = sum(book.tokens for book in new) / (sum(book.read_s for book in new) or 1.0)
    times = {**step_seconds, "ingest_tokens_per_s": rate, "first_token_s": reply.first_token_s}
    sizes = ("initial", "selected", "local", "chunk")
    return {
        "answer": reply.text,
        "found": reply.found,
        "certainty": reply.certainty,
        "probability": None if reply.probability is None else round(reply.probability, 3),
        "answered_from": reply.answered_from,
        "read": reply.read,
        "quotation": None if reply.quotation is None else asdict(reply.quotation),
        "sentences": [asdict(one) for one in reply.sentences],
        "evidence": [passage.as_evidence() for passage in reply.evidence],
        "model": chosen.model,
        "reader": None if esa.reader is None else esa.reader.name,
        "preset": chosen.name,
        "selector": chosen.selector["name"],
        "position": chosen.position["name"],
        "window": {name: getattr(chosen.window, name) for name in sizes},
        "documents": make_document_json_list(books),
        "left_out": [file.to_dict() for file in left_out],
        "tokens": {
            "document": esa.cached_document_tokens or sum(book.tokens for book in books),
            "question": reply.question_tokens,
            "answer": reply.answer_tokens,
        },
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
