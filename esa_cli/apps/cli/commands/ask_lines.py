"""`esa ask --stdin`: every line of a stream is a question of its own, answered as it comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from esa_cli.apps.batch.result_row import answer_row, error_row
from esa_cli.apps.cli.inputs import Line
from esa_cli.apps.cli.output.answer_output import (
    SHOWN,
    AnswerStream,
    asked_documents,
    complain,
    show_under,
)
from esa_cli.apps.cli.output.terminal import Reporter, clean
from esa_cli.apps.cli.output.terminal import as_json as written
from esa_cli.apps.cli.output.word_wrap import wrapped_text
from esa_cli.errors import EsaError
from esa_cli.qa.answering.reply import Asker

if TYPE_CHECKING:
    from esa_cli.apps.cli.best_books import BestBooks
    from esa_cli.documents.document import LeftOut
    from esa_cli.qa.books import Book


def ask_lines(
    asker: Asker,
    books: Sequence[Any],
    lines: Iterable[tuple[int, Line]],
    out: IO[str],
    as_json: bool,
    *,
    reporter: Reporter,
    options: Mapping[str, Any] | None = None,
    shown: int = SHOWN,
    left_out: Sequence[LeftOut] = (),
    best: BestBooks | None = None,
) -> int:
    """Answers every line, and returns how many got no answer.

    With `as_json` each answer is one line of JSON. Without, it streams, a blank line follows, and
    the passages go where notes go.

    Args:
        lines: numbers and questions, as `inputs.numbered_lines` gives them.
        options: keyword arguments for `asker.ask`. shown: passages of each answer.
        left_out: of the documents, for the JSON. best: finds further books for a question.
    """
    asking = {**(options or {}), "evidence": shown}
    wrong = 0
    for number, question in lines:
        spoken = AnswerStream(out, reporter)
        reporter.waiting("answering")
        try:
            if isinstance(question, EsaError):
                raise question
            about = [*books, *best.books(question)] if best else books
            with spoken:
                found = asker.ask(question, about, on_text=None if as_json else spoken, **asking)
        except EsaError as error:
            wrong += 1
            row, text, reply = error_row(error), "", None
            if not as_json:
                where = "" if error is question else f"line {number}: "
                complain(reporter, f"esa: {where}{error.message}")
        else:
            row = {**answer_row(found, about, left_out), **_searched(best, about)}
            text, reply = clean(found.text), found
        reporter.settle()
        if as_json:
            words = question if isinstance(question, str) else ""
            out.write(written({"line": number, "question": words, **row}) + "\n")
        else:
            out.write("\n\n" if spoken.any else f"{wrapped_text(text, out)}\n\n")
        out.flush()
        if reply is not None and not as_json:
            show_under(reply, shown, reporter)
    return wrong


def _searched(best: BestBooks | None, about: Sequence[Book]) -> dict[str, Any]:
    """What a line's JSON has where documents were found by its words: they are its own."""
    if best is None:
        return {}
    searched = {"searched": best.searched} if best.searched else {}
    return {"documents": asked_documents(about), **searched}
