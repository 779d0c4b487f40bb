"""The effect of an earlier turn: each question asked alone, and after the question before it.

The chronicle's questions have nothing to do with each other, so an earlier turn cannot help: the
difference is the cost of having it in view. A line of the output has all answers of a run.

    python benchmarks/conversation.py --library FOLDER --out benchmarks/results/conversation.jsonl

With --follow-ups instead: questions of `follow_ups.jsonl` that need the turn before, about facts of
the chronicle. Those of kind `pronoun` refer to it (`Where did he come from?`), those of kind
`elliptic` lack what it has (`When?`).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from common import CHRONICLE, answered, append_line, chronicle_questions, load_lines

from esa_cli import Book, Esa, Library, Turn

FOLLOW_UPS = Path(__file__).with_name("follow_ups.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--library", required=True, help="the chronicle is kept in this folder")
    parser.add_argument("--limit", type=int, default=None, help="only so many questions")
    parser.add_argument("--follow-ups", action="store_true", help="questions that need a turn")
    parser.add_argument("--out", default="", help="JSON lines, appended")
    arguments = parser.parse_args()
    library = Library(Path(arguments.library))
    with Esa.load(arguments.preset, arguments.set, library=library) as esa:
        book = esa.ingest(str(CHRONICLE))
        ask_all = follow_ups if arguments.follow_ups else unrelated
        rows = ask_all(esa, book, arguments.limit)
    counts = Counter(name for row in rows for name in row["right"])
    right = Counter(name for row in rows for name, one in row["right"].items() if one)
    summary = {
        "preset": arguments.preset,
        "set": arguments.set,
        "of": len(rows),
        **{name: right[name] for name in counts},
    }
    print(json.dumps(summary), dict(counts))
    append_line(arguments.out, {**summary, "rows": rows})


def unrelated(esa: Esa, book: Book, limit: int | None) -> list[dict[str, Any]]:
    """The chronicle's questions, each alone and after the one before it."""
    rows, before = [], None
    for question in chronicle_questions()[:limit]:
        text, answers = question["question"], question["answers"]
        alone = esa.ask(text, [book], max_new_tokens=24).text
        history = [before] if before else []
        after = esa.ask(text, [book], max_new_tokens=24, history=history).text
        said = {"alone": alone, "after a turn": after}
        right = {name: answered(one, answers) for name, one in said.items()}
        rows.append({"id": question["id"], "answers": said, "right": right})
        before = Turn(text, alone)
        print(question["id"], right, flush=True)
    return rows


def follow_ups(esa: Esa, book: Book, limit: int | None) -> list[dict[str, Any]]:
    """Questions that need the turn before, asked with it."""
    facts, rows = {one["id"]: one for one in chronicle_questions()}, []
    for one in load_lines(FOLLOW_UPS)[:limit]:
        history = [Turn(*one["before"])]
        said = esa.ask(one["question"], [book], max_new_tokens=24, history=history).text
        right = {one["kind"]: answered(said, facts[one["id"]]["answers"])}
        rows.append({"id": one["id"], "answers": {one["kind"]: said}, "right": right})
        print(one["id"], right, flush=True)
    return rows


if __name__ == "__main__":
    main()
