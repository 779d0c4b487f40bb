"""Finds the evidence of an answer from the KV cache by the attention to tokens and sentences.

The weight of a token in a layer is its attention probability, recomputed from each `ChunkTrace`,
times the norm of its value vector as a multiple of their mean (Kobayashi et al., "Attention is Not
Only a Weight", 2020), maximised over heads and over the tokens of the question or the answer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.algebra import apply_soft_cap
from esa_cli.attention.rope import Rope
from esa_cli.attention.step import ChunkTrace, Positions
from esa_cli.documents.document import LONGEST
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import Book
from esa_cli.qa.finding.words import find_sentence_spans

if TYPE_CHECKING:
    from esa_cli.qa.answering.session import Session

BLOCK_ELEMENTS = 4 << 20
"""The maximum number of log-probabilities in memory at once (16 MB)."""
NEAR = -1
"""The key of the local tokens in a cache whose other keys are numbers of selections."""
FOUND = 1.3
"""The weight of the best sentence below which documents seem to contain no answer."""
JOIN = 0.5
"""A sentence with this share of the weight of a passage's heaviest sentence joins the passage."""


class AttentionToTokens(NamedTuple):
    """The attention of some query heads to document tokens, for one chunk of queries in a layer.

    Args:
        heads: which of the H. start: position of the first of the C queries.
        at: (n,) positions of the tokens. logs: (h, C, n) float32 logarithms of probabilities.
        lengths: (g, n) norms of values as multiples of their mean; h / g heads share a key head."""

    heads: range
    start: int
    at: Tensor
    logs: Tensor
    lengths: Tensor


