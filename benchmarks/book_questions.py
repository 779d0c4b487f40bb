"""Questions people ask about real books, manuals, letters and reports, written by reading them.

`book_questions/` has one file a text: a header with the text's hash and its split (`dev` may be
tuned on, `test` is run when a round of work is done), then questions with character offsets of the
answer and of the passage that tells it. The texts are not in the repository; the header says where
they come from. Only those of the third split, seven `papers` of an office, a school, a harbour and
the like in four languages, which may be tuned on too, are in `book_questions/papers`. Questions
are `plain` (in the words of the text), `reworded` (in none of them), `remembered` (as somebody asks
who read the text once), `typed` (as into a search box), `natural` (as people ask of their own
documents: yes or no, why, what happens if) or `absent`.

    python benchmarks/book_questions.py FOLDER_OF_TEXTS --split dev --out rows.jsonl

A passage counts as found when it overlaps the labelled one by half of the shorter of the two. An
answer counts when it equals an accepted one after normalising (lower case, no punctuation, no
articles); F1 is over words. A question of kind `absent` is noticed when evidence says that the text
may not answer it; a false alarm is that of a question that the text does answer.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import append_line, load_lines, split_bare_words

from esa_cli.evaluation.metrics import compute_word_bag_f1

QUESTIONS = Path(__file__).with_suffix("")
DEPTHS = (1, 3, 8)


def get_text_name(name: str) -> str:
    """The name of the text that a set of questions is about."""
    return re.sub("-(natural|remembered|typed)$", "", name)


def overlaps(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two ranges share at least half of the shorter one."""
    shared = min(one[1], other[1]) - max(one[0], other[0])
    return 2 * shared >= min(one[1] - one[0], other[1] - other[0])


def rank(passages: Sequence[Sequence[int]], right: Sequence[int]) -> int | None:
    """The place of the first passage that is right, from 1."""
    return next((n for n, one in enumerate(passages, 1) if overlaps(one, right)), None)


def texts(folder: Path, split: str, only: str) -> list[tuple[dict[str, Any], list[Any], Any]]:
    """Header, questions and document of each set whose text is in the folder."""
    from esa_cli import read_document

    found = []
    for path in sorted(QUESTIONS.glob("*.jsonl")):
        head, *questions = load_lines(path)
        if head["split"] != split or not re.search(only, head["name"]):
            continue
        file = next(iter(sorted(folder.rglob(head["file"]))), None)
        if file is None:
            print(f"{head['name']}: {head['file']} is not in {folder}")
            continue
        document = read_document(str(file))
        digest = hashlib.sha256(document.text.encode("utf-8")).hexdigest()
        assert digest == head["sha256"], f"{file} is another edition than {head['source']}"
        found.append((head, questions, document))
    return found


def row(esa: Any, book: Any, question: dict[str, Any], most: int) -> dict[str, Any]:
    """Asks one question and compares answer and passages with the labels."""
    text, started = book.document.text, time.perf_counter()
    reply = esa.ask(question["question"], [book], max_new_tokens=most, evidence=max(DEPTHS))
    spent = time.perf_counter() - started
    passages = [(one.start, one.end) for one in reply.evidence]
    accepted = list(question["also"])
    if question["answer"]:
        accepted.append(text[slice(*question["answer"])])
    words, right = split_bare_words(reply.text), [split_bare_words(answer) for answer in accepted]
    return {
        "id": question["id"],
        "kind": question["kind"],
        "answer": reply.text,
        "exact": any(words == one for one in right),
        "contains": any(" ".join(one) in " ".join(words) for one in right),
        "f1": round(max((compute_word_bag_f1(words, one) for one in right), default=0.0), 4),
        "rank": rank(passages, question["passage"]),
        "said_absent": not reply.found,
        "certainty": reply.certainty,
        "probability": reply.probability,
        "s": round(spent, 2),
    }


def percent(flags: Sequence[bool]) -> str:
    return f"{100 * sum(flags) / len(flags):.0f} %" if flags else "-"


def summary(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """One line of the table."""
    told = [one for one in rows if one["kind"] != "absent"]
    absent = [one for one in rows if one["kind"] == "absent"]
    cells = [
        percent([bool(one["rank"] and one["rank"] <= depth) for one in told]) for depth in DEPTHS
    ]
    cells += [percent([one["exact"] for one in told]), percent([one["contains"] for one in told])]
    cells.append(f"{100 * sum(one['f1'] for one in told) / max(len(told), 1):.0f}")
    cells += [percent([one["said_absent"] for one in group]) for group in (absent, told)]
    cells.append(f"{sum(one['s'] for one in rows) / len(rows):.1f}")
    return f"| {name} | {len(rows)} | " + " | ".join(cells) + " |"


HEADER = (
    "| text | n | first | among 3 | among 8 | exact | contains | F1 | absent noticed "
    "| false alarms | s each |\n|" + "-|" * 11
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the texts are")
    parser.add_argument("--split", choices=("dev", "test", "papers"), default="dev")
    parser.add_argument("--only", default="", help="only texts whose name matches")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--method", default=None)
    parser.add_argument("--library", type=Path, help="keeps what is read for the next run")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--out", default="", help="append rows to this file of JSON lines")
    given = parser.parse_args()

    from esa_cli import Esa, Library

    total: list[dict[str, Any]] = []
    print(HEADER)
    library = Library(given.library) if given.library else None
    options = {"overrides": given.set, "method": given.method, "library": library}
    for head, questions, document in texts(given.folder, given.split, given.only):
        with Esa.load(given.preset, **options) as esa:
            # Without a finder only words are searched, and no model reads the document.
            by_words = esa.preset.answer.finds_by_bm25_only
            book = esa.open(document) if by_words else esa.ingest(document)
            rows = [row(esa, book, one, given.max_new_tokens) for one in questions]
        for one in rows:
            append_line(given.out, {"text": head["name"], **one})
        print(summary(head["name"], rows), flush=True)
        total += rows
    for kind in sorted({one["kind"] for one in total} - {"absent"}):
        print(summary(kind, [one for one in total if one["kind"] == kind]))
    if total:
        print(summary("all", total))


if __name__ == "__main__":
    main()
