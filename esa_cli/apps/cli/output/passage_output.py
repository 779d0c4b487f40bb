"""Output of passages that were found: with the question's words highlighted, file names, JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esa_cli.apps.cli.output.terminal import NARROW, clean, make_console, one_line
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.words import matched_words

MATCH = "bold red"
"""As grep has it."""


def files_of(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    """The documents of passages that are ordered best first, in their order: name and path, the
    best score, and how many passages."""
    files = dict[str, dict[str, Any]]()
    for one in passages:
        facts = {"document": one.document, "source": one.source, "score": round(one.score, 3)}
        file = files.setdefault(one.document, {**facts, "passages": 0})
        file["passages"] += 1
    return list(files.values())


def file_name(document: str, source: str) -> str:
    """The document's path; its name where it is from standard input."""
    return one_line(document if source == "-" else source)


def print_passages(passages: Sequence[Passage], question: str) -> None:
    """Each passage below its file and line. On a terminal the line is a link and the question's
    words are highlighted; the text is indented, and wrapped there."""
    from rich.style import Style
    from rich.text import Text

    console = make_console(sys.stdout)
    for number, passage in enumerate(passages):
        if number:
            print()
        path, body = passage.source, Text(clean(passage.text.strip()))
        details = [] if passage.page is None else [f"page {passage.page}"]
        details += [one_line(passage.chapter)] if passage.chapter else []
        details += [f"characters {passage.start}-{passage.end}", f"score {passage.score:.1f}"]
        place = f"{file_name(passage.document, path)}:{passage.line}"
        if not console.is_terminal:
            print(f"{place}  {', '.join(details)}")
            for line in body.plain.split("\n"):
                print(f"  {line}".rstrip())
            continue
        link = Path(os.path.abspath(path)).as_uri() if os.path.isfile(path) else None
        style = Style(bold=True, link=link)
        heading = Text.assemble((place, style), ("  " + ", ".join(details), "dim"))
        for start, end in matched_words(body.plain, question):
            body.stylize(MATCH, start, end)
        console.print(heading, soft_wrap=True)
        for part in body.wrap(console, max(console.width - 2, NARROW)):
            part.rstrip()
            console.print("  ", part, sep="", soft_wrap=True)
