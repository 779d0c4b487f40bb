"""Compiles the scoring kernels for NVIDIA GPUs, without one, and prints what they became.

A process of its own, without TRITON_INTERPRET: one JSON object a line, with the kernel, compute
capability, tile and shared memory in bytes, and counts of instructions.
"""

from __future__ import annotations

import json
import re
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from esa_cli.attention.kernels import scorer_tiles
from esa_cli.attention.kernels.scorer_operands import KeyGroup, tile_queries
from esa_cli.attention.kernels.triton_scorer import kernel_options

COUNTED = {
    "products": r"wgmma\.mma_async|mma\.sync",
    "wide": r"cp\.async\.cg|ld\.global\.v4",
    "narrow": r"ld\.global\.b16",
}
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def compiled(kernel: triton.JITFunction, capability: int, group: KeyGroup) -> dict[str, object]:
    """As `TritonScorer` would launch it for the group, on a GPU."""
    options = {**kernel_options(group), "WIDEN": False}
    of_compiler = {name: options.pop(name) for name in ("num_warps", "num_stages")}
    names, types = kernel.arg_names, {}
    if len(group.blocks) == 1:  # Triton compiles arguments that are 1 as constants
        options["blocks"] = 1
    for name in names:
        pointer = {"queries": f"*{TYPES[group.queries.rounded.dtype]}", "table": "*i64"}.get(name)
        if name in ("scales", "partial", "maxima", "out"):
            pointer = "*fp32"
        types[name] = "constexpr" if name in options else pointer or "i32"
    whole = [name for name in names if types[name][0] == "*" or name in ("width", "stride")]
    source = ASTSource(
        fn=kernel,
        signature=types,
        constexprs={(names.index(name),): value for name, value in options.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in whole},
    )
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=of_compiler)
    counts = {name: len(re.findall(what, found.asm["ptx"])) for name, what in COUNTED.items()}
    return {
        "kernel": kernel.__name__,
        "capability": capability,
        "type": types["queries"],
        "shared": found.metadata.shared,
        **counts,
    }


def main() -> None:
    cases = json.loads(sys.argv[1])
    for chunk, rank, name, blocks in cases:
        dtype = {short: dtype for dtype, short in TYPES.items()}[name]
        queries = tile_queries(torch.zeros(chunk, rank), dtype)
        group = KeyGroup(queries, [torch.zeros(300, rank, dtype=dtype)] * blocks, [0] * blocks)
        for kernel in (scorer_tiles.query_maxima, scorer_tiles.chunk_maxima):
            for capability in (80, 90):
                print(json.dumps(compiled(kernel, capability, group)), flush=True)


if __name__ == "__main__":
    main()
