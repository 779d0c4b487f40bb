"""The chronicle's questions: the share answered at over four times the model's window.

Columns, with the same model, prompt and questions:
    excerpt   dense attention over about 600 words around the fact: the model's ceiling
    preset    the preset, over the whole chronicle
    others    settings given by --also NAME=KEY=VALUE,KEY=VALUE; each with its own prefill
    asks      settings given by --ask likewise, over the preset's prefill

    python benchmarks/questions.py --out benchmarks/results/questions.jsonl
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from common import answered, append_line, chronicle, chronicle_questions

PAPER = (
    "reading=select,window.initial=64,window.ending=null,window.dense=null,window.local=1024,"
    "window.selected=1024,compressor.name=closed-form,"
    "score.name=sum,selector.name=topk,selector.proximity=3,position.name=esa,"
    "position.distance=6000"
)


def excerpt(text: str, fact: str, words: int) -> str:
    """About `words` words around the fact, cut at paragraphs."""
    parts = text.split("\n\n")
    first = last = next(i for i, part in enumerate(parts) if fact in part)
    while len(" ".join(parts[first : last + 1]).split()) < words:
        first, last = max(0, first - 1), min(len(parts) - 1, last + 1)
    return "\n\n".join(parts[first : last + 1])


def ask_all(session: Any, questions: list[dict[str, Any]], text: str, words: int) -> dict[str, Any]:
    """Asks every question: over `text`, with `words` over its excerpt, or over the last prefill."""
    started, rows = time.perf_counter(), []
    if text and not words:
        session.read(text)
    read = time.perf_counter() - started
    for question in questions:
        if words:
            session.read(excerpt(text, question["fact"], words))
        answer = session.ask(question["question"], max_new_tokens=24)
        good = answered(answer.text, question["answers"])
        rows.append({"id": question["id"], "answer": answer.text, "ok": good})
    spent = time.perf_counter() - started - read
    return {
        "answered": sum(row["ok"] for row in rows),
        "of": len(rows),
        "read_s": round(read, 1),
        "s_per_question": round(spent / len(rows), 2),
        "results": rows,
    }


def keep(row: dict[str, Any], path: str) -> None:
    print(f"{row['column']}: {row['answered']} of {row['of']}, {row['s_per_question']} s each")
    append_line(path, row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--excerpt-words", type=int, default=600)
    parser.add_argument("--also", action="append", default=[], help="NAME=KEY=VALUE,KEY=VALUE")
    parser.add_argument("--ask", action="append", default=[], help="NAME=KEY=VALUE,KEY=VALUE")
    parser.add_argument("--paper", action="store_true", help="also the paper's score and positions")
    parser.add_argument("--only", default="", help="run only this column")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    from esa_cli import models
    from esa_cli.qa.answering.session import Session
    from esa_cli.qa.presets.preset import load_preset

    text, questions = chronicle(), chronicle_questions()
    chosen = load_preset(arguments.preset)
    loaded = models.load(chosen.model)
    dense = f"window.dense={chosen.context - 1000}"
    columns = [("excerpt", [dense], arguments.excerpt_words), ("preset", [], 0)]
    asks = [entry.partition("=")[::2] for entry in arguments.ask]
    extra = [entry.partition("=")[::2] for entry in arguments.also]
    extra += [("paper", PAPER)] if arguments.paper else []
    columns += [(name, settings.split(","), 0) for name, settings in extra]
    for name, overrides, words in columns:
        if arguments.only and name != arguments.only:
            continue
        with Session(
            loaded.model, loaded.tokenizer, load_preset(chosen.name, overrides)
        ) as session:
            row = {"column": name, "set": overrides, **ask_all(session, questions, text, words)}
            keep(row, arguments.out)
            for asking, settings in asks if name == "preset" else []:
                session.use_preset(load_preset(chosen.name, settings.split(",")))
                row = {"column": asking, "set": settings.split(","), "over": "preset's reading"}
                keep({**row, **ask_all(session, questions, "", 0)}, arguments.out)


if __name__ == "__main__":
    main()
