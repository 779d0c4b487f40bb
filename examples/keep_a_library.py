"""Ingests a document into a library on disk once; the next run finds it there and only asks.

    python examples/keep_a_library.py log.txt "What failed first?"
    python examples/keep_a_library.py log.txt "And then?" --more new.txt   # reads only the new part
    python examples/keep_a_library.py note.md "When?" --preset tiny-random # needs no network

Documents are found by their text, not by name or date. docs/library.md says what is kept, and how.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from esa_cli import Book, Esa, Library, read_document


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A document that is read once.")
    parser.add_argument("document")
    parser.add_argument("question")
    parser.add_argument("--more", help="a text that has been added to the document since")
    parser.add_argument("--library", type=Path, help="a folder; default: your own library")
    parser.add_argument("--preset", default="default")
    return parser.parse_args()


def say(book: Book) -> None:
    how = f"read in {book.read_s:.1f} s" if book.read_s else "found in the library"
    print(f"{book.document.name}: {book.tokens:,} tokens, {how}")


def shared(one: Book, other: Book) -> int:
    """Cached tokens that both documents have in common on disk."""
    assert one.entry is not None
    assert other.entry is not None
    same = set(one.entry.segments) & set(other.entry.segments)
    return sum(
        one.entry.count_segment_tokens(i)
        for i, name in enumerate(one.entry.segments)
        if name in same
    )


def main() -> None:
    given = arguments()
    document = read_document(given.document)
    library = Library(given.library)
    with Esa.load(given.preset, library=library) as esa:
        book = esa.ingest(document)
        say(book)
        if given.more:
            longer = replace(document, text=document.text + read_document(given.more).text)
            first, book = book, esa.ingest(longer)
            say(book)
            print(f"{shared(first, book):,} of these tokens were there before")
        reply = esa.ask(given.question, [book])
        print(f"\n> {given.question}\n{reply.text}")
        print(f"(the first word came after {reply.first_token_s:.1f} s)\n")

    for entry in library.entries():
        print(f"{entry.id}  {entry.tokens:>9,} tokens  {entry.nbytes / 1e6:8,.1f} MB  {entry.name}")


if __name__ == "__main__":
    main()
