"""A conversation as Markdown or JSON, for /save."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from esa_cli.apps.chat.conversation import Exchange
from esa_cli.qa.answering.reply import Evidence, says_not_told


def place(passage: Evidence) -> str:
    """The location of a passage: `book.pdf, page 3, line 40`."""
    page = f", page {passage.page}" if passage.page is not None else ""
    return f"{passage.document}{page}, line {passage.line}"


def weighed_place(passage: Evidence, found: bool, chapter: str = "") -> str:
    """The location of a passage with how much it counts for the answer that was found, if any."""
    return f"{place(passage)}{chapter}" + (f" ({passage.weight:.0%})" if found else "")


def transcript(path: Path, model: str, documents: Sequence[str], record: Sequence[Exchange]) -> str:
    """JSON where `path` ends with .json, else Markdown; names that are not UTF-8 are escaped."""
    form = _as_json if path.suffix.lower() == ".json" else _as_markdown
    return form(model, documents, record).encode("utf-8", "backslashreplace").decode()


def _as_json(model: str, documents: Sequence[str], record: Sequence[Exchange]) -> str:
    data = {
        "model": model,
        "date": time.strftime("%Y-%m-%d"),
        "documents": list(documents),
        "turns": [asdict(one) for one in record],
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _as_markdown(model: str, documents: Sequence[str], record: Sequence[Exchange]) -> str:
    lines = ["# Questions and answers", "", f"{model}, {time.strftime('%Y-%m-%d')}", ""]
    lines += [f"- {name}" for name in documents]
    for number, one in enumerate(record, 1):
        quoted = (f"> {line}".rstrip() for line in one.question.splitlines())
        lines += ["", f"## Question {number}", "", "\n".join(quoted), "", one.answer]
        if one.stopped or one.cut:
            lines += ["", "*(stopped)*" if one.stopped else "*(cut off)*"]
        if not one.found and not says_not_told(one.answer):
            lines += ["", "*(the documents may not contain the answer)*"]
        if one.evidence:
            counts = "Passages, with how much each counts for the answer:"
            lines += ["", counts if one.found else "The nearest passages:", ""]
        for rank, passage in enumerate(one.evidence, 1):
            words = " ".join(passage.text.split())
            lines.append(f"{rank}. {weighed_place(passage, one.found)}: {words}")
    return "\n".join(lines) + "\n"
