"""Small texts with pairs, for training a reader."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ANIMALS = ("cat", "dog", "owl", "fox", "hen", "ram", "elk", "bee")
TOWNS = ("Arl", "Bex", "Cam", "Dee", "Esk", "Fal")


def write_text(
    root: Path, name: str, hour: int = 0, animals: Sequence[str] = ANIMALS
) -> tuple[Path, Path]:
    """Writes a text of a sentence for each animal in each town, and its pairs; returns the folders
    of pairs and of texts."""
    pairs, texts = root / "pairs", root / "texts"
    pairs.mkdir(exist_ok=True)
    texts.mkdir(exist_ok=True)
    text, rows = "", list[dict[str, Any]]()
    for place, town in enumerate(TOWNS):
        start, questions = len(text), []
        for at, animal in enumerate(animals):
            said = f"at {(place * 5 + at + hour) % 24}"
            sentence = f"The {animal} of {town} naps by an elm {said}."
            first = len(text) + sentence.index(said)
            questions.append((f"When naps the {animal} of {town}?", [first, first + len(said)]))
            text += sentence + " "
        text = text.rstrip() + "\n\n"
        questions.append((f"Who owns the cat of {town}?", None))
        for question, answer in questions:
            row = {"id": f"{name}-{len(rows) + 1}", "kind": "plain" if answer else "absent"}
            row |= {"question": question, "answer": answer, "passage": [start, len(text) - 2]}
            rows.append(row)
    (texts / f"{name}.txt").write_text(text, "utf-8")
    write_pairs(pairs / f"{name}.jsonl", rows)
    return pairs, texts


def write_pairs(file: Path, rows: list[dict[str, Any]]) -> None:
    from esa_cli import read_document

    texts = file.parent.parent / "texts"
    text = read_document(str(texts / f"{file.stem}.txt")).text
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    head = {"name": file.stem, "source": "a test", "sha256": digest, "characters": len(text)}
    file.write_text("\n".join(json.dumps(row) for row in (head, *rows)) + "\n", "utf-8")
