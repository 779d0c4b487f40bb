"""Texts that fit in the window: is it better to show all of it, or to select as in a long one?

The chronicle is cut into pieces of about so many tokens, at paragraphs; each of its questions is
asked about the piece that has the fact. Four ways, same model, prompt and questions:
    preset    as it is
    plain     plain attention, reading and asking (`window.dense` above every length)
    selected  read in chunks with local attention, and asked by selection, as beyond `window.dense`
    mixed     read with plain attention, asked by selection

    python benchmarks/short.py --out benchmarks/results/short.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from questions import EXAMPLES, answered

PLAIN = ["window.dense=7680"]
NARROW = ["window.dense=288"]
"""Less than any piece: beyond it the preset selects."""
WAYS: dict[str, tuple[list[str], list[str]]] = {
    "preset": ([], []),
    "plain": (PLAIN, PLAIN),
    "selected": (NARROW, NARROW),
    "mixed": (PLAIN, NARROW),
}


def pieces(text: str, length: int, tokenizer: Any) -> Iterator[str]:
    """The text in pieces of at least `length` tokens, the last one perhaps of fewer."""
    part: list[str] = []
    tokens = 0
    for paragraph in text.split("\n\n"):
        part.append(paragraph)
        tokens += len(tokenizer(paragraph, add_special_tokens=False)["input_ids"]) + 1
        if tokens >= length:
            yield "\n\n".join(part)
            part, tokens = [], 0
    if part:
        yield "\n\n".join(part)


def ask_pieces(
    session: Any, presets: tuple[Any, Any], parts: list[str], questions: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row for each question, asked about the piece that has its fact."""
    rows = []
    for part in parts:
        mine = [question for question in questions if question["fact"] in part]
        if not mine:
            continue
        session.forget()
        session.use(presets[0])
        session.read(part)
        session.use(presets[1])
        for question in mine:
            answer = session.ask(question["question"], max_new_tokens=24)
            good = answered(answer.text, question["answers"])
            rows.append({"id": question["id"], "answer": answer.text, "ok": good})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="smollm2-135m")
    parser.add_argument("--lengths", default="500,1000,2000,4000,6000", help="tokens, commas")
    parser.add_argument("--ways", default=",".join(WAYS), help="commas")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, for every way")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    from esa_cli import models
    from esa_cli.qa import preset
    from esa_cli.qa.session import Session

    text = (EXAMPLES / "chronicle.md").read_text("utf-8")
    lines = (EXAMPLES / "questions.jsonl").read_text("utf-8").splitlines()
    questions = [json.loads(line) for line in lines]
    loaded = models.load(preset.load(arguments.preset).model)
    with Session(loaded.model, loaded.tokenizer, preset.load(arguments.preset)) as session:
        for length in map(int, arguments.lengths.split(",")):
            parts = list(pieces(text, length, loaded.tokenizer))
            for way in arguments.ways.split(","):
                made = [preset.load(arguments.preset, [*arguments.set, *one]) for one in WAYS[way]]
                started = time.perf_counter()
                rows = ask_pieces(session, (made[0], made[1]), parts, questions)
                row = {
                    "length": length,
                    "way": way,
                    "set": arguments.set,
                    "answered": sum(one["ok"] for one in rows),
                    "of": len(rows),
                    "s": round(time.perf_counter() - started, 1),
                    "results": rows,
                }
                print(f"{length} {way}: {row['answered']} of {row['of']}, {row['s']} s", flush=True)
                if arguments.out:
                    with Path(arguments.out).open("a", encoding="utf-8") as out:
                        out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
