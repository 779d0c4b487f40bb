"""What each score adds to finding passages, on questions people ask about real books.

    python benchmarks/finding.py FOLDER_OF_TEXTS --split dev --out rows.jsonl

Prints how many of the answerable questions of `book_questions/` have their passage among 1, 3, 8
and 16 found ones, by words alone (BM25) and by late interaction. As in the default, one of 8 and
two of 16 are of those that words put first. Nothing is read again, and no answer is given.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from book_questions import rank, texts
from common import append_line

DEPTHS = (1, 3, 8, 16)
WAYS = (
    "words alone (BM25)",
    "late interaction of the windows and of what is around them: the default",
)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the texts are")
    parser.add_argument("--split", choices=("dev", "test"), default="dev")
    parser.add_argument("--only", default="", help="only texts whose name matches")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", default="", help="append rows to this file of JSON lines")
    given = parser.parse_args()

    from esa_cli import models
    from esa_cli.qa.finding.finder import ReducedKeys
    from esa_cli.qa.finding.finder_choice import load_finder, load_ranking
    from esa_cli.qa.finding.passage_finder import Book, PassageFinder, ReducedQueries
    from esa_cli.qa.presets.preset import load_preset

    chosen = load_preset(given.preset, given.set)
    loaded = models.load(chosen.model)
    encoder = load_finder(chosen.answer, loaded.model, loaded.tokenizer)
    assert encoder is not None, "the preset must have a finder"
    found: dict[tuple[str, str], list[list[bool]]] = defaultdict(list)
    for head, questions, document in texts(given.folder, given.split, given.only):
        out = loaded.tokenizer(
            document.text, add_special_tokens=False, split_special_tokens=True,
            return_offsets_mapping=True, verbose=False,
        )  # fmt: skip
        ids, spans = out["input_ids"], torch.tensor(out["offset_mapping"])
        keys = ReducedKeys.encode(encoder.encode_document(ids, 0, len(ids)), encoder.layout)
        ranking = load_ranking(chosen.answer)
        finder = PassageFinder([Book(document, None, spans, index=keys)], ranking)
        for question in questions:
            if question["kind"] == "absent":
                continue
            queries, weights = encoder.encode_questions([question["question"]])
            ways = (None, ReducedQueries(queries[0], weights[0]))
            within: dict[str, list[bool]] = {}
            for name, reduced in zip(WAYS, ways, strict=True):
                within[name] = []
                for depth in DEPTHS:
                    passages = finder.find_passages(question["question"], depth, reduced)
                    place = rank([(one.start, one.end) for one in passages], question["passage"])
                    within[name].append(place is not None)
                found[name, question["kind"]].append(within[name])
            row = {"text": head["name"], "id": question["id"], "kind": question["kind"]}
            append_line(given.out, row | {"among": DEPTHS, "found": within})
        print(f"{head['name']}: {len(ids):,} tokens", flush=True)
    print_table(found)


def print_table(found: dict[tuple[str, str], list[list[bool]]]) -> None:
    kinds = sorted({kind for _, kind in found})
    print("\n| | " + " | ".join(f"{kind}: first; 3; 8; 16" for kind in ("all", *kinds)) + " |")
    print("|" + "-|" * (len(kinds) + 2))
    for name in WAYS:
        groups = [found[name, kind] for kind in kinds]
        cells = [counts(group) for group in ([one for g in groups for one in g], *groups)]
        print(f"| {name} | " + " | ".join(cells) + " |")


def counts(within: Sequence[Sequence[bool]]) -> str:
    """How many questions have their passage within each depth, of how many."""
    return f"{'; '.join(str(sum(depth)) for depth in zip(*within, strict=True))} of {len(within)}"


if __name__ == "__main__":
    main()
