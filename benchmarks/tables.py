"""Prints the tables of docs/results.md from the committed rows in benchmarks/results/.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def rows(name: str) -> list[dict[str, Any]]:
    path = RESULTS / name
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.strip()]


def table(head: list[str], body: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, *body]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def recipe(name: str = "recipe.jsonl") -> str:
    """Needles answered, by reading and asking setting, and length."""
    found: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for row in rows(name):
        found[row["reading"], row["asking"]][row["length"]] = f"{row['answered']}/{row['of']}"
    lengths = sorted({length for cells in found.values() for length in cells})
    body = [[*key, *(cells.get(n, "-") for n in lengths)] for key, cells in found.items()]
    return table(["reading", "asking", *(f"{n:,}" for n in lengths)], body)


def sherlock() -> str:
    return recipe("recipe-sherlock.jsonl")


def recipe_before() -> str:
    return recipe("recipe-before.jsonl")


def questions_before() -> str:
    return questions("questions-before.jsonl")


def questions(name: str = "questions.jsonl") -> str:
    """The chronicle's questions; retained is the share of the excerpt's score, measured once."""
    kept, first = rows(name), rows("questions-before.jsonl")
    ceiling = next((row["answered"] for row in first if row["column"] == "excerpt"), 0)
    body = []
    for row in kept:
        retained = f"{row['answered'] / ceiling:.0%}" if ceiling else "-"
        score = f"{row['answered']}/{row['of']}"
        body.append([row["column"], score, retained, f"{row['s_per_question']}"])
    return table(["over", "answered", "retained", "s/question"], body)


def collapse() -> str:
    """Layers that select at least half of the needle's tokens, and the mean over layers."""
    body = []
    for row in rows("collapse.jsonl"):
        shares = {int(layer): share for layer, share in row["share_by_layer"].items()}
        most = [str(layer) for layer, share in shares.items() if share >= 0.5]
        mean = sum(shares.values()) / len(shares)
        layers = ", ".join(most) or "none"
        body.append([f"{row['length']:,}", row["selection"], f"{mean:.0%}", layers])
    return table(["tokens", "selection", "mean share", "layers with half or more"], body)


def prefill() -> str:
    body = [
        [
            f"{row['tokens']:,}",
            f"{row['dense_tokens_per_s']:.0f}",
            f"{row['esa_tokens_per_s']:.0f}",
            f"{row['ratio']}",
        ]
        for row in rows("prefill.jsonl")
    ]
    return table(["tokens", "dense tokens/s", "esa tokens/s", "ratio"], body)


def selftests() -> str:
    """Score, in brackets the share retained, by test, method and length."""
    from esa_cli.journal import read_lines
    from esa_cli.report.summary import summarise

    out = []
    for path in sorted(RESULTS.glob("selftest-*.jsonl")):
        summary = summarise([row for row in read_lines(path) if "test" in row])
        for test in summary.tests:
            lengths = summary.lengths(test)
            body = []
            for method in summary.methods(test):
                cells = [summary.cell(test, method, length) for length in lengths]
                shown = [
                    "-"
                    if cell is None
                    else f"{cell.mean:.0%} of {cell.n}"
                    + (f" ({cell.retained:.0%})" if cell.retained is not None else "")
                    for cell in cells
                ]
                body.append([method, *shown])
            ceiling = summary.ceiling(test)
            name = f"{test}, dense {ceiling.mean:.0%} of {ceiling.n}" if ceiling else test
            out.append(table([name, *(f"{length:,}" for length in lengths)], body))
    return "\n\n".join(out)


def main() -> None:
    for part in (
        recipe,
        recipe_before,
        sherlock,
        questions,
        questions_before,
        collapse,
        prefill,
        selftests,
    ):
        print(f"{part.__name__}\n\n{part()}\n")


if __name__ == "__main__":
    main()
