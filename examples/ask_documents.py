"""Asks several documents one question, and shows the passages the answer rests on.

    python examples/ask_documents.py report.pdf notes/ "Who signed it?"
    python examples/ask_documents.py a.md b.md "When?" --preset tiny-random     # needs no network

Each document is ingested separately, so one more costs only its own prefill; a document that is in
the library already is not ingested again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from esa_cli import Esa, Library, Passage
from esa_cli.documents.document import read_documents


def where(passage: Passage) -> str:
    """As `report.pdf, page 3, line 40`."""
    page = "" if passage.page is None else f", page {passage.page}"
    return f"{passage.document}{page}, line {passage.line}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One question about several documents.")
    parser.add_argument("documents", nargs="+", help="files, folders or patterns")
    parser.add_argument("question")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--evidence", type=int, default=3, help="passages to show")
    parser.add_argument("--report", type=Path, help="write a page with a heat map of attention")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    documents = read_documents(given.documents, say=print)
    with Esa.load(given.preset, library=Library(), keep=False) as esa:
        books = []
        for document in documents:
            for lacking in document.missing:
                print(f"{document.name}: {lacking}")
            books.append(esa.ingest(document))
            print(f"{document.name}: {books[-1].tokens:,} tokens")

        print(f"\n> {given.question}")
        reply = esa.ask(
            given.question,
            books,
            evidence=given.evidence,
            on_text=lambda piece: print(piece, end="", flush=True),
        )
        print()
        if not reply.found:
            print("(the documents may not contain the answer)")
        for number, passage in enumerate(reply.evidence, 1):
            words = " ".join(passage.text.split())
            print(f"{number}. {where(passage)} ({passage.weight:.0%}): {words}")
        if given.report:
            given.report.write_text(esa.report(reply, given.question), "utf-8")


if __name__ == "__main__":
    main()
