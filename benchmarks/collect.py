"""Questions about the whole: how many of all places that fit are collected, and how many are wrong.

`collect_questions/` has one file a text: a header with the text's hash and its split (`dev` may be
tuned on, `test` is run when a round of work is done), then questions with the character offsets of
every sentence that fits (`places`), of those that may be counted or not (`either`), and the `words`
that a person would search for. They were made by searching each text for many words and reading
every hit. `chronicle.jsonl` has facts of one kind (`facts`), and sentences that look like them
(`near`), which are planted into generated chronicles. The other texts are not in the repository.

    python benchmarks/collect.py FOLDER_OF_TEXTS --split test --out rows.jsonl

A row is right when it overlaps a place that no row before it does; a second row of one place is
wrong, one of `either` does not count. Rows of `collect` are the quoted words. Those of the others
are whole passages, for which it is easier to be right; `its passages` are those that the quoted
words of `collect` stand in, for comparison. Compared are `esa find --all --min 2` with the words,
before the text is read, and with the question, by the finder's score alone; and the 16 passages
that `esa ask` would read again with `answer.passages=16`.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import append_line, load_lines

QUESTIONS = Path(__file__).parent / "collect_questions"
WORDS = 12_000
"""Of a generated chronicle."""
LEASTS = (-1.5, -1.0, -0.5, 0.0, 0.5)
WAYS = ("collect", "its passages", "finder", "words", "first 16")
Range = Sequence[int]


def planted(question: dict[str, Any], folder: Path) -> tuple[Path, list[list[int]]]:
    """A chronicle with the question's sentences in it, and the characters of those that fit."""
    from esa_cli.evaluation.tasks.chronicle_task import ChronicleGenerator, plant_facts

    sentences = [*question["facts"], *question["near"]]
    random.Random(question["seed"]).shuffle(sentences)
    facts = [
        {"fact": sentence, "depth": (number + 0.5) / len(sentences)}
        for number, sentence in enumerate(sentences)
    ]
    text = plant_facts(ChronicleGenerator(question["seed"]).write_text_without_facts(WORDS), facts)
    path = folder / f"{question['id']}.md"
    path.write_text(text, "utf-8")
    return path, [[text.index(one), text.index(one) + len(one)] for one in question["facts"]]


