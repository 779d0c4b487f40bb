"""A library of many documents: seconds to index, list and search it, and its bytes on disk.

Documents are generated: words of a made-up vocabulary by Zipf's law, and in each document one
sentence in the middle that names a person and a thing. No model is needed. They are synchronised
as `esa ingest --words` does, and again unchanged; manifests of as many stored documents are listed;
questions for the sentences are searched over all documents. Found: the share of questions whose
document is among the 8 that `esa ask` would open. A token counts as three quarters of a word.

With --pairs the documents are real texts, cut into parts of 40,000 characters, and the questions
those of `training/pairs`: the share whose part is among the best 1, 4, 8 and 16, by kind.

    python benchmarks/library_scale.py
    python benchmarks/library_scale.py --documents 5000 --tokens 50M --out rows.jsonl
    python benchmarks/library_scale.py --pairs benchmarks/training/pairs TEXTS
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import append_line, load_lines, tokens

from esa_cli.qa.ingestion.library_texts import sync_folder
from esa_cli.storage.library import Library, LibraryEntry, document_files
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.system.text import digest_text

WORDS_A_TOKEN = 0.75
VOCABULARY = 60_000
OPENED = 8
"""The default of `answer.documents`."""
DEPTHS = (1, 4, OPENED, 16)
PART = 40_000
"""Characters of a part of a real text."""
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "or", "ist")]


def vocabulary(draw: random.Random) -> list[str]:
    """Distinct made-up words, the frequent ones short."""
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        length = 1 + len(words).bit_length() // 5 + draw.randrange(2)
        words["".join(draw.choices(SYLLABLES, k=length))] = None
    return list(words)


def fact(number: int, words: list[str], draw: random.Random) -> tuple[str, str]:
    """A sentence of document `number`, and the question for it.

    The name and the thing occur in other documents, too; two further words of the question occur in
    every fourth passage or so, as "year" and "time" do in English.
    """
    names = draw.sample(words[500:5000], 3)
    common = draw.sample(words[20:200], 2)
    name = " ".join(word.capitalize() for word in names[:2])
    sentence = f"In the year {1000 + number % 900} {name} bought the {names[2]} of the old mill."
    return sentence, f"When did {name} buy the {names[2]} and {common[0]} the {common[1]}?"


def documents(number: int, tokens: int, seed: int) -> Iterator[tuple[str, str]]:
    """(text, question) of each document."""
    draw = random.Random(seed)
    words = vocabulary(draw)
    weights = list(itertools.accumulate(1 / (at + 2.7) for at in range(VOCABULARY)))
    for at in range(number):
        length = int(draw.uniform(0.5, 1.5) * tokens * WORDS_A_TOKEN / number)
        drawn = draw.choices(words, cum_weights=weights, k=max(12, length))
        sentences = [
            " ".join(drawn[start : start + 14]).capitalize() + "." for start in range(0, length, 14)
        ]
        sentence, question = fact(at, words, draw)
        sentences.insert(len(sentences) // 2, sentence)
        paragraphs = (" ".join(sentences[p : p + 6]) for p in range(0, len(sentences), 6))
        yield "\n\n".join(paragraphs) + "\n", question


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    made = work()
    return round(time.perf_counter() - started, 3), made


def write_manifests(library: Library, number: int) -> None:
    """Manifests of stored documents that have no rows: listing needs no more."""
    paths = LibraryPaths(library.root)
    paths.create_library_folders()
    for at in range(number):
        text = f"document {at}"
        provenance = {"name": f"{at}.txt", "source": f"/texts/{at}.txt", "preset": "none"}
        entry = LibraryEntry(
            library.compute_key("benchmark", text), "benchmark", tokens=3,
            text_sha256=digest_text(text), characters=len(text), provenance=provenance,
            created=float(at),
        )  # fmt: skip
        document_files.write_manifest(paths, entry)


def list_command(library: Library) -> None:
    """`esa library list` in a process of its own."""
    command = [sys.executable, "-m", "esa_cli", "library", "list"]
    environment = {**os.environ, "ESA_LIBRARY": str(library.root)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


def measure(folder: Path, number: int, tokens: int, questions: int, seed: int) -> dict[str, Any]:
    texts, asked, size = folder / "texts", list[tuple[str, str]](), 0
    texts.mkdir()
    for at, (text, question) in enumerate(documents(number, tokens, seed)):
        (texts / f"{at:06d}.txt").write_text(text, "utf-8")
        asked.append((question, digest_text(text)))
        size += len(text.encode())
    time.sleep(2.1)  # files that changed a moment ago are not trusted
    library = Library(folder / "library")
    row: dict[str, Any] = {"documents": number, "tokens": tokens, "text_bytes": size}
    with library.open_catalogue() as catalogue:
        row["index_s"], _ = timed(lambda: sync_folder(catalogue, str(texts)))
        row["index_again_s"], again = timed(lambda: sync_folder(catalogue, str(texts)))
        assert again.changes.read == 0
    row["catalogue_bytes"] = library.catalogue_file_size
    chosen = random.Random(seed).sample(asked, min(questions, number))
    spent, found = [], 0
    for question, digest in chosen:
        with library.open_catalogue() as catalogue:
            seconds, ranked = timed(lambda: catalogue.texts.rank_texts(question))  # noqa: B023
        spent.append(seconds)
        found += digest in list(ranked)[:OPENED]
    row |= {"question_s": round(statistics.median(spent), 3), "slowest_question_s": max(spent)}
    row |= {"questions": len(chosen), "found": found}
    write_manifests(library, number)
    time.sleep(2.1)
    row["list_first_s"], _ = timed(library.entries)
    row["list_s"], entries = timed(library.entries)
    row["list_command_s"], _ = timed(lambda: list_command(library))
    row["lookup_s"], _ = timed(lambda: library.match_entries(f"{number // 2}.txt"))
    assert len(entries) == number
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    row["peak_memory_bytes"] = memory * (1 if sys.platform == "darwin" else 1024)
    return row


def real_questions(pairs: Path, texts: Path) -> tuple[list[str], list[tuple[str, str, int]]]:
    """Documents, and (kind, question, number of its document)."""
    parts, asked = list[str](), list[tuple[str, str, int]]()
    for path in sorted(pairs.glob("*.jsonl")):
        head, *rows = load_lines(path)
        text = next(texts.glob(f"{head['name']}.*")).read_text("utf-8")
        first = len(parts)
        parts += [text[start : start + PART] for start in range(0, len(text), PART)]
        asked += [
            (row["kind"], row["question"], first + sum(row["passage"]) // 2 // PART)
            for row in rows
            if row["answer"]
        ]
    return parts, asked


def measure_real(pairs: Path, texts: Path, questions: int, seed: int) -> dict[str, Any]:
    parts, asked = real_questions(pairs, texts)
    asked = random.Random(seed).sample(asked, min(questions, len(asked)))
    numbers = {digest_text(part): at for at, part in enumerate(parts)}
    ranks: dict[str, list[int]] = {}
    with Library(texts).open_catalogue(keep_on_disk=False) as catalogue:
        index = catalogue.texts
        for digest, at in numbers.items():
            index.add_text(parts[at], digest)
        for kind, question, wanted in asked:
            ranked = [numbers[digest] for digest in index.rank_texts(question)]
            rank = ranked.index(wanted) if wanted in ranked else len(parts)
            ranks.setdefault(kind, []).append(rank)
    row: dict[str, Any] = {"documents": len(parts), "characters": sum(map(len, parts))}
    for kind, found in sorted(ranks.items()):
        shares = {most: round(sum(at < most for at in found) / len(found), 3) for most in DEPTHS}
        row[kind] = {"questions": len(found), "found_among": shares}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--tokens", type=tokens, default=tokens("400k"), help="of all, as 50M")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where files are written; default: the system's")
    parser.add_argument("--out", default="")
    parser.add_argument("--pairs", nargs=2, type=Path, metavar=("PAIRS", "TEXTS"))
    given = parser.parse_args()
    if given.pairs:
        row = measure_real(*given.pairs, given.questions, given.seed)
        print(json.dumps(row, indent=2))
        append_line(given.out, row)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        row = measure(Path(folder), given.documents, given.tokens, given.questions, given.seed)
    print(json.dumps(row, indent=2))
    append_line(given.out, row)


if __name__ == "__main__":
    main()
