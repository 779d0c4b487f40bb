"""`esa ask --stdin`: every line of a stream is a question of its own, answered as it comes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from ..batch.rows import answered, failed
from ..errors import EsaError
from ..reply import Asker
from .quoted import Spoken, complain, under
from .render import Reporter, clean

PARTIAL = 7
"""Exit code when some questions got no answer; the others did."""


def ask_lines(
    asker: Asker,
    books: Sequence[Any],
    lines: Iterable[tuple[int, str]],
    out: IO[str],
    as_json: bool,
    *,
    reporter: Reporter,
    options: Mapping[str, Any] | None = None,
    shown: int = 3,
) -> int:
    """Answers every line, and returns how many got no answer.

    With `as_json` each answer is one line of JSON. Without, it streams, a blank line follows, and
    the passages go where notes go.

    Args:
        lines: numbers and questions, as `stdin_lines.numbered` gives them.
        options: keyword arguments for `asker.ask`. shown: passages of each answer.
    """
    asking = {**(options or {}), "evidence": shown}
    wrong = 0
    for number, question in lines:
        spoken = Spoken(out, reporter)
        reporter.waiting("answering")
        try:
            found = asker.ask(question, books, on_text=None if as_json else spoken, **asking)
        except EsaError as error:
            wrong += 1
            row, text = failed(error), ""
            below = []
            if not as_json:
                complain(reporter, f"esa: line {number}: {error.message}")
        else:
            row, text = answered(found, books), clean(found.text)
            below = under(found, shown, reporter.live)
        reporter.settle()
        if as_json:
            row = {"line": number, "question": question, **row}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
        else:
            out.write("\n\n" if spoken.any else f"{text}\n\n")
        out.flush()
        for line in [] if as_json else below:
            reporter.note(line)
    return wrong
