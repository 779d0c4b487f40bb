"""Questions about texts with the places of their answers, and the texts themselves.

A folder of pairs has one file `NAME.jsonl` a text: a header with `name`, `sha256` of the text that
`read_document` extracts, `characters`, and its `language` unless it is English; then one pair a
line, with character offsets [start, end) of the answer (null: the text does not tell it) and of the
passage. The texts are files `NAME.*` in another folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from esa_cli.documents.document import read_document
from esa_cli.errors import DocumentError
from esa_cli.system.text import digest_text, has_lone_surrogate

Span = tuple[int, int]

ENGLISH = "English"
AS_PEOPLE_ASK = ("natural", "remembered")
"""The styles of pairs that `draw_pairs` takes all of."""


@dataclass(frozen=True)
class AnswerPair:
    """A question with the characters of its passage and of the answer there, None without one;
    `style` may be `typed`, `claim`, `keywords`, `remembered`, `request` or `natural`."""

    id: str
    kind: str
    question: str
    answer: Span | None
    passage: Span
    style: str = ""


@dataclass(frozen=True)
class TrainingText:
    """A text with its pairs; `digest` is the SHA-256 of the text and of the file of pairs."""

    name: str
    text: str
    pairs: tuple[AnswerPair, ...]
    digest: str
    language: str = ENGLISH


def read_training_texts(pairs: Path, texts: Path) -> list[TrainingText]:
    """All texts of a folder of pairs, by name.

    Raises:
        DocumentError: no pairs, no text for some of them, a text of another edition, or a damaged
            file of pairs.
    """
    files = sorted(pairs.glob("*.jsonl"))
    if not files:
        raise DocumentError(
            f"the folder of pairs must have files NAME.jsonl, got {pairs}",
            "benchmarks/training/pairs of the repository has some",
        )
    return [_read(file, texts) for file in files]


def draw_pairs(texts: list[TrainingText], others: float, seed: int) -> list[TrainingText]:
    """Returns the texts with all pairs of the styles `AS_PEOPLE_ASK`, and each other pair with the
    probability `others`; texts without a pair are left out."""
    random, drawn = Random(seed), []
    for text in texts:
        chosen = tuple(
            pair for pair in text.pairs if random.random() < others or pair.style in AS_PEOPLE_ASK
        )
        if chosen:
            digest = digest_text(f"{text.digest} {others} {seed}")
            drawn.append(replace(text, pairs=chosen, digest=digest))
    return drawn


def _read(file: Path, texts: Path) -> TrainingText:
    try:
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(f"{file} cannot be read: {error}", "") from error
    at = 0
    try:
        header = json.loads(lines[0])
        name, digest = str(header["name"]), str(header["sha256"])
        text = _text(name, digest, texts)
        found = []
        for at, line in enumerate(lines[1:], 1):  # noqa: B007
            found.append(_pair(json.loads(line), len(text)))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise DocumentError(
            f"{file} must have a header and pairs, got line {at + 1}: {error!r}",
            "benchmarks/training/README.md says what a line has",
        ) from error
    if not found:
        raise DocumentError(f"{file} must have pairs, got none", "delete it, or add some")
    pairs_digest, language = digest_text(digest + "\n".join(lines)), header.get("language", ENGLISH)
    return TrainingText(name, text, tuple(found), pairs_digest, str(language))


def _pair(row: dict[str, Any], characters: int) -> AnswerPair:
    """Raises KeyError, TypeError, ValueError: it is not one."""
    start, end = (int(place) for place in row["passage"])
    answer: Span | None = None
    if row["answer"] is not None:
        first, last = (int(place) for place in row["answer"])
        answer = (first, last)
    inner = answer or (start, end)
    if not 0 <= start <= inner[0] < inner[1] <= end <= characters:
        raise ValueError(f"offsets {inner} in {(start, end)} of {characters} characters")
    question = str(row["question"])
    if not question.strip() or has_lone_surrogate(question):
        raise ValueError("no question")
    style = str(row.get("style") or "")
    return AnswerPair(str(row["id"]), str(row["kind"]), question, answer, (start, end), style)


def _text(name: str, digest: str, folder: Path) -> str:
    files = sorted(path for path in folder.glob("*.*") if path.stem == name and path.is_file())
    if len(files) != 1:
        raise DocumentError(
            f"the folder of texts must have one file {name}.*, got {len(files)} in {folder}",
            "benchmarks/training/texts.py makes the texts of the repository's pairs",
        )
    text = read_document(str(files[0])).text
    if digest_text(text) != digest:
        raise DocumentError(
            f"the text of {files[0]} must have the SHA-256 {digest[:12]}..., got "
            f"{digest_text(text)[:12]}...",
            "the pairs are about another edition: make the texts again",
        )
    return text
