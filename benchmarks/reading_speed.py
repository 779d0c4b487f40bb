"""How fast a document is read for its index, beside the processor's rate of matrix products.

    python benchmarks/reading_speed.py --threads 1 --out rows.jsonl

Floor: the matrix products of the layers that run, alone, of the shapes that reading has, in
float32, bfloat16 and int8. Then tokens/s of the default model's finder on generated tokens: as
transformers runs it (PyTorch's fused attention, the adapter beside each layer), and as esa reads:
attention in blocks of queries, and weights of which several are one product, with the adapter added
to them. At last the shares of the parts, by PyTorch's profiler. Seconds are processor time divided
by the threads: what other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from common import append_line
from torch import nn
from torch.profiler import ProfilerActivity, profile

from esa_cli import models
from esa_cli.models.text_passes.text_forward import GROUP
from esa_cli.qa.finding import finder as token_encoder
from esa_cli.qa.finding.finder import CONTEXT_TOKENS, SEGMENT_TOKENS, TokenEncoder
from esa_cli.qa.finding.finder_choice import load_finder
from esa_cli.qa.presets.preset import load_preset

ROWS = GROUP * (SEGMENT_TOKENS + CONTEXT_TOKENS)
"""Tokens of a forward call."""
PARTS = {
    "products with weights": ("aten::mm", "aten::addmm", "mkldnn"),
    "attention": ("aten::bmm", "aten::_softmax", "scaled_dot_product", "masked_fill"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--out", default="", help="append rows to this file of JSON lines")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    chosen = load_preset()
    loaded = models.load(chosen.model, device="cpu", dtype=args.dtype)
    encoder = load_finder(chosen.answer, loaded.model, loaded.tokenizer)
    assert encoder is not None, "the preset must have a finder"
    facts = {"threads": args.threads, "tokens": args.tokens, "dtype": str(loaded.dtype)[6:]}
    print(f"{args.threads} threads, model in {facts['dtype']}\n")
    floors = floor(encoder, args.runs)
    for name, rate in floors.items():
        print(f"matrix products alone, {name}: {rate:,.0f} tokens/s")
    rng = random.Random(1)
    ids = [rng.randrange(100, 40_000) for _ in range(args.tokens)]
    best = floors[facts["dtype"]]
    rates = {}
    for name, way in WAYS.items():
        with way():
            rates[name] = tokens_per_second(
                lambda: encoder.encode_document(ids, 0, len(ids)), ids, args.runs
            )
            found = shares(lambda: encoder.encode_document(ids, 0, len(ids)))
        first = next(iter(rates.values()))
        print(
            f"{name}: {rates[name]:,.0f} tokens/s, {rates[name] / first:.2f} times the first, "
            f"{rates[name] / best:.0%} of the floor; "
            + ", ".join(f"{part} {share:.0%}" for part, share in found.items())
        )
        append_line(args.out, facts | {"way": name, "tokens_s": round(rates[name]), "parts": found})
    append_line(args.out, facts | {"floor": {name: round(rate) for name, rate in floors.items()}})


WAYS: dict[str, Callable[[], Any]] = {
    "transformers, adapter beside": lambda: patch.object(
        token_encoder, "can_fuse_model", lambda model: False
    ),
    "fused weights, attention in blocks (esa)": nullcontext,
}


def tokens_per_second(call: Callable[[], Any], ids: list[int], runs: int) -> float:
    """Of processor time, times the threads: as on an idle machine."""
    call()
    times = []
    for _ in range(runs):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return len(ids) / median(times) * torch.get_num_threads()


def floor(encoder: TokenEncoder, runs: int) -> dict[str, float]:
    """Tokens/s if reading was only the products of the layers' weights, by type of number."""
    layers = encoder.model.base_model.layers[: encoder.layers]
    shapes = Counter(
        (one.in_features, one.out_features)
        for layer in layers for one in layer.modules() if isinstance(one, nn.Linear)
    )  # fmt: skip
    share = SEGMENT_TOKENS / (SEGMENT_TOKENS + CONTEXT_TOKENS)
    found = {}
    for name, product in PRODUCTS.items():
        seconds = 0.0
        for (size, out), count in shapes.items():
            rows, weight = torch.randn(ROWS, size), torch.randn(size, out)
            seconds += count / tokens_per_second(product(rows, weight), [0] * ROWS, runs)
        found[name] = share / seconds
    return found


def _plain(dtype: torch.dtype) -> Callable[[Any, Any], Callable[[], Any]]:
    def product(rows: torch.Tensor, weight: torch.Tensor) -> Callable[[], Any]:
        a, b = rows.to(dtype), weight.to(dtype)
        return lambda: a @ b

    return product


def _int8(rows: torch.Tensor, weight: torch.Tensor) -> Callable[[], Any]:
    a, b = (one.clamp(-3, 3).mul(42).to(torch.int8) for one in (rows, weight))
    return lambda: torch._int_mm(a, b)


PRODUCTS = {
    "float32": _plain(torch.float32), "bfloat16": _plain(torch.bfloat16), "int8": _int8,
}  # fmt: skip


def shares(call: Callable[[], Any]) -> dict[str, float]:
    """Shares of processor time by part, 0 to 1."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    parts: dict[str, float] = defaultdict(float)
    for event in found.key_averages():
        names = (part for part, words in PARTS.items() if any(w in event.key for w in words))
        parts[next(names, "other")] += event.self_cpu_time_total
    total = sum(parts.values())
    return {part: round(parts[part] / total, 3) for part in (*PARTS, "other")}


if __name__ == "__main__":
    main()
