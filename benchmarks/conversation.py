"""The effect of an earlier turn: each question asked alone, and after the question before it.

The chronicle's questions have nothing to do with each other, so an earlier turn cannot help: the
difference is the cost of having it in view. A line of the output has all answers of a run.

    python benchmarks/conversation.py --library FOLDER --out benchmarks/results/conversation.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from common import CHRONICLE, answered, append_line, chronicle_questions

from esa_cli import Esa, Library, Turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="smollm2-135m")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--library", required=True, help="the chronicle is kept in this folder")
    parser.add_argument("--limit", type=int, default=None, help="only so many questions")
    parser.add_argument("--out", default="", help="JSON lines, appended")
    arguments = parser.parse_args()
    questions = chronicle_questions()[: arguments.limit]
    rows, before = [], None
    library = Library(Path(arguments.library))
    with Esa.load(arguments.preset, arguments.set, library=library) as esa:
        book = esa.ingest(str(CHRONICLE))
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
    append_line(arguments.out, {**summary, "rows": rows})


if __name__ == "__main__":
    main()
