"""Ranks each training text's windows for its questions by a finder, as `esa ask` does.

    python benchmarks/training/rank_windows.py PAIRS TEXTS OUT [--text NAME ...]

OUT gets a NAME.jsonl of each text: a question's id and the characters of its best windows. With
`train_reader.py --windows OUT` the reader learns which of them do not answer the question.
Texts that have their file are not ranked again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from question_pairs import TrainingText, read_training_texts

from esa_cli.documents.document import Document
from esa_cli.models import load
from esa_cli.qa.finding.finder import ReducedKeys, TokenEncoder, load_finder
from esa_cli.qa.finding.passage_finder import Book, PassageFinder, ReducedQueries
from esa_cli.qa.presets.preset import load_preset
from esa_cli.system.files import replace_atomically

COUNT = 16
"""Windows of a question."""
GROUP = 32
"""Questions that are encoded together."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", type=Path, help="the folder of questions: NAME.jsonl")
    parser.add_argument("texts", type=Path, help="the folder of their texts: NAME.*")
    parser.add_argument("out", type=Path, help="the folder that gets NAME.jsonl of each text")
    parser.add_argument("--text", action="append", help="only this one; repeatable")
    parser.add_argument("--preset", default="default", help="the preset with the finder")
    args = parser.parse_args(argv)

    preset = load_preset(args.preset)
    model = load(preset.model)
    encoder = load_finder(preset.answer, model.model, model.tokenizer)
    if encoder is None:
        parser.error(f"the preset must have a finder, got {args.preset}")
    args.out.mkdir(parents=True, exist_ok=True)
    texts = read_training_texts(args.pairs, args.texts)
    for text in sorted(texts, key=lambda one: len(one.text) / len(one.pairs)):
        path = args.out / f"{text.name}.jsonl"
        if path.exists() or (args.text and text.name not in args.text):
            continue
        started = time.monotonic()
        rows = list(ranked(text, encoder, model.tokenizer, preset.answer.words))
        with replace_atomically(path) as file:
            file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        print(f"{text.name}: {len(rows)} questions, {time.monotonic() - started:.0f} s", flush=True)


@torch.inference_mode()
def ranked(
    text: TrainingText, encoder: TokenEncoder, tokenizer: object, words: float
) -> Iterator[dict[str, object]]:
    """A row of each question that has an answer."""
    out = tokenizer(  # type: ignore[operator]
        text.text, add_special_tokens=False, split_special_tokens=True,
        return_offsets_mapping=True, verbose=False,
    )  # fmt: skip
    ids, spans = out["input_ids"], torch.tensor(out["offset_mapping"])
    document = Document(text.name, text.text, text.name, "utf-8", len(text.text))
    keys = ReducedKeys.encode(encoder.encode_document(ids, 0, len(ids)), encoder.layout)
    finder = PassageFinder([Book(document, None, spans, index=keys)])
    pairs = [pair for pair in text.pairs if pair.answer]
    for at in range(0, len(pairs), GROUP):
        group = pairs[at : at + GROUP]
        queries, weights = encoder.encode_questions([pair.question for pair in group])
        for pair, query, weight in zip(group, queries, weights, strict=True):
            found = finder.find_passages(
                pair.question, COUNT, reduced=ReducedQueries(query, weight, words)
            )
            yield {"id": pair.id, "windows": [[one.start, one.end] for one in found]}


if __name__ == "__main__":
    main()
