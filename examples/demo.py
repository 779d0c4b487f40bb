"""`make demo`: the tool's main job, on screen, with the default model.

It asks the chronicle in this folder (over four times the model's window) questions in other words
than its own, and one that it does not answer. Below each answer are the passage it rests on most,
and the right answer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from esa_cli import Book, Esa, load_preset, models, read_document
from esa_cli.models.quiet_transformers import quiet_transformers

HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The tool's main job, on screen.")
    parser.add_argument("count", nargs="?", type=int, default=9, help="questions; default 9")
    parser.add_argument("--preset", default="smollm2-135m")
    return parser.parse_args()


def questions(count: int) -> list[dict[str, Any]]:
    """The first `count` questions; the last of all has no answer in the text."""
    lines = (HERE / "demo_questions.jsonl").read_text("utf-8").splitlines()
    known = [json.loads(line) for line in lines]
    return [*known[: count - 1], known[-1]]


def ask(esa: Esa, book: Book, known: dict[str, Any], screen: Console) -> None:
    screen.print(f"[bold]{known['question']}[/]")
    reply = esa.ask(
        known["question"],
        [book],
        evidence=1,
        on_text=lambda piece: screen.print(piece, end="", markup=False),
    )
    screen.print()
    for passage in reply.evidence:
        said = passage.text
        if reply.quotation:  # from the sentence on that has the answer
            before = said[: reply.quotation.start - passage.start]
            said = said[max(before.rfind(end) for end in (". ", "\n\n", "? ")) + 1 :]
        words = f"line {passage.line}: {' '.join(said.split())}"
        screen.print(words, style="cyan", markup=False, no_wrap=True, overflow="ellipsis")
    right = known["answers"][0] if known["answers"] else "nothing: the text does not say"
    screen.print(f"[dim]right: {right}; {reply.total_s:.1f} s[/]\n")


def main() -> None:
    given = arguments()
    screen = Console(highlight=False)
    chosen = load_preset(given.preset)
    words = len(read_document(str(HERE / "chronicle.md")).text.split())
    screen.print(f"[bold]chronicle.md[/]: {words:,} words")
    screen.print("getting the model (fetched once, then kept) ...")
    loaded = models.load(chosen.model)
    with quiet_transformers(), Esa(loaded, chosen) as esa:
        screen.print("the model reads the chronicle once ...")
        book = esa.ingest(str(HERE / "chronicle.md"))
        read = f"read in {book.read_s:.0f} s" if book.read else "nothing is read in advance"
        screen.print(f"{book.tokens:,} tokens; the model's window is {chosen.context:,}; {read}\n")
        for known in questions(given.count):
            ask(esa, book, known, screen)


if __name__ == "__main__":
    main()
