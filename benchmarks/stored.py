"""How long a question about a stored book takes, from starting the process.

The document is read into a library of its own, if it is not there yet, and asked; then each run
starts `esa ask` anew and takes the time to the first letter of the answer and to the end. Every
answer must be the one given right after reading. The file is then warm in the page cache.

    python benchmarks/stored.py book.txt "Who is Ahab?" --library /data/bench-library --runs 4
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ESA = [sys.executable, "-m", "esa_cli"]


def ingest(document: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [*ESA, "ingest", document, "--json"]
    out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    (found,) = json.loads(out)["documents"]
    return dict(found)


def ask(document: str, question: str, environment: dict[str, str]) -> tuple[float, float, str]:
    """Seconds to the first letter and to the end of the process, and the answer."""
    started = time.perf_counter()
    command = [*ESA, "ask", document, question, "--quiet"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        letter = process.stdout.read(1)
        first = time.perf_counter() - started
        answer = letter + process.stdout.read()
    if process.returncode:
        raise SystemExit(process.returncode)
    return first, time.perf_counter() - started, answer.decode().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("document")
    parser.add_argument("question")
    parser.add_argument("--library", required=True, help="a folder for the stored book")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    environment = {**os.environ, "ESA_LIBRARY": arguments.library}
    book = ingest(arguments.document, environment)
    runs = [
        ask(arguments.document, arguments.question, environment) for _ in range(arguments.runs + 1)
    ]
    answers = {answer for _, _, answer in runs}
    assert len(answers) == 1, answers
    firsts = [round(first, 2) for first, _, _ in runs[1:]]
    row = {
        "document": Path(arguments.document).name,
        "tokens": book["tokens"],
        "bytes": book["bytes"],
        "read_s": book["read_s"],
        "first_letter_s": firsts,
        "median_s": round(statistics.median(firsts), 2),
        "end_s": [round(end, 2) for _, end, _ in runs[1:]],
        "answer": runs[0][2],
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
    }
    print(json.dumps(row, indent=2, ensure_ascii=False))
    if arguments.out:
        with open(arguments.out, "a", encoding="utf-8") as out:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
