"""The experiment behind the default preset: needles answered by setting and length.

Needles of distinct forms are planted at even depths of a haystack, which is prefilled once per
`reading` of the plan; then every question is asked with each of its `asks`. Rows are JSON lines;
the table is Markdown on standard output.

    python benchmarks/recipe.py --lengths 4k,12k,24k,48k --plan benchmarks/recipe.yaml
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from common import NEEDLES, ROOT, answered, append_line, load_lines, token_counter, tokens


def paragraphs(haystack: str) -> list[str]:
    if haystack == "chronicle":
        from esa_cli.evaluation.tasks.chronicle_task import build_chronicle

        text = build_chronicle(word_count=60000, seed=11)
    else:
        text = Path(haystack).read_text(encoding="utf-8")
    return [" ".join(p.split()) for p in text.split("\n\n") if p.strip()]


def planted(parts: Sequence[str], needles: Sequence[dict[str, Any]], size: Any, n: int) -> str:
    """The first paragraphs of about n tokens, each needle in the middle of one of them."""
    kept, total = [], 0
    for part in parts:
        kept.append(part)
        total += size(part)
        if total >= n:
            break
    places = {int((i + 0.5) / len(needles) * len(kept)): i for i in range(len(needles))}
    for place, i in places.items():
        sentences = kept[place].split(". ")
        sentences.insert(len(sentences) // 2, needles[i]["needle"].rstrip("."))
        kept[place] = ". ".join(sentences)
    return "\n\n".join(kept)


def excerpt(text: str, needle: str, size: Any, n: int) -> str:
    """About n tokens of the text around the needle, to measure the model's ceiling."""
    parts = text.split("\n\n")
    first = last = next(i for i, p in enumerate(parts) if needle.rstrip(".") in p)
    while size("\n\n".join(parts[first : last + 1])) < n and (first or last + 1 < len(parts)):
        first, last = max(0, first - 1), min(len(parts) - 1, last + 1)
    return "\n\n".join(parts[first : last + 1])


def run_questions(
    session: Any, needles: Sequence[dict[str, Any]], most: int
) -> list[dict[str, Any]]:
    out = []
    for needle in needles:
        answer = session.ask(needle["question"], max_new_tokens=most)
        good = answered(answer.text, needle["answers"])
        out.append({"question": needle["question"], "answer": answer.text, "ok": good})
    return out


def rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from esa_cli import models
    from esa_cli.qa.answering.session import Session
    from esa_cli.qa.presets.preset import load_preset

    plan = yaml.safe_load(Path(arguments.plan).read_text("utf-8"))
    needles = load_lines(NEEDLES)[:16]
    first = load_preset(arguments.preset)
    loaded = models.load(arguments.model or first.model)

    size = token_counter(loaded.tokenizer)

    parts = paragraphs(arguments.haystack)
    for reading in plan["readings"]:
        asks = [a for a in reading["asks"] if re.search(arguments.only, a["name"])]
        for n in [tokens(t) for t in arguments.lengths.split(",")] if asks else []:
            text = planted(parts, needles, size, n)
            base = list(reading.get("set", []))
            chosen = load_preset(arguments.preset, base)
            with Session(loaded.model, loaded.tokenizer, chosen) as session:
                started = time.perf_counter()
                if not reading.get("excerpt"):
                    session.read(text)
                rate = session.document_tokens / (time.perf_counter() - started)
                for ask in asks:
                    over = load_preset(arguments.preset, base + list(ask.get("set", [])))
                    session.use_preset(over)
                    started = time.perf_counter()
                    if reading.get("excerpt"):
                        results = []
                        for needle in needles:
                            session.read(excerpt(text, needle["needle"], size, reading["excerpt"]))
                            results += run_questions(session, [needle], arguments.tokens)
                    else:
                        results = run_questions(session, needles, arguments.tokens)
                    yield {
                        "haystack": Path(arguments.haystack).stem,
                        "length": n,
                        "reading": reading["name"],
                        "asking": ask["name"],
                        "set": base + list(ask.get("set", [])),
                        "answered": sum(r["ok"] for r in results),
                        "of": len(results),
                        "read_tokens_per_s": round(rate),
                        "s_per_question": round((time.perf_counter() - started) / len(results), 2),
                        "results": results,
                    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--haystack", default="chronicle", help="`chronicle` or a text file")
    parser.add_argument("--lengths", default="12k,24k")
    parser.add_argument("--plan", default=str(ROOT / "benchmarks" / "recipe.yaml"))
    parser.add_argument("--only", default="", help="a pattern that asking settings must match")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--model", default="")
    parser.add_argument("--tokens", type=int, default=20, help="longest answer")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    print("| haystack | length | reading | asking | answered | s/question |")
    print("|---|---|---|---|---|---|")
    for row in rows(arguments):
        print(
            f"| {row['haystack']} | {row['length']} | {row['reading']} | {row['asking']} "
            f"| {row['answered']} of {row['of']} | {row['s_per_question']} |",
            flush=True,
        )
        append_line(arguments.out, row)


if __name__ == "__main__":
    main()
