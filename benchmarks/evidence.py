"""Token weightings compared: rank of the passage with the answer, detection of missing answers.

The texts are the chronicle, the haystack of recipe.py with 16 needles at 24,000 tokens, and five
excerpts of the chronicle that fit in the window, each prefilled once and asked with the default
preset. The attention of all layers and heads is kept for each question until its weightings have
been compared. Rows are JSON lines; the tables are Markdown on standard output.

    python benchmarks/evidence.py --out benchmarks/results/evidence.jsonl
    python benchmarks/evidence.py --table benchmarks/results/evidence.jsonl
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evidence_table
import recipe
import torch
from common import (
    NEEDLES,
    ROOT,
    answered,
    append_line,
    chronicle,
    chronicle_questions,
    load_lines,
    token_counter,
)
from torch import Tensor

from esa_cli.attention.step import ChunkTrace
from esa_cli.qa.attention_evidence import (
    FOUND,
    AttentionRecorder,
    find_attended_passages,
    get_max_sentence_weight,
)

EXCERPTS = ((0.05, 5000), (0.28, 9000), (0.5, 13000), (0.72, 13000), (0.9, 11000))
"""Depth in the chronicle where each excerpt begins, and its approximate number of characters."""


@dataclass(frozen=True)
class Plain:
    """A document as `esa_cli.qa.attention_evidence` takes it."""

    name: str
    text: str
    spans: Tensor
    rows: range

    @property
    def document(self) -> Plain:
        return self


class Study(AttentionRecorder):
    """Attention weights that also keep every layer's and head's share of the latest question."""

    def __init__(self, session: Any) -> None:
        super().__init__(session.attachment.method_layers, session.document_tokens)
        self.shipped = AttentionRecorder(session.attachment.method_layers, session.document_tokens)
        self.layers = range(session.model.config.num_hidden_layers)
        self.witness_s = self.study_s = 0.0
        self.reset_weights()

    def reset_weights(self) -> None:
        super().reset_weights()
        self.kept: dict[tuple[int, bool], list[Any]] = {}

    def __call__(self, seen: ChunkTrace) -> None:
        started = time.perf_counter()
        self.shipped(seen)
        middle = time.perf_counter()
        super().__call__(seen)
        self.witness_s += middle - started
        self.study_s += time.perf_counter() - middle

    def note(self, seen: ChunkTrace, share: Any) -> None:
        self.kept.setdefault((seen.layer, seen.decoding), []).append(share)

    def pooled(
        self,
        layers: range,
        pool: str,
        value: bool = True,
        question: bool = True,
        answer: bool = True,
    ) -> Tensor:
        """(N,) by another rule. pool: over heads and words, `max` or `sum`."""
        out = torch.zeros(len(layers), self.tokens)
        for row, layer in zip(out, layers, strict=True):
            for decoding in [False] * question + [True] * answer:
                for share in self.kept.get((layer, decoding), []):
                    mass = share.logs.exp().view(len(share.lengths), -1, len(share.at))
                    each = mass * share.lengths[:, None] if value else mass
                    if pool == "max":
                        row[share.at] = torch.maximum(row[share.at], each.amax(dim=(0, 1)))
                    else:
                        row[share.at] += each.sum(dim=(0, 1))
        return out.mean(dim=0)

    def counts(self) -> Tensor:
        """(N,) in how many layers and steps a token was attended to, as `esa compare` counts."""
        out = torch.zeros(self.tokens)
        for shares in self.kept.values():
            for share in shares:
                out[share.at] += len(share.heads)
        return out

    def weightings(self) -> dict[str, Tensor]:
        """(N,) each; the first is the one that `esa` uses."""
        n = len(self.layers)
        half, third = range(n // 4, n - n // 4), range(n // 3, n - n // 3)
        return {
            "shipped": self.shipped.token_weights,
            "question only": self.pooled(half, "max", answer=False),
            "answer only": self.pooled(half, "max", question=False),
            "probability alone": self.pooled(half, "max", value=False),
            "sum over heads and words": self.pooled(half, "sum"),
            "middle third": self.pooled(third, "max"),
            "all layers": self.pooled(self.layers, "max"),
            "first half": self.pooled(range(n // 2), "max"),
            "second half": self.pooled(range(n // 2, n), "max"),
            "probability, all, summed": self.pooled(self.layers, "sum", value=False),
            "selected": self.counts(),
        }


def place_of(passages: Sequence[Any], start: int, end: int) -> int | None:
    """How many of the passages, heaviest first, it takes to hold all of [start, end)."""
    missing = set(range(start, end))
    for number, passage in enumerate(passages, 1):
        missing -= set(range(passage.start, passage.end))
        if not missing:
            return number
    return None


def ask(session: Any, book: Plain, question: dict[str, Any], most: int) -> dict[str, Any]:
    study = Study(session)
    answer = session.ask(question["question"], max_new_tokens=most, trace=study)
    row: dict[str, Any] = {
        "set": book.name,
        "tokens": session.document_tokens,
        "kind": question["kind"],
        "question": question["question"],
        "answer": answer.text,
        "strength": round(get_max_sentence_weight(study.shipped.question_token_weights, [book]), 3),
        "seconds": round(answer.total_s - study.study_s, 2),
        "witness_s": round(study.witness_s, 3),
    }
    if "fact" not in question:
        return row
    start = book.text.index(question["fact"])
    weightings = study.weightings()
    passages = {
        name: find_attended_passages(weights, [book], 3) for name, weights in weightings.items()
    }
    end = start + len(question["fact"])
    return row | {
        "ok": answered(answer.text, question["answers"]),
        "place": {name: place_of(found, start, end) for name, found in passages.items()},
        "characters": [one.end - one.start for one in passages["shipped"]],
    }


def texts(size: Callable[[str], int]) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """(name, text, questions)."""
    whole = chronicle()
    facts = [{**fact, "kind": "answerable"} for fact in chronicle_questions()]
    none = load_lines(ROOT / "benchmarks" / "unanswerable.jsonl")
    needles = load_lines(NEEDLES)
    text = recipe.planted(recipe.paragraphs("chronicle"), needles[:16], size, 24000)
    planted = [
        {**needle, "fact": needle["needle"].rstrip("."), "kind": "answerable"}
        for needle in needles[:16]
    ]
    others = [{"question": needle["question"], "kind": "absent"} for needle in needles[16:]]
    yield "needles 24k", text, planted + others
    absent = [one for one in none if one["kind"] == "absent"]
    for number, (depth, length) in enumerate(EXCERPTS):
        first = whole.index("\n\n", int(depth * len(whole))) + 2
        part = whole[first : whole.index("\n\n", first + length)]
        inside = [fact for fact in facts if fact["fact"] in part]
        yield f"excerpt {number + 1}", part, inside + absent[6 * number : 6 * number + 6]
    yield "chronicle", whole, facts + none


def rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from esa_cli import models
    from esa_cli.qa.answering.session import Session
    from esa_cli.qa.presets.preset import load_preset

    chosen = load_preset(arguments.preset)
    loaded = models.load(arguments.model or chosen.model)

    size = token_counter(loaded.tokenizer)

    for name, text, questions in texts(size):
        if arguments.only and arguments.only not in name:
            continue
        with Session(loaded.model, loaded.tokenizer, chosen) as session:
            session.read(text)
            head = len(session.prompt.encode_prompt_start())
            spans = torch.tensor(session.prompt.find_token_offsets(text))
            book = Plain(name, text, spans, range(head, head + len(spans)))
            for question in questions:
                yield ask(session, book, question, arguments.tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--model", default="")
    parser.add_argument("--only", default="", help="a part of a text's name")
    parser.add_argument("--tokens", type=int, default=24, help="longest answer")
    parser.add_argument("--out", default="")
    parser.add_argument("--table", default="", help="print the tables of these rows; run nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(evidence_table.tables(load_lines(Path(arguments.table)), FOUND))
        return
    made = []
    for row in rows(arguments):
        made.append(row)
        print(f"{row['set']}: {row['question']} | {row['answer']} | {row['strength']}", flush=True)
        append_line(arguments.out, row)
    print(evidence_table.tables(made, FOUND))


if __name__ == "__main__":
    main()
