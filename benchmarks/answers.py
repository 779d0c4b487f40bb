"""Questions about the chronicle with known answers, and questions that it does not answer.

Columns: the chronicle's 48 questions, each alone and, with --after, behind the question before it;
the demo's questions in other words; the 40 of unanswerable.jsonl, of which `absent` ones ask for
what the chronicle never mentions and `near` ones for an untold detail of what it mentions.

    python benchmarks/answers.py --out benchmarks/results/answers.jsonl
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import CHRONICLE, ROOT, answered, append_line, chronicle_questions, load_lines

UNANSWERABLE = Path(__file__).with_name("unanswerable.jsonl")
DEMO = ROOT / "esa_cli" / "evaluation" / "tasks" / "demo_questions.jsonl"


def ask_known(esa: Any, book: Any, questions: list[Any], after: bool) -> dict[str, Any]:
    """Asks questions with known answers; those without one must be noticed."""
    from esa_cli import Turn

    started, rows = time.perf_counter(), []
    for at, question in enumerate(questions):
        before = questions[at - 1]["question"]
        history = [Turn(before, esa.ask(before, [book]).text)] if after else []
        reply = esa.ask(question["question"], [book], max_new_tokens=24, history=history)
        good = answered(reply.text, question["answers"]) if question["answers"] else not reply.found
        rows.append({"id": question["id"], "answer": reply.text, "ok": good, "found": reply.found})
    spent = (time.perf_counter() - started) / len(rows)
    alarms = sum(
        not row["found"] for row, one in zip(rows, questions, strict=True) if one["answers"]
    )
    return {
        "answered": sum(row["ok"] for row in rows), "of": len(rows), "false_alarms": alarms,
        "s_per_question": round(spent, 2), "rows": rows,
    }  # fmt: skip


def ask_unanswerable(esa: Any, book: Any) -> dict[str, Any]:
    """How many of each kind are noticed."""
    noticed: dict[str, list[bool]] = defaultdict(list)
    rows = []
    for one in load_lines(UNANSWERABLE):
        reply = esa.ask(one["question"], [book], max_new_tokens=24)
        noticed[one["kind"]].append(not reply.found)
        rows.append({**one, "answer": reply.text, "found": reply.found})
    totals = {kind: f"{sum(flags)} of {len(flags)}" for kind, flags in noticed.items()}
    return {"noticed": totals, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--after", action="store_true", help="also behind another question")
    parser.add_argument("--out", default="")
    given = parser.parse_args()
    from esa_cli import Esa

    with Esa.load(given.preset, given.set, library=False) as esa:
        book = esa.ingest(str(CHRONICLE))
        reworded = load_lines(DEMO)
        columns: dict[str, Any] = {
            "chronicle": lambda: ask_known(esa, book, chronicle_questions(), False),
            "reworded": lambda: ask_known(esa, book, reworded, False),
            "unanswerable": lambda: ask_unanswerable(esa, book),
        }
        if given.after:
            columns["after"] = lambda: ask_known(esa, book, chronicle_questions(), True)
        for name, run in columns.items():
            row = {"column": name, "set": given.set, **run()}
            print({key: value for key, value in row.items() if key != "rows"}, flush=True)
            append_line(given.out, row)


if __name__ == "__main__":
    main()
