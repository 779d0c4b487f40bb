"""The experiment behind the default preset: which settings find what, at which length.

Needles of distinct forms are planted at even depths of a haystack, which is read once per reading
setting; then every question is asked under every asking setting. Rows are JSON lines; the table is
Markdown on standard output.

    python benchmarks/recipe.py --lengths 4k,12k,24k,48k --plan benchmarks/recipe.yaml
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent


def tokens(text: str) -> int:
    """ "24k" -> 24000."""
    return int(float(text[:-1]) * 1000) if text.lower().endswith("k") else int(text)


def load_needles(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def answered(text: str, answers: Sequence[str]) -> bool:
    """Whether one of the accepted answers stands in the text as whole words."""
    return any(re.search(rf"(?<!\w){re.escape(a)}(?!\w)", text, re.IGNORECASE) for a in answers)


def paragraphs(haystack: str) -> list[str]:
    if haystack == "chronicle":
        from esa_cli.evaluation.tasks.chronicle_task import build

        text = build(words=60000, seed=11)
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
    """About n tokens of the text around the needle: the model's own ceiling is measured on it."""
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
    from esa_cli.qa import preset
    from esa_cli.qa.session import Session

    plan = yaml.safe_load(Path(arguments.plan).read_text("utf-8"))
    needles = load_needles(ROOT / "esa_cli" / "evaluation" / "tasks" / "needles.jsonl")[:16]
    first = preset.load(arguments.preset)
    loaded = models.load(arguments.model or first.model)

    def size(text: str) -> int:
        return len(loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    parts = paragraphs(arguments.haystack)
    for reading in plan["readings"]:
        asks = [a for a in reading["asks"] if re.search(arguments.only, a["name"])]
        for n in [tokens(t) for t in arguments.lengths.split(",")] if asks else []:
            text = planted(parts, needles, size, n)
            base = list(reading.get("set", []))
            chosen = preset.load(arguments.preset, base)
            with Session(loaded.model, loaded.tokenizer, chosen) as session:
                started = time.perf_counter()
                if not reading.get("excerpt"):
                    session.read(text)
                rate = session.document_tokens / (time.perf_counter() - started)
                for ask in asks:
                    over = preset.load(arguments.preset, base + list(ask.get("set", [])))
                    session.use(over)
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
    parser.add_argument("--preset", default="smollm2-135m")
    parser.add_argument("--model", default="")
    parser.add_argument("--tokens", type=int, default=20, help="longest answer")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    out = open(arguments.out, "a", encoding="utf-8") if arguments.out else None  # noqa: SIM115
    print("| haystack | length | reading | asking | answered | s/question |")
    print("|---|---|---|---|---|---|")
    for row in rows(arguments):
        print(
            f"| {row['haystack']} | {row['length']} | {row['reading']} | {row['asking']} "
            f"| {row['answered']} of {row['of']} | {row['s_per_question']} |",
            flush=True,
        )
        if out:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
