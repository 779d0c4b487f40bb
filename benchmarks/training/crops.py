"""Makes questions of sentences: pairs that a finder can learn from without anybody's questions.

    python benchmarks/training/texts.py texts/ --plain books/
    python benchmarks/training/crops.py benchmarks/training/pairs texts/ --plain books/ --out crops/
    python benchmarks/training/train_finder.py crops/pairs crops/texts --out finder/

A sentence that is taken out of its text is the question; the sentences before and after it, which
are neighbours in the text that remains, are the answer (the inverse cloze task, arXiv 1906.00300).
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from question_pairs import ENGLISH, TrainingText, read_training_texts

from esa_cli.documents.document import read_document
from esa_cli.qa.finding.words import find_sentence_spans
from esa_cli.system.text import digest_text

CHANCE, LEAST_BETWEEN = 0.4, 3
"""How often a fitting sentence is taken, and how many sentences lie between two of them."""
LENGTHS, CHINESE_LENGTHS, LONGEST_ANSWER = (40, 300), (12, 100), 900
"""Characters of sentences that are taken, and of an answer at most."""

EDGE = 20_000
"""Characters at either end of a text without pairs that are left alone."""


def cut_crops(text: TrainingText) -> tuple[str, list[dict[str, Any]]]:
    """Returns the text without the sentences that are taken, and a pair for each of these."""
    draw, spans = random.Random(text.name), find_sentence_spans(text.text)
    # What is outside may be a licence.
    first = min((pair.passage[0] for pair in text.pairs), default=EDGE)
    last = max((pair.passage[1] for pair in text.pairs), default=len(text.text) - EDGE)
    low, high = CHINESE_LENGTHS if text.language == "Chinese" else LENGTHS
    parts, places, taken = list[str](), dict[int, tuple[int, int]](), list[int]()
    size = 0
    for n, (start, end) in enumerate(spans):
        inner = 0 < n < len(spans) - 1 and first <= start and end <= last
        rested = not taken or n - taken[-1] >= LEAST_BETWEEN
        if inner and rested and low <= end - start <= high and draw.random() < CHANCE:
            taken.append(n)
            continue
        following = spans[n + 1][0] if n + 1 < len(spans) else end
        parts.append(text.text[start:following])
        places[n] = size, size + end - start
        size += following - start
    pairs = list[dict[str, Any]]()
    for n in taken:
        answer = [places[n - 1][0], places[n + 1][1]]
        if answer[1] - answer[0] <= LONGEST_ANSWER:
            question = " ".join(text.text[slice(*spans[n])].split())
            row = {"id": f"{text.name}-{n}", "kind": "reworded", "question": question}
            pairs.append({**row, "answer": answer, "passage": answer})
    return "".join(parts), pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pairs", type=Path, help="the folder of questions: NAME.jsonl")
    parser.add_argument("texts", type=Path, help="the folder of their texts: NAME.*")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the result")
    parser.add_argument("--plain", type=Path, help="a folder of texts without questions: NAME.txt")
    options = parser.parse_args()
    for name in ("pairs", "texts"):
        (options.out / name).mkdir(parents=True, exist_ok=True)
    count = 0
    texts = read_training_texts(options.pairs, options.texts)
    for path in sorted(options.plain.glob("*.txt")) if options.plain else ():
        texts.append(TrainingText(path.stem, read_document(str(path)).text, (), ""))
    for text in texts:
        content, pairs = cut_crops(text)
        header = {"name": text.name, "sha256": digest_text(content), "characters": len(content)}
        if text.language != ENGLISH:
            header["language"] = text.language
        lines = [json.dumps(row, ensure_ascii=False) for row in (header, *pairs)]
        (options.out / "texts" / f"{text.name}.txt").write_text(content, "utf-8", newline="")
        (options.out / "pairs" / f"{text.name}.jsonl").write_text("\n".join(lines), "utf-8")
        count += len(pairs)
    print(f"{count:,} pairs")


if __name__ == "__main__":
    main()
