"""Questions about real documents: correct answers, and evidence on the right page.

`documents.jsonl` has questions, their answers, and a few words beside the fact in the text. A page
or chapter is right when it contains such a place.

    python benchmarks/documents.py manual.pdf --of typescript --library FOLDER --out rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from common import append_line, load_lines

QUESTIONS = Path(__file__).with_name("documents.jsonl")


def places(text: str, near: str) -> list[int]:
    """Offsets of the words in the text, with any space between them."""
    words = r"\s+".join(re.escape(word) for word in near.split())
    return [match.start() for match in re.finditer(words, text)]


def site(marks: Any, offset: int) -> tuple[int | None, str | None]:
    """The page and the chapter of a character."""
    page, chapter = None, None
    for mark in marks:
        if mark.start > offset:
            break
        page, chapter = mark.page, mark.chapter
    return page, chapter


def row(esa: Any, book: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Asks one question and compares its evidence with the document."""
    document = book.document
    found = places(document.text, question["near"])
    assert found, question["near"]
    right = {site(document.marks, at) for at in found}
    reply = esa.ask(question["question"], [book])
    quoted = [any(e.start <= at < e.end for at in found) for e in reply.evidence]
    sites = [(e.page, e.chapter) for e in reply.evidence]
    return {
        "question": question["question"],
        "answer": reply.text,
        "answered": any(one.lower() in reply.text.lower() for one in question["answers"]),
        "page": sorted(right, key=str),
        "pages": sites,
        "first_page": bool(sites) and sites[0] in right,
        "page_in_three": any(one in right for one in sites),
        "quoted_first": bool(quoted) and quoted[0],
        "quoted_in_three": any(quoted),
        "found": reply.found,
        "first_token_s": round(reply.first_token_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("document")
    parser.add_argument("--of", required=True, help="whose questions: see documents.jsonl")
    parser.add_argument("--library", default="", help="a folder; without one, kept in memory")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    from esa_cli import Esa, Library

    questions = [one for one in load_lines(QUESTIONS) if one["of"] == arguments.of]
    library = Library(Path(arguments.library)) if arguments.library else None
    with Esa.load(library=library) as esa:
        book = esa.ingest(arguments.document)
        rows = [row(esa, book, one) for one in questions]
    keys = ("answered", "first_page", "page_in_three", "quoted_first", "quoted_in_three")
    totals = {key: sum(one[key] for one in rows) for key in keys}
    head = {"document": Path(arguments.document).name, "tokens": book.tokens, "of": len(rows)}
    result = {**head, **totals, "read_s": round(book.read_s, 1), "rows": rows}
    print(json.dumps({**head, **totals}, indent=2))
    append_line(arguments.out, result)


if __name__ == "__main__":
    main()
