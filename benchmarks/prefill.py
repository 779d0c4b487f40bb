"""Speed of ESA's prefill against transformers' dense prefill of the same model in the same run.

Both process the same tokens in the same pieces, alternating; the times depend on the machine, the
ratio less so.

    python benchmarks/prefill.py --lengths 16k,32k --repeats 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
from common import append_line, tokens


def dense(model: Any, ids: torch.Tensor, feed: int) -> float:
    """Seconds for a stock prefill with DynamicCache and sdpa, in pieces of `feed` tokens."""
    from transformers import DynamicCache

    cache, started = DynamicCache(), time.perf_counter()
    for low in range(0, ids.shape[1], feed):
        model.base_model(input_ids=ids[:, low : low + feed], past_key_values=cache)
    return time.perf_counter() - started


def selective(model: Any, ids: torch.Tensor, feed: int, method: Any) -> float:
    """Seconds for the same prefill through ESA, reduced keys included."""
    from esa_cli.attention.window import Phase, QueryState
    from esa_cli.models.attachment.attach import attach

    with attach(model, method) as attachment:
        cache = attachment.new_cache()
        cache.begin_query(QueryState(Phase.PREFILL))
        started = time.perf_counter()
        for low in range(0, ids.shape[1], feed):
            model.base_model(input_ids=ids[:, low : low + feed], past_key_values=cache)
        cache.compute_reduced_keys()
        return time.perf_counter() - started


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", default="16k")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--feed", type=int, default=1024)
    parser.add_argument("--whole", action="store_true", help="give the dense prefill all at once")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    from esa_cli import models
    from esa_cli.qa.presets.preset import load_preset
    from esa_cli.qa.presets.resolved_preset import resolve_preset

    chosen = load_preset(arguments.preset, arguments.overrides)
    method = resolve_preset(chosen).method
    model = models.load(chosen.model).model
    generator = torch.Generator().manual_seed(0)
    for text in arguments.lengths.split(","):
        n = tokens(text)
        ids = torch.randint(100, model.config.vocab_size, (1, n), generator=generator)
        dense(model, ids[:, :1024], 1024), selective(model, ids[:, :1024], 1024, method)
        times: dict[str, list[float]] = {"dense": [], "esa": []}
        for _ in range(arguments.repeats):
            times["dense"].append(dense(model, ids, n if arguments.whole else arguments.feed))
            times["esa"].append(selective(model, ids, arguments.feed, method))
        best = {name: statistics.median(values) for name, values in times.items()}
        row = {
            "tokens": n,
            "reading": chosen.reading,
            "local": chosen.window.local,
            "chunk": chosen.window.chunk,
            "threads": torch.get_num_threads(),
            "dtype": str(model.dtype).removeprefix("torch."),
            "dense_tokens_per_s": round(n / best["dense"], 1),
            "esa_tokens_per_s": round(n / best["esa"], 1),
            "ratio": round(best["dense"] / best["esa"], 2),
        }
        print(json.dumps(row), flush=True)
        append_line(arguments.out, row)


if __name__ == "__main__":
    main()