def asked(
    folder: Path, made: Path, split: str, only: str
) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Each text with its questions about the split."""
    for one in load_lines(QUESTIONS / "chronicle.jsonl"):
        if one["split"] == split and re.search(only, one["id"]):
            path, places = planted(one, made)
            yield path, [{**one, "places": places, "either": []}]
    for file in sorted(QUESTIONS.glob("*.jsonl")):
        head, *questions = load_lines(file)
        wanted = [one for one in questions if re.search(only, one["id"])]
        if head.get("split") != split or "file" not in head or not wanted:
            continue
        path = next(iter(sorted(folder.rglob(head["file"]))), None)
        if path is None:
            print(f"{head['name']}: {head['file']} is not in {folder}")
            continue
        yield path, [{**one, "sha256": head["sha256"]} for one in wanted]


def overlap(one: Range, other: Range) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def scored(rows: Sequence[Range], question: dict[str, Any]) -> dict[str, Any]:
    """Right and wrong rows, and places found."""
    found, right, wrong = set[int](), 0, 0
    for row in rows:
        hit = {n for n, place in enumerate(question["places"]) if overlap(place, row)}
        right += bool(hit - found)
        if hit:
            wrong += not hit - found
        else:
            wrong += not any(overlap(place, row) for place in question["either"])
        found |= hit
    total = len(question["places"])
    precision = right / (right + wrong) if right + wrong else 1.0
    recall = len(found) / total
    both = precision + recall
    return {
        "right": right, "wrong": wrong, "found": len(found), "of": total,
        "precision": round(precision, 4), "recall": round(recall, 4),
        "f1": round(2 * precision * recall / both, 4) if both else 0.0,
    }  # fmt: skip


def measured(
    esa: Any, book: Any, question: dict[str, Any], least: float | None, every_passage: bool
) -> dict[str, Any]:
    """One question by each way."""
    from esa_cli.qa.finding.passage_finder import PassageSearch, add_token_ranges

    def ranges(passages: Sequence[Any]) -> list[Range]:
        return [(one.start, one.end) for one in sorted(passages, key=lambda one: one.start)]

    how = {"every": every_passage, **({} if least is None else {"least": least})}
    started = time.perf_counter()
    places = esa.collect(question["question"], [book], **how)
    every = list(places)
    seconds = time.perf_counter() - started
    unread = add_token_ranges([type(book)(book.document, None, book.spans)])
    by_words = PassageSearch().search_passages(question["words"], unread, None)
    ways = {
        "collect": scored(ranges(every), question),
        "its passages": scored(sorted({one.passage for one in every}), question),
        "finder": scored(ranges(esa.find_passages(question["question"], [book], None)), question),
        "words": scored(ranges(by_words), question),
        "first 16": scored(ranges(esa.find_passages(question["question"], [book], 16)), question),
    }
    coverage = places.coverage
    return {
        "id": question["id"],
        **ways,
        "share_read": round(coverage.read_share, 4),
        "read": coverage.read,
        "s": round(seconds, 1),
        "rows": [
            (one.start, one.end, round(one.score, 3), round(one.log_odds, 3)) for one in every
        ],
    }


def line(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """Precision, recall and F1 of each way in percent, means over the questions."""
    cells = []
    for way in WAYS:
        means = [sum(one[way][key] for one in rows) / len(rows) for key in ("precision", "recall")]
        f1 = sum(one[way]["f1"] for one in rows) / len(rows)
        cells.append(f"{100 * means[0]:.0f} / {100 * means[1]:.0f} / {100 * f1:.0f}")
    share = 100 * sum(one["share_read"] for one in rows) / len(rows)
    seconds = sum(one["s"] for one in rows) / len(rows)
    return f"| {name} | " + " | ".join(cells) + f" | {share:.0f} % | {seconds:.0f} |"


HEADER = (
    "precision / recall / F1 in percent\n\n"
    f"| question | {' | '.join(WAYS)} | read | s |\n|" + "-|" * (len(WAYS) + 3)
)


def thresholds(rows: Sequence[dict[str, Any]], questions: dict[str, dict[str, Any]]) -> None:
    """What places with at least some log-odds of the reader would give, of the same run."""
    for least in LEASTS:
        ways = [
            scored(
                [(start, end) for start, end, _, odds in row["rows"] if odds >= least],
                questions[row["id"]],
            )
            for row in rows
        ]
        means = {
            key: sum(w[key] for w in ways) / len(ways) for key in ("precision", "recall", "f1")
        }
        print(
            f"log-odds from {least}: "
            + ", ".join(f"{key} {100 * one:.0f}" for key, one in means.items())
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the texts are")
    parser.add_argument("--split", choices=("dev", "test"), default="dev")
    parser.add_argument("--only", default="", help="only questions whose id matches")
    parser.add_argument("--least", type=float, help="another least sum of score and log-odds")
    parser.add_argument("--all", action="store_true", help="read all passages, as collect --all")
    parser.add_argument("--thresholds", action="store_true", help="print what others would give")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--library", type=Path, help="keeps what is read for the next run")
    parser.add_argument("--out", default="", help="append rows to this file of JSON lines")
    given = parser.parse_args()

    from esa_cli import Esa, Library

    library = Library(given.library) if given.library else None
    rows: list[dict[str, Any]] = []
    known: dict[str, dict[str, Any]] = {}
    print(HEADER)
    with tempfile.TemporaryDirectory() as made, Esa.load(given.preset, library=library) as esa:
        for path, questions in asked(given.folder, Path(made), given.split, given.only):
            book = esa.ingest(str(path))
            digest = hashlib.sha256(book.document.text.encode("utf-8")).hexdigest()
            for question in questions:
                assert question.get("sha256", digest) == digest, f"{path} is another edition"
                rows.append(measured(esa, book, question, given.least, given.all))
                known[question["id"]] = question
                append_line(given.out, rows[-1])
                print(line(question["id"], rows[-1:]), flush=True)
    if rows:
        print(line("mean", rows))
    if rows and given.thresholds:
        thresholds(rows, known)


if __name__ == "__main__":
    main()
