"""Prints the tables of docs/results.md and NOTES.md from the rows in benchmarks/results/.

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


def short() -> str:
    """Questions answered about texts that fit in the window, by how they are read and asked."""
    found = {(row["length"], row["way"]): row for row in rows("short.jsonl")}
    ways = list(dict.fromkeys(way for _, way in found))
    body = []
    for length in dict.fromkeys(length for length, _ in found):
        cells = [found.get((length, way)) for way in ways]
        told = [f"{row['answered']}/{row['of']}" if row else "" for row in cells]
        body.append([f"{length:,}", *told])
    return table(["tokens", *ways], body)


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
    """Score and recall by test, method and length.

    Recall is the mean over layers and heads; where heads select each for itself, the best heads'
    mean over layers stands behind it, in brackets.
    """
    return "\n\n".join(selftest(path) for path in sorted(RESULTS.glob("selftest-*.jsonl")))


def selftest(path: Path) -> str:
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    every = [row for row in rows(path.name) if "test" in row]
    out = []
    for test in dict.fromkeys(row["test"] for row in every):
        found.clear()
        for row in every:
            if row["test"] == test and not row["dense"]:
                found[row["method"], row["length"]].append(row)
        lengths = sorted({length for _, length in found})
        methods = dict.fromkeys(method for method, _ in found)
        body = [
            [method, *(_cell(found.get((method, n), [])) for n in lengths)] for method in methods
        ]
        body.sort(key=lambda cells: (-_best(found, cells[0], lengths), cells[0]))
        dense = [row["score"] for row in every if row["test"] == test and row["dense"]]
        name = f"{test} ({path.stem})" + (f", dense {_score(dense)}" if dense else "")
        out.append(table([name, *(f"{n:,}" for n in lengths)], body))
    return "\n\n".join(out)


def _best(found: dict[tuple[str, int], list[dict[str, Any]]], method: str, ns: list[int]) -> float:
    """Score, then recall, over all lengths that the method was asked at."""
    some = [row for n in ns for row in found.get((method, n), [])]
    recall = [row["recall"]["mean"] for row in some if row["recall"]]
    score = sum(row["score"] for row in some) / len(some)
    return score + sum(recall) / max(1, len(recall)) / 1000


def _score(scores: list[float]) -> str:
    total = sum(scores)
    if all(score in (0, 1) for score in scores):
        return f"{total:.0f}/{len(scores)}"
    return f"{total / len(scores):.0%} of {len(scores)}"


def _cell(some: list[dict[str, Any]]) -> str:
    if not some:
        return ""
    recalls = [row["recall"] for row in some if row["recall"]]
    text = _score([row["score"] for row in some])
    if recalls:
        text += f", {sum(recall['mean'] for recall in recalls) / len(recalls):.0%}"
        best = [recall.get("best_head") for recall in recalls]
        if any(best):
            each = [
                sum(one or kept["layers"]) / len(kept["layers"])
                for one, kept in zip(best, recalls, strict=True)
            ]
            text += f" ({sum(each) / len(each):.0%})"
    return text


def ablations() -> str:
    head = ["part", "variation", "recall", "layers with half of it", "selected", "s/question"]
    body = [
        [
            row["group"],
            row["variation"],
            f"{row['recall']:.1%}",
            str(row["layers_with_half"]),
            f"{row['selected']}/{row['of']}",
            str(row["s_per_question"]),
        ]
        for row in rows("ablations.jsonl")
    ]
    return table(head, body)


def calibrate() -> str:
    """Recall at each k, the mean over layers, of every file of `esa calibrate --report FILE.json`.

    The committed files also have means of keys in 8 bits, which the command measured once.
    """
    body = []
    for path in sorted(RESULTS.glob("calibrate*.json")):
        found = json.loads(path.read_text("utf-8"))
        for method, result in found["methods"].items():
            mean = result["mean"]
            if isinstance(mean, list):
                mean = {"float": mean, "int8 by token": [float("nan")]}
            shares = [*mean["float"], mean["int8 by token"][-1]]
            body.append([path.stem, method, *(f"{100 * share:.1f}%" for share in shares)])
    return table(["run", "compressor", "@128", "@512", "@1,024", "@1,024 in 8 bits"], body)


def many_documents() -> str:
    body = [
        [
            f"{row['documents']}, {row.get('rows') or 'in memory'}",
            f"{row['answered']}/{row['of']}",
            str(row["quoted_when_answered"]),
            str(row["s_per_question"]),
        ]
        for row in rows("many-documents.jsonl")
    ]
    return table(["documents", "answered", "of these, the fact quoted", "s/question"], body)


def documents() -> str:
    keys = ("answered", "first_page", "page_in_three", "quoted_first", "quoted_in_three")
    body = [
        [row["document"], f"{row['tokens']:,}", *(f"{row[key]}/{row['of']}" for key in keys)]
        for row in rows("documents.jsonl")
    ]
    head = ["document", "tokens", "answered", "right page first", "among three", "fact first"]
    return table([*head, "fact among three"], body)


def stored() -> str:
    keys = ("tokens", "read_s", "first_run_s", "first_letter_s", "end_s")
    body = [[str(row.get(key, "")) for key in keys] for row in rows("stored.jsonl")]
    return table(
        ["tokens", "read, s", "first run, s", "to the first letter, s", "to the end, s"], body
    )


def library_scale() -> str:
    """Generated documents, sizes in MB."""
    kept = [row for row in rows("library-scale.jsonl") if "tokens" in row]
    seconds = (
        "index_s",
        "index_again_s",
        "question_s",
        "slowest_question_s",
        "list_command_s",
        "lookup_s",
    )
    body = [
        [
            f"{row['documents']:,}",
            f"{row['tokens']:,}",
            *(f"{row[key] / 1e6:,.1f}" for key in ("text_bytes", "catalogue_bytes")),
            *(str(row[key]) for key in seconds),
            f"{row['found']}/{row['questions']}",
        ]
        for row in kept
    ]
    head = ["documents", "tokens", "text, MB", "catalogue, MB", "index, s", "unchanged, s"]
    return table([*head, "question, s", "slowest", "list, s", "lookup, s", "among 8"], body)


def library_questions() -> str:
    """Questions of real texts whose part is among the best."""
    body = []
    for row in rows("library-scale.jsonl"):
        for kind in ("plain", "reworded"):
            if kind in row:
                shares = [f"{share:.1%}" for share in row[kind]["found_among"].values()]
                body.append([f"{row['documents']:,}", kind, str(row[kind]["questions"]), *shares])
    return table(["documents", "kind", "questions", "1", "4", "8", "16"], body)


def main() -> None:
    for part in (
        recipe,
        recipe_before,
        sherlock,
        questions,
        questions_before,
        short,
        collapse,
        prefill,
        ablations,
        calibrate,
        many_documents,
        documents,
        stored,
        library_scale,
        library_questions,
        selftests,
    ):
        print(f"{part.__name__}\n\n{part()}\n")


if __name__ == "__main__":
    main()
