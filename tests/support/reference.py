"""The paper's equations once more, in loops over heads and tokens and in Python's own floats.

Written from the paper, not from the package: nothing of `esa_cli` is imported here. Tensors come in
as nested lists (`plain`), q[h][c][d] and k[g][m][d]; everything is float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch

Vector = list[float]
Heads = list[list[Vector]]
INFINITY = float("inf")


def plain(x: torch.Tensor) -> Any:
    """A tensor as nested lists of float64."""
    return x.double().tolist()


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def group_of(head: int, heads: int, groups: int) -> int:
    """The key head that query head `head` reads."""
    return head // (heads // groups)


@cache
def cos_sin(position: float, dim: int, theta: float) -> list[tuple[float, float]]:
    """Of each pair's angle."""
    angles = [position * theta ** (-2 * i / dim) for i in range(dim // 2)]
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def rotate(x: Vector, position: float, theta: float = 10000.0) -> Vector:
    """RoPE with pairs (i, i + D/2), the layout of Llama in transformers."""
    half = len(x) // 2
    out = [0.0] * len(x)
    for i, (cos, sin) in enumerate(cos_sin(position, len(x), theta)):
        out[i] = x[i] * cos - x[i + half] * sin
        out[i + half] = x[i + half] * cos + x[i] * sin
    return out


def rotate_heads(q: Heads, position: float, theta: float = 10000.0) -> Heads:
    """Every vector of q at the same position."""
    return [[rotate(x, position, theta) for x in head] for head in q]


def softmax_over(
    logits: Sequence[float], values: Sequence[Vector], dim: int
) -> tuple[Vector, float]:
    """Sum of values weighted by softmax(logits), and the log of the softmax's denominator."""
    if not logits:
        return [0.0] * dim, -INFINITY
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    total = sum(weights)
    out = [sum(w * v[d] for w, v in zip(weights, values, strict=True)) / total for d in range(dim)]
    return out, top + math.log(total)


def attend(
    q: Heads, k: Heads, v: Heads, causal: bool, scale: float
) -> tuple[Heads, list[list[float]]]:
    """Attention and its log-sum-exp; with `causal` the last query sees all keys."""
    outs: Heads = []
    lses: list[list[float]] = []
    for h, head in enumerate(q):
        keys = k[group_of(h, len(q), len(k))]
        values = v[group_of(h, len(q), len(k))]
        outs.append([])
        lses.append([])
        for c, query in enumerate(head):
            seen = len(keys) - len(head) + c + 1 if causal else len(keys)
            logits = [scale * dot(query, keys[m]) for m in range(seen)]
            out, lse = softmax_over(logits, values[:seen], len(query))
            outs[-1].append(out)
            lses[-1].append(lse)
    return outs, lses


def head_sum(q: Heads, k: Heads, c: int, m: int) -> float:
    """Eq. (3): f_s(m; c), summed over all H heads one by one."""
    return sum(dot(q[h][c], k[group_of(h, len(q), len(k))][m]) for h in range(len(q)))


def chunk_maximum(f: list[list[float]]) -> list[float]:
    """Eq. (4): f[c][m] less each query's maximum over M, then the maximum over the chunk."""
    middle = len(f[0])
    tops = [max(row) for row in f]
    return [max(f[c][m] - tops[c] for c in range(len(f))) for m in range(middle)]


def sum_scores(q: Heads, k: Heads) -> list[float]:
    """Eqs. (3)-(4) over all keys given."""
    return chunk_maximum(
        [[head_sum(q, k, c, m) for m in range(len(k[0]))] for c in range(len(q[0]))]
    )


def fold_query(q: Heads, c: int, groups: int) -> Vector:
    """Query c's heads added up per key head, one key head after the other."""
    dim = len(q[0][0])
    out = [0.0] * (groups * dim)
    for h in range(len(q)):
        for d in range(dim):
            out[group_of(h, len(q), groups) * dim + d] += q[h][c][d]
    return out


def flat_key(k: Heads, m: int) -> Vector:
    return [x for head in k for x in head[m]]


def times(x: Vector, matrix: list[Vector]) -> Vector:
    """x (F) times matrix (F, R)."""
    return [sum(x[f] * matrix[f][r] for f in range(len(matrix))) for r in range(len(matrix[0]))]


def reduced_sum_scores(
    q: Heads, k: Heads, query_map: list[Vector], key_map: list[Vector]
) -> list[float]:
    """Eqs. (5)-(6) in place of Eq. (3), then Eq. (4)."""
    queries = [times(fold_query(q, c, len(k)), query_map) for c in range(len(q[0]))]
    keys = [times(flat_key(k, m), key_map) for m in range(len(k[0]))]
    return chunk_maximum([[dot(query, key) for key in keys] for query in queries])


def vote_scores(q: Heads, k: Heads, scale: float, rule: str, pool: str) -> list[float]:
    """Heads normalise over the keys given, then heads are put together, then the chunk."""
    chunk, middle = len(q[0]), len(k[0])
    per_query: list[list[float]] = []
    for c in range(chunk):
        votes: list[list[float]] = []
        for h in range(len(q)):
            keys = k[group_of(h, len(q), len(k))]
            logits = [scale * dot(q[h][c], key) for key in keys]
            top = max(logits)
            if rule == "softmax":
                total = sum(math.exp(x - top) for x in logits)
                votes.append([math.exp(x - top) / total for x in logits])
            else:
                votes.append([x - top for x in logits])
        together = sum if rule == "softmax" else max
        per_query.append([together(vote[m] for vote in votes) for m in range(middle)])
    if pool == "max":
        return [max(row[m] for row in per_query) for m in range(middle)]
    return [sum(row[m] for row in per_query) / chunk for m in range(middle)]


def only(k: Heads, at: Sequence[int]) -> Heads:
    """The keys (or values) at the given tokens."""
    return [[head[m] for m in at] for head in k]


def proximity(scores: Sequence[float], epsilon: int) -> list[float]:
    """Eq. (8), with M numbered from 0."""
    last = len(scores) - 1
    return [
        max(scores[w] for w in range(max(j - epsilon, 0), min(j + epsilon, last) + 1))
        for j in range(len(scores))
    ]


def top_k(scores: Sequence[float], k: int) -> list[int]:
    """The k best, the earliest among equals, in ascending order."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return sorted(order[: max(k, 0)])


@dataclass(frozen=True)
class Settings:
    """One method in plain numbers."""

    initial: int
    selected: int
    local: int
    chunk: int
    dense: int
    position: str
    distance: int
    score: str
    rotate: bool
    scale: float
    epsilon: int
    shortlist: int = 0
    rule: str = "softmax"
    pool: str = "max"
    reading: str = "select"
    maps: tuple[list[Vector], list[Vector]] | None = None


def scores_of(settings: Settings, q: Heads, keys: Heads) -> list[float]:
    """F_s of every key given, by the rule of the settings."""
    if settings.rotate:
        q = rotate_heads(q, settings.distance)

    def summed() -> list[float]:
        if settings.maps is None:
            return sum_scores(q, keys)
        return reduced_sum_scores(q, keys, *settings.maps)

    if settings.score == "sum":
        return summed()
    middle = len(keys[0])
    if not 0 < settings.shortlist < middle:
        return vote_scores(q, keys, settings.scale, settings.rule, settings.pool)
    short = top_k(summed(), settings.shortlist)
    votes = vote_scores(q, only(keys, short), settings.scale, settings.rule, settings.pool)
    out = [-INFINITY] * middle
    for place, vote in zip(short, votes, strict=True):
        out[place] = vote
    return out


def far_tokens(settings: Settings, q: Heads, k: Heads, start: int, select: bool) -> list[int]:
    """I and M_k: absolute positions, ascending, for the chunk that starts at `start`."""
    local_from = start - min(settings.local, start)
    middle_from = min(settings.initial, local_from)
    initial = list(range(middle_from))
    middle = list(range(middle_from, local_from))
    if not select or not middle or settings.selected == 0:
        return initial
    scores = proximity(scores_of(settings, q, only(k, middle)), settings.epsilon)
    return initial + [middle[i] for i in top_k(scores, settings.selected)]


def distance_between(
    settings: Settings, query: int, key: int, far: list[int], start: int, local: int
) -> float:
    """How far before the current token `query` the token `key` is taken to be."""
    if settings.position == "esa":
        return settings.distance if key in far else query - key
    if settings.position == "contiguous":
        # Far tokens stand in their order right before the local ones, as if nothing lay between.
        text = [*far, *range(start - local, start), *range(start, query + 1)]
        return text.index(query) - text.index(key)
    return query - key


def chunk_attention(
    settings: Settings, q: Heads, k: Heads, v: Heads, start: int, select: bool
) -> Heads:
    """Eq. (1) for the chunk of queries q at `start`: one softmax over [I, M_k, L, C].

    k and v hold every token from 0 on, the chunk's own included.
    """
    chunk = len(q[0])
    if start <= settings.dense:
        local, far = start, []
    else:
        local = min(settings.local, start)
        far = far_tokens(settings, q, k, start, select)
    out: Heads = []
    for h, head in enumerate(q):
        keys = k[group_of(h, len(q), len(k))]
        values = v[group_of(h, len(q), len(k))]
        out.append([])
        for c in range(chunk):
            seen = [*far, *range(start - local, start), *range(start, start + c + 1)]
            logits = []
            for key in seen:
                # Rotating the query by the distance is rotating both by their positions.
                apart = distance_between(settings, start + c, key, far, start, local)
                logits.append(settings.scale * dot(rotate(head[c], apart), keys[key]))
            result, _ = softmax_over(logits, [values[key] for key in seen], len(head[c]))
            out[-1].append(result)
    return out


def run(settings: Settings, q: Heads, k: Heads, v: Heads, start: int, last: bool = True) -> Heads:
    """The queries q of tokens start .. len(k) - 1, in chunks, the short one first."""
    stop = len(k[0])
    borders = [stop]
    while borders[0] > start:
        borders.insert(0, max(start, borders[0] - settings.chunk))
    out: Heads = [[] for _ in q]
    for low, high in pairwise(borders):
        select = settings.reading == "select" or (last and high == stop)
        piece = [head[low - start : high - start] for head in q]
        known = [head[:high] for head in k], [head[:high] for head in v]
        for h, rows in enumerate(chunk_attention(settings, piece, *known, low, select)):
            out[h].extend(rows)
    return out


def eq7_error(
    queries: list[Vector], keys: list[Vector], query_map: list[Vector], key_map: list[Vector]
) -> float:
    """Eq. (7): squared error of the reduced dot products, over every query with every key."""
    short_queries = [times(q, query_map) for q in queries]
    short_keys = [times(k, key_map) for k in keys]
    total = 0.0
    for q, short_q in zip(queries, short_queries, strict=True):
        for k, short_k in zip(keys, short_keys, strict=True):
            total += (dot(q, k) - dot(short_q, short_k)) ** 2
    return total