class AttentionRecorder:
    """A `trace` callback of `Session.ask` that weighs document tokens by the attention they get.

    Args:
        layers: indices of the layers that run the method; their middle half counts.
        tokens: N, the tokens in the cache before the question."""

    def __init__(self, layers: Sequence[int], tokens: int) -> None:
        outer = len(layers) // 4
        self.layers = layers[outer : len(layers) - outer]
        self.tokens = tokens
        self._last = (-1, -1)
        self.reset_weights()

    def reset_weights(self) -> None:
        self._asked = torch.zeros(len(self.layers), self.tokens)
        self._answered = torch.zeros(len(self.layers), self.tokens)
        self._rotated: dict[tuple[int, int], tuple[Rope, Tensor, Tensor, Tensor, Tensor]] = {}
        """Per layer and part: rotation, tokens (n,), positions (n,), keys, lengths of values."""

    @property
    def question_token_weights(self) -> Tensor:
        """The weights (N,) of N document tokens by the attention of the question's tokens alone."""
        return self._asked.mean(dim=0)

    @property
    def token_weights(self) -> Tensor:
        """The weights (N,) of N document tokens by the attention of question and answer."""
        return torch.maximum(self._asked, self._answered).mean(dim=0)

    @torch.inference_mode()
    def __call__(self, trace: ChunkTrace) -> None:
        if trace.start < self.tokens:
            return
        if not trace.decoding and (trace.layer, trace.start) <= self._last:
            # A new forward call of many words: an earlier turn, or the question, also once more.
            self.reset_weights()
        self._last = (trace.layer, trace.start)
        if trace.layer not in self.layers:
            return
        row = (self._answered if trace.decoding else self._asked)[self.layers.index(trace.layer)]
        for share in self.compute_attention_to_documents(trace):
            groups, at = share.lengths.shape[0], share.at.cpu()
            top = share.logs.view(groups, -1, len(at)).amax(dim=1).exp_()
            row[at] = torch.maximum(row[at], (top * share.lengths).amax(dim=0).cpu())

    def compute_attention_to_documents(self, trace: ChunkTrace) -> Iterator[AttentionToTokens]:
        """Yields the attention of a chunk of queries to selected, then to local document tokens."""
        heads = range(trace.queries.shape[0])
        joint = isinstance(trace.far, Tensor)
        for head, far in enumerate(trace.list_far_positions()):
            count = int((far < self.tokens).sum())
            if count:
                own = heads if joint else range(head, head + 1)
                places = trace.far_positions[head]
                yield from self._compute_token_attention(trace, head, own, far[:count], places)
        first = trace.start - trace.local
        if first < self.tokens:
            at = torch.arange(first, self.tokens, device=trace.queries.device)
            yield from self._compute_token_attention(trace, NEAR, heads, at, trace.near_positions)

    def _compute_token_attention(
        self, trace: ChunkTrace, cache_key: int, query_heads: range, token_indices: Tensor,
        positions: Positions,
    ) -> Iterator[AttentionToTokens]:  # fmt: skip
        """Yields the attention of blocks of queries to the document tokens at `token_indices`."""
        device, which = trace.queries.device, slice(query_heads.start, query_heads.stop)
        query, key = positions.query.to(device), positions.key[: token_indices.shape[0]].to(device)
        keys, lengths = self._get_keys_and_value_norms(trace, cache_key, token_indices, key)
        if len(query_heads) < trace.queries.shape[0]:
            group = query_heads.start * trace.store.heads // trace.queries.shape[0]
            keys, lengths = keys[group : group + 1], lengths[group : group + 1]
        queries = trace.scaled[which] * trace.scale
        step = max(1, BLOCK_ELEMENTS // (len(query_heads) * token_indices.shape[0]))
        for low in range(0, queries.shape[1], step):
            rows = slice(low, low + step)
            logits = _compute_logits(trace.rope.rotate(queries[:, rows], query[rows]), keys)
            limit = trace.max_distance if cache_key == NEAR else None
            if limit is not None and int(query[rows].max() - key.min()) > limit:
                # Keys that are further away are attended to at the encoding's largest distance.
                still, _ = trace.store.gather(token_indices)
                still = trace.rope.rotate(still, torch.zeros_like(key))
                limits = torch.full_like(query[rows], limit)
                away = _compute_logits(trace.rope.rotate(queries[:, rows], limits), still)
                logits = torch.where(query[rows, None] - key[None] > limit, away, logits)
            logs = apply_soft_cap(logits.float(), trace.cap).sub_(trace.lse[which, rows, None])
            yield AttentionToTokens(query_heads, trace.start + low, token_indices, logs, lengths)

    def _get_keys_and_value_norms(
        self, trace: ChunkTrace, cache_key: int, token_indices: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the rotated keys (G, n, D) of tokens and the norms (G, n) of values, cached."""
        known = self._rotated.get((trace.layer, cache_key))
        rope, store = trace.rope, trace.store
        has_tokens = known and rope is known[0] and token_indices.equal(known[1])
        if known and has_tokens and key_positions.equal(known[2]):
            return known[3:]
        local = (int(token_indices[0]), int(token_indices[-1]) + 1)
        keys, values = store.span(*local) if cache_key == NEAR else store.gather(token_indices)
        lengths = values.float().norm(dim=-1)
        lengths /= lengths.mean().clamp_min(1e-30)
        keys = rope.rotate(keys, key_positions)
        self._rotated[trace.layer, cache_key] = rope, token_indices, key_positions, keys, lengths
        return keys, lengths


def _compute_logits(queries: Tensor, keys: Tensor) -> Tensor:
    """Returns the dot products (h, C, n) of queries (h, C, D) and keys (g, n, D) of g key heads."""
    heads, chunk, dim = queries.shape
    return (queries.reshape(keys.shape[0], -1, dim) @ keys.transpose(1, 2)).view(heads, chunk, -1)


def answer_from_kv_cache(
    session: Session, question: str, books: Sequence[Book], passage_count: int, **options: Any
) -> tuple[Reply, Tensor]:
    """Answers a question from the KV cache; also returns the weights (N,) of N document tokens."""
    recorder = AttentionRecorder(session.attachment.method_layers, session.document_tokens)
    reply = session.ask(question, trace=recorder, **options)
    passages, found = find_evidence_passages(recorder, books, passage_count)
    return replace(reply, evidence=passages, found=found), recorder.token_weights


def find_evidence_passages(
    recorder: AttentionRecorder, books: Sequence[Book], passage_count: int
) -> tuple[tuple[Passage, ...], bool]:
    """Returns the passages with most attention, and whether they seem to contain an answer."""
    weights = recorder.token_weights
    total = sum(float(weights[book.rows.start : book.rows.stop].sum()) for book in books)
    evidence = tuple(
        Passage.cut_from(books[one.book].document, one.start, one.end, weight=one.weight / total)
        for one in find_attended_passages(weights, books, passage_count)
    )
    return evidence, get_max_sentence_weight(recorder.question_token_weights, books) >= FOUND


def get_max_sentence_weight(token_weights: Tensor, books: Sequence[Book]) -> float:
    """Returns the largest weight of a sentence; 1.0: a head of each layer attends to it alone."""
    sentences = [_sum_sentence_weights(book, token_weights) for book in books]
    return max((weight for one in sentences for weight in one.values()), default=0.0)


@dataclass
class _AttendedPassage:
    """A passage with its attention weight and the largest weight of its sentences."""

    book: int
    start: int
    end: int
    weight: float
    top: float

    def try_add_sentence(
        self, book_index: int, start: int, end: int, sentence_weight: float, text: str
    ) -> bool:
        """Adds a sentence if it is adjacent in the paragraph and heavy; returns whether it did."""
        if book_index != self.book or sentence_weight < JOIN * self.top:
            return False
        first, last = min(start, self.start), max(end, self.end)
        between = text[self.end : start] if start >= self.end else text[end : self.start]
        if last - first > LONGEST or between.strip() or "\n\n" in between:
            return False
        self.start, self.end, self.weight = first, last, self.weight + sentence_weight
        return True


def find_attended_passages(
    token_weights: Tensor, books: Sequence[Book], passage_count: int
) -> list[_AttendedPassage]:
    """Returns the passages with the largest sums of token weights, which do not overlap."""
    sentences = [
        (weight, -number, -start, end)
        for number, book in enumerate(books)
        for (start, end), weight in _sum_sentence_weights(book, token_weights).items()
    ]
    out: list[_AttendedPassage] = []
    for weight, number, start, end in sorted(sentences, reverse=True) if passage_count > 0 else ():
        book, start = -number, -start
        text = books[book].document.text
        if not any(passage.try_add_sentence(book, start, end, weight, text) for passage in out):
            if len(out) < passage_count:
                out.append(_AttendedPassage(book, start, end, weight, weight))
            elif weight < JOIN * out[-1].top:
                break
    return sorted(out, key=lambda passage: -passage.weight)


def _sum_sentence_weights(book: Book, token_weights: Tensor) -> dict[tuple[int, int], float]:
    text, weights = book.document.text, token_weights[book.rows.start : book.rows.stop]
    sentences, out = find_sentence_spans(text), dict[tuple[int, int], float]()
    starts = [start for start, _ in sentences]
    at = torch.nonzero(weights > 0)[:, 0]
    for (start, end), weight in zip(book.spans[at].tolist(), weights[at].tolist(), strict=True):
        # A token may begin with the space before its word, which belongs to the sentence before.
        while start < end - 1 and text[start].isspace():
            start += 1
        if sentences:
            span = sentences[max(0, bisect_right(starts, start) - 1)]
            out[span] = out.get(span, 0.0) + weight
    return out
