"""`make demo`: the tool's main job, on screen, with the default model.

It ingests the chronicle in this folder (over four times the model's window) once and asks several
questions. Below each answer are the passage it rests on most, and the right answer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from esa_cli import Book, Esa, load_preset, models, read_document
from esa_cli.models.quiet_transformers import quiet_transformers

HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The tool's main job, on screen.")
    parser.add_argument("count", nargs="?", type=int, default=8, help="questions; default 8")
    parser.add_argument("--preset", default="smollm2-135m")
    return parser.parse_args()


def questions(count: int) -> list[dict[str, Any]]:
    """`count` questions spread over the whole depth of the document."""
    lines = (HERE / "questions.jsonl").read_text("utf-8").splitlines()
    known = sorted((json.loads(line) for line in lines), key=lambda q: float(q["depth"]))
    step = len(known) / count
    return [known[int((i + 0.5) * step)] for i in range(count)]


def ask(esa: Esa, book: Book, known: dict[str, Any], screen: Console) -> None:
    screen.print(f"[dim]at {known['depth']:.0%}:[/] [bold]{known['question']}[/]")
    reply = esa.ask(
        known["question"],
        [book],
        evidence=1,
        on_text=lambda piece: screen.print(piece, end="", markup=False),
    )
    screen.print()
    if not reply.found:
        screen.print("the text may not contain the answer", style="dim")
    for passage in reply.evidence:
        words = f"line {passage.line}: {' '.join(passage.text.split())}"
        screen.print(words, style="cyan", markup=False, no_wrap=True, overflow="ellipsis")
    screen.print(f"[dim]right: {known['answers'][0]}; {reply.total_s:.1f} s[/]\n")


def main() -> None:
    given = arguments()
    screen = Console(highlight=False)
    chosen = load_preset(given.preset)
    words = len(read_document(str(HERE / "chronicle.md")).text.split())
    screen.print(f"[bold]chronicle.md[/]: {words:,} words")
    screen.print("getting the model (fetched once, then kept) ...")
    loaded = models.load(chosen.model)
    bar = Progress(
        TextColumn("reading"),
        BarColumn(),
        TextColumn("{task.completed:,} of {task.total:,} tokens"),
        TimeRemainingColumn(),
        console=screen,
    )
    task = bar.add_task("reading", total=0)

    def progress(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)

    with quiet_transformers(), Esa(loaded, chosen) as esa:
        with bar:
            book = esa.ingest(str(HERE / "chronicle.md"), progress)
        screen.print(
            f"{book.tokens:,} tokens in {book.read_s:.0f} s; "
            f"the model's window is {chosen.context:,}\n"
        )
        for known in questions(given.count):
            ask(esa, book, known, screen)


if __name__ == "__main__":
    main()
