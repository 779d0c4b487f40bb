"""Time and memory of a question about a stored text: in a new process, and in one that has asked.

    python benchmarks/asking_speed.py --lengths 30k,150k,1M --out benchmarks/results/asking.jsonl

The text is the generated chronicle with a fact for each question. It is read into a library of its
own first. `cold` starts `esa ask` for each question; `warm` is one process that loads the model,
answers one question that is not counted, and then the others. Each figure is the median over the
questions: seconds to the first letter and to the end (of the process, where it is cold), processor
seconds (user and system), and the most memory that the process ever had.

`--random-keys` stores random reduced keys in place of reading the text, which takes minutes for a
million tokens: as much is computed for a question, but other passages are found.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from common import ROOT, append_line, chronicle_questions, token_counter, tokens

from esa_cli.qa.presets.preset import DEFAULT
from esa_cli.system.machine import measure_peak_memory


class Asked(NamedTuple):
    """Seconds of one question, and bytes of its process."""

    first: float
    end: float
    processor: float
    memory: int


def make_text(path: Path, length: int, facts: list[str], preset: str) -> None:
    """Writes a chronicle of about `length` tokens with the facts spread over it."""
    from esa_cli import models
    from esa_cli.evaluation.tasks.task_sample import Haystack
    from esa_cli.models.tokenization.tokenizer import load_tokenizer
    from esa_cli.qa.presets.preset import load_preset

    tokenizer = load_tokenizer(models.fetch_model_folder(load_preset(preset).model))
    parts = Haystack.from_chronicle(0).take_first_paragraphs(token_counter(tokenizer), length)
    for number, fact in enumerate(facts):
        parts.insert(round((number + 0.5) / len(facts) * len(parts)), fact)
    path.write_text("\n\n".join(parts), "utf-8")


def read(path: Path, preset: str, random_keys: bool) -> int:
    """Puts the text into the library; its tokens."""
    import torch

    from esa_cli import Esa, Library

    with Esa.load(preset, library=Library()) as esa:
        if random_keys:
            assert esa.documents.encoder is not None, "the preset must have a finder"
            generator, dim = torch.Generator().manual_seed(1), esa.documents.encoder.dim

            def encode(ids: Any, first: int, last: int) -> Any:
                keys = torch.randn(last - first, dim, generator=generator)
                return torch.nn.functional.normalize(keys, dim=1)

            esa.documents.encoder.encode_document = encode  # type: ignore[method-assign]
        return esa.ingest(str(path)).tokens


def cold(path: Path, question: str, preset: str) -> Asked:
    """Asks in a process of its own."""
    command = [sys.executable, "-m", "esa_cli", "ask", str(path), question, "--quiet"]
    started = time.perf_counter()
    with subprocess.Popen([*command, "--preset", preset], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1), "there must be an answer"
        first = time.perf_counter() - started
        process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, process.returncode
    unit = 1 if sys.platform == "darwin" else 1024
    end = time.perf_counter() - started
    return Asked(first, end, used.ru_utime + used.ru_stime, used.ru_maxrss * unit)


def warm(path: Path, questions: list[str], preset: str) -> list[Asked]:
    """Asks all questions but the first in this process, after the first."""
    from esa_cli import Esa, Library

    out = []
    with Esa.load(preset, library=Library()) as esa:
        book = esa.ingest(str(path))
        for question in questions:
            seen: list[float] = []
            used, started = time.process_time(), time.perf_counter()
            esa.ask(question, [book], on_text=lambda _, s=seen: s.append(time.perf_counter()))  # type: ignore[misc]
            end = time.perf_counter() - started
            out.append(
                Asked(seen[0] - started, end, time.process_time() - used, measure_peak_memory())
            )
    return out[1:]


def summary(length: int, start: str, asked: list[Asked]) -> dict[str, Any]:
    row: dict[str, Any] = {"tokens": length, "start": start, "questions": len(asked)}
    for name in ("first", "end", "processor"):
        values = [round(getattr(one, name), 2) for one in asked]
        row |= {f"{name}_s": round(statistics.median(values), 2), f"{name}_s_each": values}
    row["memory_mib"] = max(one.memory for one in asked) >> 20
    return row


def print_table(rows: list[dict[str, Any]]) -> None:
    print("| tokens | process | first letter | end | processor | memory |")
    print("|-:|-|-:|-:|-:|-:|")
    for row in rows:
        cells = (
            f"| {row['tokens']:,} | {row['start']} | {row['first_s']:.2f} s | {row['end_s']:.2f} s"
        )
        print(f"{cells} | {row['processor_s']:.2f} s | {row['memory_mib']:,} MiB |", flush=True)


def in_own_process(work: str, *arguments: str) -> Any:
    """The JSON that this file prints with `--part`: no process inherits another's memory."""
    command = [sys.executable, __file__, "--part", work, *arguments]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def part(arguments: argparse.Namespace) -> Any:
    path, asked = Path(arguments.file), json.loads(arguments.asked)
    if arguments.part == "text":
        return make_text(path, int(arguments.lengths), asked, arguments.preset)
    if arguments.part == "read":
        return read(path, arguments.preset, arguments.random_keys)
    return warm(path, asked, arguments.preset)


def measure(length: int, folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one text."""
    chosen = chronicle_questions()[: arguments.runs + 1]
    questions = json.dumps([one["question"] for one in chosen])
    path = folder / f"chronicle-{length}.txt"
    given = ["--preset", arguments.preset, "--file", str(path), "--lengths", str(length)]
    given += ["--random-keys"] if arguments.random_keys else []
    if not path.exists():
        in_own_process("text", *given, "--asked", json.dumps([one["fact"] for one in chosen]))
    have = in_own_process("read", *given)
    runs = [cold(path, one["question"], arguments.preset) for one in chosen]
    again = in_own_process("warm", *given, "--asked", questions)
    rows = [
        summary(have, "cold", runs[1:]),  # the first one fills the page cache
        summary(have, "warm", [Asked(*one) for one in again]),
    ]
    return [row | {"random_keys": arguments.random_keys} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", default="30k", help="tokens, as 30k,150k,1M")
    parser.add_argument("--runs", type=int, default=5, help="questions that are counted")
    parser.add_argument("--preset", default=DEFAULT)
    parser.add_argument("--random-keys", action="store_true", help="do not read the text")
    parser.add_argument("--folder", help="texts and library stay here; else they are removed")
    parser.add_argument("--out", default="", help="file of JSON lines")
    for name in ("--part", "--file"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--asked", default="[]", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(part(arguments)))
        return
    # An installed package's modules are compiled; the first process compiles those of a checkout.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["ESA_LIBRARY"] = str(folder / "library")
        rows = []
        for text in arguments.lengths.split(","):
            rows += measure(tokens(text), folder, arguments)
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    for row in rows:
        append_line(arguments.out, row | {"threads": threads})
    print_table(rows)


if __name__ == "__main__":
    main()
