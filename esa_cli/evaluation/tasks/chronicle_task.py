"""The chronicle: a long generated document, with or without known facts in it.

With facts it is the demo document, far longer than the default model's window; every question about
it has one known answer at a known depth. Without, it is the self-tests' haystack. The same number
of words and seed always give the same text; another seed changes the background only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.evaluation.tasks.chronicle_generator import (
    ChronicleGenerator,
    Paragraph,
    load_material,
)

DEFAULT_WORDS = 27_000
DEFAULT_SEED = 7
# In a shorter text the 48 facts would be so close together that they lose their depths.
MIN_WORDS = 12_000


def paragraphs(seed: int) -> Iterator[str]:
    """The background alone, paragraph by paragraph: about 980,000 words, no sentence twice."""
    for section in ChronicleGenerator(seed).sections():
        yield from (block.text() for block in section)


def weave(blocks: list[Paragraph], facts: list[dict[str, Any]]) -> str:
    """Puts every fact between two sentences of a loose paragraph, nearest to its depth."""
    gaps: list[tuple[int, int, int]] = []
    offset = 0
    for index, block in enumerate(blocks):
        start = offset
        for position, sentence in enumerate(block.sentences):
            if block.loose and position >= 2:
                gaps.append((start, index, position))
            start += len(sentence) + 1
        offset += len(block.text()) + 2
    total = offset + sum(len(fact["fact"]) + 1 for fact in facts)
    added = 0
    for fact in sorted(facts, key=lambda entry: float(entry["depth"])):
        wanted = fact["depth"] * total - added
        gap = min(gaps, key=lambda entry: abs(entry[0] - wanted))
        gaps = gaps[gaps.index(gap) + 1 :]
        blocks[gap[1]].sentences[gap[2] - 1] += " " + fact["fact"]
        added += len(fact["fact"]) + 1
    return "\n\n".join(block.text() for block in blocks) + "\n"


def build(words: int = DEFAULT_WORDS, seed: int = DEFAULT_SEED) -> str:
    """The whole document, of about this many words."""
    if words < MIN_WORDS:
        raise ValueError(f"words must be at least {MIN_WORDS}, to hold the facts, got {words}")
    facts: list[dict[str, Any]] = load_material()["facts"]
    rest = words - sum(len(fact["fact"].split()) for fact in facts)
    return weave(ChronicleGenerator(seed).background(rest), facts)


def questions_file(text: str) -> str:
    """A questions file: one question a line, with the depth of its fact in this text."""
    lines = []
    for fact in load_material()["facts"]:
        row = {key: fact[key] for key in ("id", "question", "answers", "fact")}
        row["depth"] = round(text.index(fact["fact"]) / len(text), 3)
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


class Reworded(NamedTuple):
    """A question of the demo in other words than the chronicle's; it may have no answer there."""

    id: str
    question: str
    answers: tuple[str, ...]


def reworded() -> list[Reworded]:
    """The demo's questions; the last one has no answer."""
    lines = Path(__file__).with_name("demo_questions.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [Reworded(row["id"], row["question"], tuple(row["answers"])) for row in rows]


def is_answered(text: str, answers: Sequence[str]) -> bool:
    """Whether the text contains one of the accepted answers as whole words."""
    return any(re.search(rf"(?<!\w){re.escape(a)}(?!\w)", text, re.IGNORECASE) for a in answers)
