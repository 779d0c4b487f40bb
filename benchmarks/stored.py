"""Time of a question about a stored document, from the start of the process.

`esa ask --keep` ingests the document into a library of its own, if it is not there yet, and
answers. Each run then starts `esa ask` anew and measures the time to the first character of the
answer and to its end. Every answer must equal the first one. The first run is printed separately:
the file may not be in the page cache then.

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


def keep(document: str, question: str, environment: dict[str, str]) -> dict[str, Any]:
    """The `--json` output of ingesting the document and answering in one process."""
    command = [*ESA, "ask", document, question, "--keep", "--json"]
    out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return dict(json.loads(out))


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
    kept = keep(arguments.document, arguments.question, environment)
    first, *runs = [
        ask(arguments.document, arguments.question, environment) for _ in range(arguments.runs + 1)
    ]
    answers = {kept["answer"], first[2], *(answer for _, _, answer in runs)}
    assert len(answers) == 1, answers
    letters = [round(letter, 2) for letter, _, _ in runs]
    row = {
        "document": Path(arguments.document).name,
        "tokens": kept["tokens"]["document"],
        "read_now": kept["documents"][0]["read_s"] > 0,
        "read_s": kept["timing"]["ingest_s"],
        "first_run_s": round(first[0], 2),
        "first_letter_s": letters,
        "median_s": round(statistics.median(letters), 2),
        "end_s": [round(end, 2) for _, end, _ in runs],
        "answer": kept["answer"],
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
    }
    print(json.dumps(row, indent=2, ensure_ascii=False))
    if arguments.out:
        with open(arguments.out, "a", encoding="utf-8") as out:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
