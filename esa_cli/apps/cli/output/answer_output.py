"""Output of an answer: pieces as they are generated, passages, a summary, JSON."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any

from esa_cli.apps.cli.output.terminal import Reporter, clean
from esa_cli.documents.sentences import Sentences
from esa_cli.qa.answering.reply import Quotation, Reply
from esa_cli.qa.finding.passage import Passage
from esa_cli.system.machine import peak_memory, size_text, time_text

if TYPE_CHECKING:
    from esa_cli.documents.document import LeftOut
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.books import Book

SHOWN = 3
"""Passages under an answer unless --top says how many."""
NOT_FOUND = "the documents may not contain the answer"
WEIGHTS = "  passages, with how much each counts for the answer:"
NEAREST = "  the nearest passages:"
PIPE_WIDTH = 160


class AnswerStream:
    """Writes pieces of an answer as they come, without the white space before its first word."""

    def __init__(self, out: IO[str], reporter: Reporter) -> None:
        self.out, self.reporter, self.any = out, reporter, False

    def __call__(self, piece: str) -> None:
        piece = piece if self.any else piece.lstrip()
        if piece:
            self.any = True
            self.reporter.settle()
            self.out.write(clean(piece))
            self.out.flush()


@dataclass
class Timing:
    """Seconds, and tokens per second."""

    load_s: float = 0.0
    ingest_s: float = 0.0
    answer_s: float = 0.0
    ingest_tokens_per_s: float = 0.0
    _since: float = field(default_factory=time.perf_counter, repr=False)

    def lap(self) -> float:
        now = time.perf_counter()
        spent, self._since = now - self._since, now
        return spent

    def ingested(self, books: Sequence[Book]) -> None:
        """Ends the lap of ingesting these books; the rate is of those that were not stored yet."""
        self.ingest_s = self.lap()
        new = [book for book in books if book.read_s]
        if new:
            seconds = sum(book.read_s for book in new)
            self.ingest_tokens_per_s = sum(book.tokens for book in new) / seconds


def passage_count(top: int | None, quiet: bool) -> int:
    """Passages to show: as many as --top says; without it none where it is to be quiet."""
    return (0 if quiet else SHOWN) if top is None else top


def weighed_place(passage: Passage, found: bool, chapter: str = "") -> str:
    """`book.pdf, page 3, line 40 (12%)`: how much a passage counts for the answer, if any."""
    page = "" if passage.page is None else f", page {passage.page}"
    weight = f" ({passage.weight:.0%})" if found else ""
    return f"{passage.document}{page}, line {passage.line}{chapter}{weight}"


def passage_line(
    passage: Passage, width: int, quotation: Quotation | None = None, found: bool = True
) -> str:
    """Place, weight and words of a passage, in `width` columns: its first ones, or those of the
    sentence with the quotation. Where no answer was found, the weight says nothing."""
    from rich.cells import cell_len, set_cell_size

    words = passage.text
    at = quotation.start if quotation and quotation.document == passage.document else -1
    if passage.start <= at < passage.end:
        words = words[Sentences(words).around(at - passage.start)[0] :]
    text = clean(f"  {weighed_place(passage, found)}: {' '.join(words.split())}")
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def show_under(reply: Reply, count: int, reporter: Reporter) -> None:
    """Writes below an answer whether to trust it, and its best `count` passages."""
    if reply.doubtful:
        reporter.warn(f"  {NOT_FOUND}")
    if reply.cut:
        reporter.warn("  the answer was cut off; --max-new-tokens allows a longer one")
    width = shutil.get_terminal_size().columns if reporter.live else PIPE_WIDTH
    if reply.evidence[:count]:
        reporter.explain(WEIGHTS if reply.found else NEAREST)
    for passage in reply.evidence[:count]:
        reporter.warn(passage_line(passage, max(width, 40), reply.quotation, reply.found))


def in_full(evidence: Sequence[Passage], found: bool) -> str:
    """Every passage with its number, its place and all its text."""
    parts = []
    for number, passage in enumerate(evidence, 1):
        chapter = f", {passage.chapter}" if passage.chapter else ""
        head = f"{number}. {weighed_place(passage, found, chapter)}"
        body = "\n".join(f"   {line}" for line in passage.text.strip().splitlines())
        parts.append(clean(f"{head}\n{body}"))
    return "\n\n".join(parts)


def complain(reporter: Reporter, text: str) -> None:
    """An error line, shown with --quiet too."""
    reporter.settle()
    reporter.warn(text)


def as_dict(
    esa: Esa, books: Sequence[Book], reply: Reply, timing: Timing, left_out: Sequence[LeftOut] = ()
) -> dict[str, Any]:
    """The JSON object of `esa ask --json`."""
    chosen = esa.preset
    window = asdict(chosen.window)
    times = {key: round(value, 3) for key, value in asdict(timing).items() if key[0] != "_"}
    return {
        "answer": reply.text,
        "found": reply.found,
        "answered_from": reply.answered_from,
        "read": reply.read,
        "quotation": None if reply.quotation is None else asdict(reply.quotation),
        "evidence": [passage.as_evidence() for passage in reply.evidence],
        "model": chosen.model,
        "reader": None if esa.reader is None else esa.reader.name,
        "preset": chosen.name,
        "selector": chosen.selector["name"],
        "position": chosen.position["name"],
        "window": {key: window[key] for key in ("initial", "selected", "local", "chunk")},
        "documents": asked_documents(books),
        "left_out": [one.as_dict() for one in left_out],
        "tokens": {
            "document": esa.cached_tokens or sum(book.tokens for book in books),
            "question": reply.question_tokens,
            "answer": reply.answer_tokens,
        },
        "timing": {**times, "first_token_s": round(reply.first_token_s, 3)},
        "peak_memory_bytes": peak_memory(str(esa.loaded.device)),
    }


def asked_documents(books: Sequence[Book]) -> list[dict[str, Any]]:
    """The `documents` of a JSON object: those that a question was asked about."""
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


def summary(result: dict[str, Any]) -> str:
    """The last line of `esa ask`: tokens, times and memory."""
    tokens, timing = result["tokens"], result["timing"]
    rate = timing["ingest_tokens_per_s"]
    how = f"read in {time_text(timing['ingest_s'])} ({rate:,.0f} tokens/s)" if rate else "at hand"
    return (
        f"{tokens['document']:,} tokens {how}, answer of {tokens['answer']} in "
        f"{time_text(timing['answer_s'])}, loaded in {time_text(timing['load_s'])}, "
        f"peak memory {size_text(result['peak_memory_bytes'])}"
    )
