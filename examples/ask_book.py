"""Ingests a document once and asks several questions about it; each answer streams.

python examples/ask_book.py book.txt "Who is Irene Adler?" "Where does she live?"
"""

from __future__ import annotations

import argparse

from esa_cli import Session, load_preset, models
from esa_cli.documents.document import read_document


def main() -> None:
    parser = argparse.ArgumentParser(description="Several questions about one document.")
    parser.add_argument("document")
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--temperature", type=float, default=None, help="default: the preset's")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()

    document = read_document(given.document)
    preset = load_preset(given.preset)
    loaded = models.load(preset.model)
    with Session(loaded.model, loaded.tokenizer, preset) as session:
        session.read(document.text)
        print(f"{document.name}: {session.document_tokens:,} tokens")
        for question in given.questions:
            print(f"\n> {question}")
            session.ask(
                question,
                temperature=given.temperature,
                seed=given.seed,
                on_text=lambda piece: print(piece, end="", flush=True),
            )
            print()


if __name__ == "__main__":
    main()
