"""How many passages words alone (BM25) find, without a model, on the questions about real books.

    python benchmarks/word_search.py FOLDER_OF_TEXTS --split dev

Prints for each text and kind of question of `book_questions/` how many passages are first, among 3
and among 8 windows of `LexicalIndex`, without windows that overlap a better one by half.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path

from book_questions import DEPTHS, percent, rank, texts

from esa_cli.qa.finding.passage_finder import Book, PassageFinder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the texts are")
    parser.add_argument("--split", choices=("dev", "test"), default="dev")
    parser.add_argument("--only", default="", help="only texts whose name matches")
    given = parser.parse_args()

    import torch

    ranks: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    seconds = list[float]()
    for head, questions, document in texts(given.folder, given.split, given.only):
        finder = PassageFinder([Book(document, None, torch.zeros((0, 2), dtype=torch.long))])
        for question in questions:
            if question["kind"] == "absent":
                continue
            started = time.perf_counter()
            passages = finder.find_passages(question["question"], max(DEPTHS))
            seconds.append(time.perf_counter() - started)
            place = rank([(one.start, one.end) for one in passages], question["passage"])
            kinds = (question["kind"], "all")
            names = (head["name"], "English" if head.get("language", "en") == "en" else "others")
            for key in [(name, kind) for name in names for kind in kinds]:
                ranks[key].append(place)
    kinds = sorted({kind for _, kind in ranks})
    print("| text | " + " | ".join(f"{kind}: first; 3; 8" for kind in kinds) + " |")
    print("|-|" + "-|" * len(kinds))
    for name in sorted({name for name, _ in ranks}):
        cells = []
        for kind in kinds:
            places = ranks[name, kind]
            found = [[bool(one and one <= depth) for one in places] for depth in DEPTHS]
            counts = "; ".join(str(sum(flags)) for flags in found)
            cells.append(f"{counts} of {len(places)} ({percent(found[1])})" if places else "-")
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(f"{1000 * sum(seconds) / len(seconds):.1f} ms a question")


if __name__ == "__main__":
    main()
