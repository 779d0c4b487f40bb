"""Questions over a library of documents that the model has read: seconds of each in a warm process.

    python benchmarks/library_asking.py --documents 500 --tokens 4000 --out rows.jsonl

The documents are generated chronicles, each with another seed; every so many have a fact more, for
which there is a question. All are read into a library of their own. Each question searches the
words of all documents, opens the best of them, finds and reads passages: what `esa chat --library`,
`esa serve` and `esa mcp` do for a question after the first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from common import answered, append_line, chronicle_questions, token_counter

from esa_cli import Esa, Library
from esa_cli.evaluation.tasks.task_sample import Haystack
from esa_cli.system.machine import measure_peak_memory


def write_documents(
    folder: Path, esa: Esa, number: int, tokens: int, facts: list[dict[str, Any]]
) -> None:
    """Text files; each of `facts` in the middle of one."""
    count = token_counter(esa.loaded.tokenizer)
    every = max(1, number // len(facts))
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(number):
        path = folder / f"{at:05d}.txt"
        if not path.exists():
            parts = Haystack.from_chronicle(1000 + at).take_first_paragraphs(count, tokens)
            if at % every == 0 and at // every < len(facts):
                parts.insert(len(parts) // 2, facts[at // every]["fact"])
            path.write_text("\n\n".join(parts), "utf-8")


def ask(esa: Esa, facts: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of all questions; the first one loads what the others find there."""
    seconds, right = list[float](), 0
    for fact in facts:
        started = time.perf_counter()
        reply = esa.ask(fact["question"])
        seconds.append(time.perf_counter() - started)
        right += answered(reply.text, fact["answers"])
    return {
        "questions": len(facts), "right": right, "first_s": round(seconds[0], 2),
        "median_s": round(statistics.median(seconds[1:]), 2),
        "slowest_s": round(max(seconds[1:]), 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=4000, help="of each document")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--folder", help="texts and library stay here; else they are removed")
    parser.add_argument("--out", default="", help="file of JSON lines")
    given = parser.parse_args()
    facts = chronicle_questions()[: given.questions]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or temporary)
        library = Library(folder / "library")
        with Esa.load(given.preset, library=library) as esa:
            write_documents(folder / "texts", esa, given.documents, given.tokens, facts)
            started, read = time.perf_counter(), 0
            for path in sorted((folder / "texts").iterdir()):
                read += esa.ingest(str(path)).tokens
            row = {
                "documents": given.documents, "tokens": read,
                "read_s": round(time.perf_counter() - started, 1),
                **ask(esa, facts),
                "memory_mib": measure_peak_memory() >> 20,
            }  # fmt: skip
    append_line(given.out, row)
    print(row)


if __name__ == "__main__":
    main()
