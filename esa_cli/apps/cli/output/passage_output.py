"""Output of passages that were found: with the question's words highlighted, file names, JSON."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from esa_cli.apps.cli.output.terminal import NARROW, clean, make_console, one_line
from esa_cli.qa.answering.reply import Passage
from esa_cli.qa.finding.words import matched_words

MATCH = "bold red"
"""As grep has it."""


@dataclass(frozen=True)
class FileMatch:
    """A document with passages: its name and path, the best score, and how many passages."""

    document: str
    source: str
    score: float
    passages: int


def files_of(passages: Sequence[Passage]) -> list[FileMatch]:
    """The documents of passages that are ordered best first, in their order."""
    counts = Counter(one.document for one in passages)
    best = {one.document: one for one in reversed(passages)}
    return [
        FileMatch(name, best[name].source, best[name].score, count)
        for name, count in counts.items()
    ]


def match_facts(match: Passage | FileMatch) -> dict[str, Any]:
    """For JSON."""
    if isinstance(match, Passage):
        return match.as_found()
    return {**asdict(match), "score": round(match.score, 3)}


def file_of(match: Passage | FileMatch) -> str:
    """The document's path; its name where it is from standard input."""
    return one_line(match.document if match.source == "-" else match.source)


def print_passages(passages: Sequence[Passage], question: str) -> None:
    """Each passage below its file and line. On a terminal the line is a link and the question's
    words are highlighted; the text is indented, and wrapped there."""
    from rich.text import Text

    console = make_console(sys.stdout)
    for number, passage in enumerate(passages):
        if number:
            print()
        heading, body = _heading(passage), Text(clean(passage.text.strip()))
        if not console.is_terminal:
            print(heading.plain)
            for line in body.plain.split("\n"):
                print(f"  {line}".rstrip())
            continue
        for start, end in matched_words(body.plain, question):
            body.stylize(MATCH, start, end)
        console.print(heading, soft_wrap=True)
        for part in body.wrap(console, max(console.width - 2, NARROW)):
            part.rstrip()
            console.print("  ", part, sep="", soft_wrap=True)


def _heading(passage: Passage) -> Any:
    from rich.style import Style
    from rich.text import Text

    path = passage.source
    link = Path(os.path.abspath(path)).as_uri() if os.path.isfile(path) else None
    details = [] if passage.page is None else [f"page {passage.page}"]
    details += [one_line(passage.chapter)] if passage.chapter else []
    details += [f"characters {passage.start}-{passage.end}", f"score {passage.score:.1f}"]
    place = (f"{file_of(passage)}:{passage.line}", Style(bold=True, link=link))
    return Text.assemble(place, ("  " + ", ".join(details), "dim"))
