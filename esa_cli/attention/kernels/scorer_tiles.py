"""Eqs. (3)-(4) on reduced keys as two Triton kernels: the C x M products are never stored.

    query_maxima    each query's maximum over M: tiles of products, reduced over their tokens
    chunk_maxima    each token's maximum over the chunk of products less their query's maximum

Both compute the same tiles (QUERIES, TOKENS) of products in the same order, in float32 from numbers
of the keys' dtype. Keys are read where they are: a table (3, blocks) has the address, tokens and
offset into M of each block of rows, so that a store's segments need one launch. `triton_scorer`
launches them.

    queries     (C', R') padded with zeros to whole tiles       scales  (C',), read if SCALED
    maxima      (C',), inf for padding                          out     (M,)
    numbers     R of a key; EVEN if R = R'                      stride  of the keys' rows
    WHOLE       R' = NUMBERS: one product for a tile            ALIGNED rows start at 16 bytes
"""

import triton
import triton.language as tl


@triton.jit
def load_queries(queries, query, first, width, NUMBERS: tl.constexpr):
    """(QUERIES, NUMBERS); queries are padded to whole tiles of `width` numbers."""
    number = first + tl.arange(0, NUMBERS)
    return tl.load(queries + query[:, None] * width + number[None, :])


@triton.jit
def load_keys(
    keys, token, inside, first, numbers, stride, NUMBERS: tl.constexpr, EVEN: tl.constexpr
):
    """(NUMBERS, TOKENS); 0 for tokens that are not `inside`, and beyond a key's `numbers`."""
    number = first + tl.arange(0, NUMBERS)
    at = keys + token[None, :].to(tl.int64) * stride + number[:, None]
    if EVEN:
        return tl.load(at, mask=inside[None, :], other=0.0)
    return tl.load(at, mask=inside[None, :] & (number < numbers)[:, None], other=0.0)


@triton.jit
def multiply(q, k, sums, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """sums + q k, float32. WIDEN: for the interpreter, which takes bfloat16 for integers."""
    if WIDEN:
        q, k = q.to(tl.float32), k.to(tl.float32)
    return tl.dot(q, k, sums, input_precision=PRECISION)


@triton.jit
def multiply_parts(
    queries, query, keys, token, inside, sums, width, numbers, stride,
    NUMBERS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """sums + q k of keys that are wider than a tile, NUMBERS of each at a time."""
    for first in range(0, width, NUMBERS):
        q = load_queries(queries, query, first, width, NUMBERS)
        k = load_keys(keys, token, inside, first, numbers, stride, NUMBERS, EVEN)
        sums = multiply(q, k, sums, PRECISION, WIDEN)
    return sums


@triton.jit
def block_keys(table, block, element: tl.constexpr, ALIGNED: tl.constexpr):
    """The address of a block's first key."""
    keys = tl.load(table + block).to(tl.pointer_type(element))
    if ALIGNED:
        keys = tl.multiple_of(keys, 16)
    return keys


@triton.jit
def query_maxima(
    queries, scales, table, partial, blocks, chunk, width, numbers, stride,
    QUERIES: tl.constexpr, TOKENS: tl.constexpr, NUMBERS: tl.constexpr, WHOLE: tl.constexpr,
    EVEN: tl.constexpr, ALIGNED: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Program (query tile, split, block): maxima over every `splits`th tile of a block's tokens."""
    split, block = tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(1)
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    keys = block_keys(table, block, queries.dtype.element_ty, ALIGNED)
    rows = tl.load(table + blocks + block).to(tl.int32)
    best = tl.full((QUERIES, TOKENS), float("-inf"), tl.float32)
    if WHOLE:
        q = load_queries(queries, query, 0, width, NUMBERS)
    for start in range(split * TOKENS, rows, splits * TOKENS):
        token = start + tl.arange(0, TOKENS)
        inside = token < rows
        sums = tl.zeros((QUERIES, TOKENS), tl.float32)
        if WHOLE:
            k = load_keys(keys, token, inside, 0, numbers, stride, NUMBERS, EVEN)
            sums = multiply(q, k, sums, PRECISION, WIDEN)
        else:
            sums = multiply_parts(
                queries, query, keys, token, inside, sums, width, numbers, stride,
                NUMBERS, EVEN, PRECISION, WIDEN,
            )  # fmt: skip
        best = tl.maximum(best, tl.where(inside[None, :], sums, float("-inf")))
    maxima = tl.max(best, axis=1)
    if SCALED:
        maxima *= tl.load(scales + query)
    tl.store(partial + (block * splits + split) * chunk + query, maxima)


@triton.jit
def chunk_maxima(
    queries, scales, table, maxima, out, blocks, chunk, width, numbers, stride,
    QUERIES: tl.constexpr, TOKENS: tl.constexpr, NUMBERS: tl.constexpr, WHOLE: tl.constexpr,
    EVEN: tl.constexpr, ALIGNED: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Program (token tile, block): the tile's scores over all queries."""
    start, block = tl.program_id(0) * TOKENS, tl.program_id(1)
    rows = tl.load(table + blocks + block).to(tl.int32)
    if start >= rows:
        return
    keys = block_keys(table, block, queries.dtype.element_ty, ALIGNED)
    token = start + tl.arange(0, TOKENS)
    inside = token < rows
    best = tl.full((QUERIES, TOKENS), float("-inf"), tl.float32)
    if WHOLE:
        k = load_keys(keys, token, inside, 0, numbers, stride, NUMBERS, EVEN)
    for tile in range(0, chunk, QUERIES):
        query = tile + tl.arange(0, QUERIES)
        sums = tl.zeros((QUERIES, TOKENS), tl.float32)
        if WHOLE:
            q = load_queries(queries, query, 0, width, NUMBERS)
            sums = multiply(q, k, sums, PRECISION, WIDEN)
        else:
            sums = multiply_parts(
                queries, query, keys, token, inside, sums, width, numbers, stride,
                NUMBERS, EVEN, PRECISION, WIDEN,
            )  # fmt: skip
        if SCALED:
            sums *= tl.load(scales + query)[:, None]
        best = tl.maximum(best, sums - tl.load(maxima + query)[:, None])
    offset = tl.load(table + 2 * blocks + block)
    tl.store(out + offset + token, tl.max(best, axis=0), mask=inside)
