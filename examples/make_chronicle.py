"""Write the demo document: a long invented chronicle with known facts woven into it.

The text and its facts come from `esa_cli.evaluation.tasks.chronicle_task`. Same words and seed,
same two files.

    python examples/make_chronicle.py --words 27000 --seed 7 --out FILE --questions FILE
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from esa_cli.evaluation.tasks.chronicle_task import (
    DEFAULT_SEED,
    DEFAULT_WORDS,
    build_chronicle,
    load_chronicle_material,
)


def questions_file(text: str) -> str:
    """Returns the chronicle's questions as JSON lines, each with the depth of its fact."""
    lines = []
    for fact in load_chronicle_material()["facts"]:
        row = {key: fact[key] for key in ("id", "question", "answers", "fact")}
        row["depth"] = round(text.index(fact["fact"]) / len(text), 3)
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the demo chronicle.")
    parser.add_argument("--words", type=int, default=DEFAULT_WORDS)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--out", type=Path, help="text file (default: stdout)")
    parser.add_argument("--questions", type=Path, help="also write the questions to this file")
    args = parser.parse_args(argv)
    text = build_chronicle(args.words, args.seed)
    if args.out:
        args.out.write_bytes(text.encode())
    else:
        sys.stdout.write(text)
    if args.questions:
        args.questions.write_bytes(questions_file(text).encode())


if __name__ == "__main__":
    main()
