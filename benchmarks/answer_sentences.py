"""Marks of sentences that no passage supports, on 60 sentences written by hand.

`answer_sentences.yaml` has twelve passages in two halves, and what is wrong with each sentence. The
limits of the check were chosen on `dev`; `test` was run once, with these limits.

    python benchmarks/answer_sentences.py
    python benchmarks/answer_sentences.py --words --out benchmarks/results/answer-sentences.jsonl
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import append_line

ROWS = Path(__file__).with_suffix(".yaml")


def check_half(esa: Any, half: list[dict[str, Any]], by_words: bool) -> Iterator[dict[str, Any]]:
    """A row for each sentence of a half, whose passages are one document."""
    from esa_cli import Document, Passage
    from esa_cli.qa.answering.sentence_check import AnswerCheck
    from esa_cli.qa.finding.passage_finder import add_token_ranges

    text = "\n\n".join(one["passage"] for one in half)
    document = Document("report.txt", text, "report.txt", "utf-8", len(text))
    books = add_token_ranges([esa.ingest(document)])
    places = [(text.index(one["passage"]), len(one["passage"])) for one in half]
    passages = [Passage.cut_from(document, start, start + size) for start, size in places]

    def score(sentence: str) -> list[float] | None:
        return None if by_words else esa.search.score_passages(sentence, passages, books)

    for one in half:
        for kind, sentence in one["sentences"]:
            lowercase = esa.answerer.is_usually_lowercase
            check = AnswerCheck(sentence, [one["question"]], passages, lowercase, score)
            checked = check.check_sentences()
            ok = all(part.supported for part in checked)
            missing = [word for part in checked for word in part.missing]
            yield {"sentence": sentence, "kind": kind, "marked": not ok, "missing": missing}


def print_table(name: str, rows: list[dict[str, Any]]) -> None:
    """Precision and recall of the marks, and how many sentences of each kind are marked."""
    wrong = [row for row in rows if row["kind"] != "supported"]
    marked = [row for row in rows if row["marked"]]
    right = sum(row["marked"] for row in wrong)
    of, found = Counter(row["kind"] for row in rows), Counter(row["kind"] for row in marked)
    kinds = ", ".join(f"{kind} {found[kind]} of {count}" for kind, count in of.items())
    print(
        f"{name}: precision {right / max(1, len(marked)):.0%}, recall {right / len(wrong):.0%}; "
        f"marked: {kinds}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--words", action="store_true", help="without a token index")
    parser.add_argument("--half", choices=("dev", "test"), help="one half alone")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    import yaml

    from esa_cli import Esa

    halves = yaml.safe_load(ROWS.read_text("utf-8"))
    with Esa.load(library=None) as esa:
        for name in [arguments.half] if arguments.half else halves:
            rows = list(check_half(esa, halves[name], arguments.words))
            print_table(name, rows)
            for row in rows:
                append_line(arguments.out, {"half": name, "words": arguments.words, **row})
                if row["marked"] != (row["kind"] != "supported"):
                    print(f"  {row['kind']}: {row['sentence']} {row['missing'] or ''}")


if __name__ == "__main__":
    main()
