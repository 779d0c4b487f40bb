"""Layers that select the needle, by length of the document: why answers are lost as it grows.

For each of the first 16 needles of `needles.jsonl`, the share of its tokens that each layer selects
for the question, with each layer selecting for itself and with `consensus`.

    python benchmarks/collapse.py --lengths 12k,24k --out benchmarks/results/collapse.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from common import NEEDLES, append_line, load_lines, token_counter, tokens
from recipe import paragraphs, planted
from torch import Tensor

from esa_cli.attention.step import ChunkTrace

COMMON = [
    *("window.initial=64", "window.ending=null", "window.dense=null", "compressor.name=none"),
    *("reading=local", "selector.passage=1", "selector.rounds=1", "score.contrast=false"),
]
SETTINGS = {
    "each layer for itself": [
        *("selector.name=topk", "selector.proximity=1", "window.selected=1024"),
        *("position.name=esa", "position.distance=6000"),
    ],
    "consensus": [],
}


def needle_tokens(session: Any, text: str, needle: str) -> range:
    """Positions of the needle's tokens in the document."""
    start = text.index(needle.rstrip("."))
    low = len(session.prompt.encode_document(text[:start]))
    return range(low, len(session.prompt.encode_document(text[: start + len(needle) - 1])))


def shares(session: Any, text: str, needles: list[dict[str, Any]]) -> dict[int, float]:
    """Mean share of the needles' tokens selected, by layer; nothing is generated."""
    found: dict[int, list[float]] = defaultdict(list)
    for needle in needles:
        chosen: dict[int, Tensor] = {}

        def record(trace: ChunkTrace, chosen: dict[int, Tensor] = chosen) -> None:
            chosen[trace.layer] = torch.cat(list(trace.list_far_positions()))

        session.ask(needle["question"], max_new_tokens=1, trace=record)
        place = needle_tokens(session, text, needle["needle"])
        for layer, at in chosen.items():
            found[layer].append(float(((at >= place.start) & (at < place.stop)).sum()) / len(place))
    return {layer: sum(values) / len(values) for layer, values in sorted(found.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--haystack", default="chronicle", help="`chronicle` or a text file")
    parser.add_argument("--lengths", default="12k,24k")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    from esa_cli import models
    from esa_cli.qa.answering.session import Session
    from esa_cli.qa.presets.preset import load_preset

    needles = load_lines(NEEDLES)[:16]
    chosen = load_preset(arguments.preset, COMMON)
    loaded = models.load(chosen.model)

    size = token_counter(loaded.tokenizer)

    parts = paragraphs(arguments.haystack)
    for n in [tokens(text) for text in arguments.lengths.split(",")]:
        text = planted(parts, needles, size, n)
        with Session(loaded.model, loaded.tokenizer, chosen) as session:
            session.read(text)
            for name, settings in SETTINGS.items():
                session.use_preset(load_preset(arguments.preset, [*COMMON, *settings]))
                with torch.inference_mode():
                    by_layer = shares(session, text, needles)
                row = {
                    "haystack": Path(arguments.haystack).stem,
                    "length": n,
                    "selection": name,
                    "selected": session.preset.window.selected,
                    "share_by_layer": {k: round(v, 3) for k, v in by_layer.items()},
                }
                print(json.dumps(row), flush=True)
                append_line(arguments.out, row)


if __name__ == "__main__":
    main()
