"""Speed and memory on a GPU: attention kernels, and reading and answering of long texts.

    python benchmarks/gpu.py kernels --out benchmarks/results/gpu/kernels.jsonl
    python benchmarks/gpu.py texts --shape meta-llama/Llama-3.1-8B-Instruct \
        --lengths 32k,128k,512k --out benchmarks/results/gpu/texts.jsonl

`kernels` runs every attention kernel that this device has at the sizes of a chunk and of a token,
beside the device's own rates of copying and of matrix products.

`texts` takes the sizes of a known model with random weights and random tokens, since speed does not
depend on them. The ways:

    dense   transformers with torch's flash attention (`LOWER_RIGHT`), in pieces, then one token at
            a time
    esa     the method of `--preset` (the paper's), rows on the device
    host    the same, rows in host memory and reduced keys on the device
    index   the layers up to the middle one, as the default reads a text for its index

A way that fails, mostly for want of memory, says so in its row. Each length is read once after a
short text.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from common import append_line, named_device, tokens
from device_timing import settled
from gpu_kernels import ceilings, kernel_rows
from torch.nn.attention.bias import causal_lower_right

from esa_cli.attention.window import Phase, QueryState
from esa_cli.models.attachment.attach import attach
from esa_cli.models.text_passes.text_forward import compute_hidden_states
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import resolve_preset
from esa_cli.storage.memory_store import RESERVE

WAYS = ("dense", "esa", "host", "index")
LOWER_RIGHT = "lower-right"
"""Causal attention of a piece to itself and all before it. transformers' own way gives torch a mask
there, with which it takes neither flash attention nor fewer key heads than query heads."""
DECODED = 64
"""Tokens that are written behind a text."""
SEGMENT = 2048
"""Tokens that the index form reads side by side."""
Row = dict[str, Any]


def random_model(shape: str, device: torch.device) -> Any:
    """A causal language model of one of `SHAPES` with random weights on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = dict(SHAPES[shape])
    config = AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model.to(device).eval()


def lower_right(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any,
    scaling: float | None = None, **unused: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """transformers' attention function `LOWER_RIGHT`: (1, H, C, D) with (1, G, N, D) -> (1, C, H,
    D); the last query sees all keys."""
    count, length = query.shape[2], key.shape[2]
    bias: Any = causal_lower_right(count, length) if count > 1 else None
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, bias, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


SHAPES = {
    "tiny": {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 256,
        "max_position_embeddings": 512,
    },
    "meta-llama/Llama-3.1-8B-Instruct": {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 8192,
            "low_freq_factor": 1, "high_freq_factor": 4,
        },
    },
}  # fmt: skip


class Reader:
    """Reads texts of random tokens by each way, and writes behind them."""

    def __init__(self, model: Any, method: Any, piece: int) -> None:
        self.model, self.method, self.piece = model, method, piece
        self.device: torch.device = model.device

    def read(self, way: str, ids: torch.Tensor) -> Row:
        """The row of one way over ids (1, N)."""
        if way == "index":
            return self._index(ids)
        if way == "dense":
            return self._dense(ids)
        with attach(self.model, self.method) as attachment:
            cache = attachment.new_cache(way == "host", ids.shape[1] + RESERVE)
            cache.begin_query(QueryState(Phase.PREFILL))

            def ask(cache: Any, last: int) -> None:
                cache.compute_reduced_keys()
                cache.begin_query(QueryState(Phase.QUESTION, answer_start=last))

            return self._prefill(ids, cache, ask)

    def _dense(self, ids: torch.Tensor) -> Row:
        from transformers import AttentionInterface, DynamicCache

        AttentionInterface.register(LOWER_RIGHT, lower_right)
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation(LOWER_RIGHT)
        try:
            return self._prefill(ids, DynamicCache(), lambda cache, last: None)
        finally:
            self.model.set_attn_implementation(before)

    def _prefill(self, ids: torch.Tensor, cache: Any, ask: Callable[[Any, int], None]) -> Row:
        n = ids.shape[1]
        settled(self.device)
        started = time.perf_counter()
        for piece in ids.split(self.piece, dim=1):
            self.model.base_model(input_ids=piece, past_key_values=cache)
        ask(cache, n + 16)
        settled(self.device)
        took = time.perf_counter() - started
        question = time.perf_counter()
        token = self._next(ids[:, :16], cache)
        settled(self.device)
        first = time.perf_counter()
        for _ in range(DECODED):
            token = self._next(token, cache)
        settled(self.device)
        each = (time.perf_counter() - first) / DECODED
        return {"seconds": took, "question_ms": 1e3 * (first - question), "token_ms": 1e3 * each}

    def _next(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        logits = self.model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits
        return logits[:, -1:].argmax(dim=-1)

    def _index(self, ids: torch.Tensor) -> Row:
        layers = (len(self.model.base_model.layers) + 1) // 2
        settled(self.device)
        started = time.perf_counter()
        for piece in ids.split(8 * SEGMENT, dim=1):
            whole = piece.shape[1] // SEGMENT * SEGMENT
            for batch in (piece[:, :whole].reshape(-1, SEGMENT), piece[:, whole:]):
                if batch.numel():
                    compute_hidden_states(self.model, batch, layers)
        settled(self.device)
        return {"seconds": time.perf_counter() - started}


def text_rows(arguments: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """A row for each length and way."""
    model = random_model(arguments.shape, device)
    method = resolve_preset(load_preset(arguments.preset, arguments.overrides)).method
    reader, vocabulary = Reader(model, method, arguments.piece), model.config.vocab_size
    longest = {"dense": tokens(arguments.dense)}
    for length in (4096, *map(tokens, arguments.lengths.split(","))):
        ids = torch.randint(0, vocabulary, (1, min(length, arguments.most)), device=device)
        for way in arguments.ways.split(","):
            if length > longest.get(way, length):
                continue
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(device)
            row = {"part": "texts", "shape": arguments.shape, "way": way, "tokens": ids.shape[1]}
            try:
                found = reader.read(way, ids)
                row |= found | {"tokens_per_s": ids.shape[1] / found["seconds"]}
            except torch.OutOfMemoryError:
                row["failed"] = "out of memory"
            except Exception as error:  # one way must not hide the others
                row["failed"] = f"{type(error).__name__}: {str(error)[:160]}"
            if device.type == "cuda":
                row["peak_gib"] = torch.cuda.max_memory_allocated(device) / (1 << 30)
            yield row | {"warm_up": length == 4096}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=["kernels", "texts"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="meta-llama/Llama-3.1-8B-Instruct")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--lengths", default="32k,128k")
    parser.add_argument("--dense", default="128k", help="longest text that is read densely")
    parser.add_argument("--piece", type=int, default=4096, help="tokens given to the model at once")
    parser.add_argument("--most", type=int, default=1 << 40, help="cuts every text to this length")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    device, name = named_device(arguments.device)
    cuda = device.type == "cuda"
    where = {"device": name, "torch": torch.__version__}
    with torch.inference_mode():
        kernels = arguments.part == "kernels"
        made = kernel_rows(device, 32, 8, 128) if kernels else text_rows(arguments, device)
        # One by one: a run that is stopped has written the rows before.
        for row in chain([ceilings(device, cuda)], made):
            row = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
            append_line(arguments.out, row | where)
            print(row, flush=True)


if __name__ == "__main__":
    main()
