"""What `ask` shows of an answer: pieces as they come, a summary, one JSON object."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.terminal import Reporter
from esa_cli.system.machine import peak_memory, size_text, time_text

if TYPE_CHECKING:
    from esa_cli.documents.document import LeftOut
    from esa_cli.qa.api import Esa
    from esa_cli.qa.ingest import Book
    from esa_cli.qa.reply import Reply


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


def without_margin(reporter: Reporter) -> Callable[[str], None]:
    """Prints pieces of the answer, leaving out white space before its first word."""
    started = False

    def show(piece: str) -> None:
        nonlocal started
        piece = piece if started else piece.lstrip()
        if piece:
            started = True
            reporter.answer(piece)

    return show


def as_dict(
    esa: Esa, books: Sequence[Book], reply: Reply, timing: Timing, left_out: Sequence[LeftOut] = ()
) -> dict[str, Any]:
    chosen = esa.preset
    window = chosen.window.model_dump()
    times = {key: round(value, 3) for key, value in asdict(timing).items() if key[0] != "_"}
    return {
        "answer": reply.text,
        "found": reply.found,
        "evidence": [asdict(passage) for passage in reply.evidence],
        "model": chosen.model,
        "preset": chosen.name,
        "selector": chosen.selector["name"],
        "position": chosen.position["name"],
        "window": {key: window[key] for key in ("initial", "selected", "local", "chunk")},
        "documents": [
            {
                "name": book.document.name,
                "source": book.document.source,
                "tokens": book.tokens,
                "id": book.entry.id if book.entry else None,
                "read": bool(book.read_s),
                "missing": list(book.document.missing),
            }
            for book in books
        ],
        "left_out": [one.as_dict() for one in left_out],
        "tokens": {
            "document": esa.session.document_tokens,
            "question": reply.question_tokens,
            "answer": reply.answer_tokens,
        },
        "timing": {**times, "first_token_s": round(reply.first_token_s, 3)},
        "peak_memory_bytes": peak_memory(str(esa.loaded.device)),
    }


def summary(result: dict[str, Any]) -> str:
    tokens, timing = result["tokens"], result["timing"]
    rate = timing["ingest_tokens_per_s"]
    how = f"read in {time_text(timing['ingest_s'])} ({rate:,.0f} tokens/s)" if rate else "at hand"
    return (
        f"{tokens['document']:,} tokens {how}, {tokens['answer']} answered in "
        f"{time_text(timing['answer_s'])}, loaded in {time_text(timing['load_s'])}, "
        f"peak memory {size_text(result['peak_memory_bytes'])}"
    )
