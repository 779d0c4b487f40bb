"""Texts that fit in the window: full attention against selection.

The chronicle is cut at paragraphs into pieces of `--lengths` tokens; each of its questions is asked
about the piece with the fact. Four ways, with the same model, prompt and questions:
    preset    as it is
    plain     full attention in prefill and answer (`window.dense` above every length)
    selected  prefill with local attention, answer by selection, as beyond `window.dense`
    mixed     prefill with full attention, answer by selection

    python benchmarks/short.py --out benchmarks/results/short.jsonl
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from common import answered, append_line, chronicle, chronicle_questions

PLAIN = ["window.dense=7680"]
NARROW = ["window.dense=288"]
"""Less than any piece, so that the preset selects."""
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
        session.empty_cache()
        session.use_preset(presets[0])
        session.read(part)
        session.use_preset(presets[1])
        for question in mine:
            answer = session.ask(question["question"], max_new_tokens=24)
            good = answered(answer.text, question["answers"])
            rows.append({"id": question["id"], "answer": answer.text, "ok": good})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--lengths", default="500,1000,2000,4000,6000", help="tokens, commas")
    parser.add_argument("--ways", default=",".join(WAYS), help="commas")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, for every way")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    from esa_cli import models
    from esa_cli.qa.answering.session import Session
    from esa_cli.qa.presets.preset import load_preset

    text, questions = chronicle(), chronicle_questions()
    loaded = models.load(load_preset(arguments.preset).model)
    with Session(loaded.model, loaded.tokenizer, load_preset(arguments.preset)) as session:
        for length in map(int, arguments.lengths.split(",")):
            parts = list(pieces(text, length, loaded.tokenizer))
            for way in arguments.ways.split(","):
                made = [load_preset(arguments.preset, [*arguments.set, *one]) for one in WAYS[way]]
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
                append_line(arguments.out, row)


if __name__ == "__main__":
    main()
