"""What an earlier turn does to a question: each asked alone, and after the question before it.

    python benchmarks/conversation.py --library FOLDER --out benchmarks/results/conversation.jsonl

The chronicle's questions have nothing to do with each other, so an earlier turn cannot help: the
difference is what it costs to have it in view. A line of the output holds all answers of a run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from questions import EXAMPLES, answered

from esa_cli import Esa, Library, Turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="smollm2-135m")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--library", required=True, help="the chronicle is kept in this folder")
    parser.add_argument("--limit", type=int, default=None, help="only so many questions")
    parser.add_argument("--out", default="", help="JSON lines, appended")
    arguments = parser.parse_args()
    lines = (EXAMPLES / "questions.jsonl").read_text("utf-8").splitlines()
    questions = [json.loads(line) for line in lines][: arguments.limit]
    rows, before = [], None
    library = Library(Path(arguments.library))
    with Esa.load(arguments.preset, arguments.set, library=library) as esa:
        book = esa.ingest(str(EXAMPLES / "chronicle.md"))
        for question in questions:
            text, answers = question["question"], question["answers"]
            alone = esa.ask(text, [book], max_new_tokens=24).text
            history = [before] if before else []
            after = esa.ask(text, [book], max_new_tokens=24, history=history).text
            said = {"alone": alone, "after a turn": after}
            right = {name: answered(one, answers) for name, one in said.items()}
            rows.append({"id": question["id"], "answers": said, "right": right})
            before = Turn(text, alone)
            print(question["id"], right, flush=True)
    summary = {
        "preset": arguments.preset,
        "set": arguments.set,
        "of": len(rows),
        **{name: sum(row["right"][name] for row in rows) for name in ("alone", "after a turn")},
    }
    print(json.dumps(summary))
    if arguments.out:
        with open(arguments.out, "a", encoding="utf-8") as file:
            file.write(json.dumps({**summary, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
