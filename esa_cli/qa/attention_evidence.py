"""Evidence of an answer from the KV cache: the attention to tokens and sentences of documents.

The weight of a token in a layer is its attention probability times the norm of its value vector
(Kobayashi et al., "Attention is Not Only a Weight", 2020), maximised over heads and over the tokens
of the question or the answer. Norms of value vectors are divided by their mean. Probabilities are
recomputed from the trace of each chunk. benchmarks/NOTES.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.algebra import apply_soft_cap
from esa_cli.attention.rope import Rope
from esa_cli.attention.step import ChunkTrace, Positions
from esa_cli.documents.document import LONGEST, SentenceSplitter
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.evidence import get_book_weights
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import Book

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


class AttentionShare(NamedTuple):
    """The attention weights of some query heads on document tokens, for one chunk in one layer.

    Args:
        heads: which of the H. start: position of the first of the C queries.
        at: (n,) positions of the tokens. logs: (h, C, n) float32 logarithms of probabilities.
        lengths: (g, n) norms of values as multiples of their mean; h / g heads share a key head."""

    heads: range
    start: int
    at: Tensor
    logs: Tensor
    lengths: Tensor


class AttentionWeights:
    """Weighs document tokens by the attention of the last question. An instance is a `trace`
    callback for `Session.ask`.

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
        """Resets the weights of all tokens to zero."""
        self._asked = torch.zeros(len(self.layers), self.tokens)
        self._answered = torch.zeros(len(self.layers), self.tokens)
        self._rotated: dict[tuple[int, int], tuple[Rope, Tensor, Tensor, Tensor, Tensor]] = {}
        """Per layer and part: rotation, tokens (n,), positions (n,), keys, lengths of values."""

    @property
    def question_weights(self) -> Tensor:
        """The weights (N,) of document tokens by the attention of the question's tokens alone."""
        return self._asked.mean(dim=0)

    @property
    def weights(self) -> Tensor:
        """The weights (N,) of document tokens by the attention of question and answer."""
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
        for share in self.compute_attention_shares(trace):
            groups, at = share.lengths.shape[0], share.at.cpu()
            top = share.logs.view(groups, -1, len(at)).amax(dim=1).exp_()
            row[at] = torch.maximum(row[at], (top * share.lengths).amax(dim=0).cpu())

    def compute_attention_shares(self, trace: ChunkTrace) -> Iterator[AttentionShare]:
        """Yields the attention to document tokens, to selected before local tokens."""
        heads = range(trace.queries.shape[0])
        joint = isinstance(trace.far, Tensor)
        for head, far in enumerate(trace.far_tokens_by_head):
            count = int((far < self.tokens).sum())
            if count:
                own = heads if joint else range(head, head + 1)
                places = trace.far_positions[head]
                yield from self._compute_shares_of_tokens(trace, head, own, far[:count], places)
        first = trace.start - trace.local
        if first < self.tokens:
            at = torch.arange(first, self.tokens, device=trace.queries.device)
            yield from self._compute_shares_of_tokens(trace, NEAR, heads, at, trace.near_positions)

    def _compute_shares_of_tokens(
        self, trace: ChunkTrace, part: int, heads: range, token_indices: Tensor, places: Positions
    ) -> Iterator[AttentionShare]:
        """Yields the attention to n document tokens at `token_indices`, in blocks of queries."""
        device, which = trace.queries.device, slice(heads.start, heads.stop)
        query, key = places.query.to(device), places.key[: token_indices.shape[0]].to(device)
        keys, lengths = self._rotate_keys(trace, part, token_indices, key)
        if len(heads) < trace.queries.shape[0]:
            group = heads.start * trace.store.heads // trace.queries.shape[0]
            keys, lengths = keys[group : group + 1], lengths[group : group + 1]
        queries = trace.scaled[which] * trace.scale
        step = max(1, BLOCK_ELEMENTS // (len(heads) * token_indices.shape[0]))
        for low in range(0, queries.shape[1], step):
            rows = slice(low, low + step)
            logits = _compute_head_products(trace.rope.rotate(queries[:, rows], query[rows]), keys)
            limit = trace.max_distance
            if part == NEAR and limit is not None and int(query[rows].max() - key.min()) > limit:
                # Keys that are further away are attended to at the encoding's largest distance.
                still, _ = trace.store.gather(token_indices)
                still = trace.rope.rotate(still, torch.zeros_like(key))
                limits = torch.full_like(query[rows], limit)
                away = _compute_head_products(trace.rope.rotate(queries[:, rows], limits), still)
                logits = torch.where(query[rows, None] - key[None] > limit, away, logits)
            logs = apply_soft_cap(logits.float(), trace.cap).sub_(trace.lse[which, rows, None])
            yield AttentionShare(heads, trace.start + low, token_indices, logs, lengths)

    def _rotate_keys(
        self, trace: ChunkTrace, part: int, token_indices: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the rotated keys (G, n, D) of tokens, and the norms (G, n) of value vectors. Both
        are cached, because tokens of an answer often attend to the same tokens."""
        known = self._rotated.get((trace.layer, part))
        rope, store = trace.rope, trace.store
        has_tokens = known and rope is known[0] and token_indices.equal(known[1])
        if known and has_tokens and positions.equal(known[2]):
            return known[3:]
        local = (int(token_indices[0]), int(token_indices[-1]) + 1)
        keys, values = store.span(*local) if part == NEAR else store.gather(token_indices)
        lengths = values.float().norm(dim=-1)
        lengths /= lengths.mean().clamp_min(1e-30)
        keys = rope.rotate(keys, positions)
        self._rotated[trace.layer, part] = rope, token_indices, positions, keys, lengths
        return keys, lengths


def _compute_head_products(q: Tensor, k: Tensor) -> Tensor:
    """Multiplies the queries q (h, C, D) of h heads with the keys k (g, n, D) of g heads."""
    heads, chunk, dim = q.shape
    return (q.reshape(k.shape[0], -1, dim) @ k.transpose(1, 2)).view(heads, chunk, -1)


def reply_from_kv_cache(
    session: Session, question: str, books: Sequence[Book], evidence: int, **asking: Any
) -> tuple[Reply, Tensor]:
    """Answers a question from the KV cache; also returns the weights (N,) of all tokens."""
    weights = AttentionWeights(session.attachment.method_layers, session.document_tokens)
    reply = session.ask(question, trace=weights, **asking)
    passages, found = find_evidence_passages(weights, books, evidence)
    return replace(reply, evidence=passages, found=found), weights.weights


def find_evidence_passages(
    attention: AttentionWeights, books: Sequence[Book], count: int
) -> tuple[tuple[Passage, ...], bool]:
    """Returns the heaviest passages, and whether the documents seem to contain the answer."""
    weights = attention.weights
    total = sum(float(get_book_weights(book, weights).sum()) for book in books)
    evidence = tuple(
        Passage.cut_from(books[one.book].document, one.start, one.end, weight=one.weight / total)
        for one in find_heavy_passages(weights, books, count)
    )
    return evidence, weigh_heaviest_sentence(attention.question_weights, books) >= FOUND


def weigh_heaviest_sentence(question_weights: Tensor, books: Sequence[Book]) -> float:
    """Returns the weight of the best sentence by the question's attention (N,). The weight is 1.0
    if in every layer some head pays all its attention to one token of the sentence."""
    sentences = [_weigh_sentences(book, get_book_weights(book, question_weights)) for book in books]
    return max((weight for one in sentences for weight in one.values()), default=0.0)


@dataclass
class _HeavyPassage:
    """A passage of a document, with its weight and with the weight of its heaviest sentence."""

    book: int
    start: int
    end: int
    weight: float
    top: float

    def try_add_sentence(self, book: int, start: int, end: int, weight: float, text: str) -> bool:
        """Adds an adjacent sentence of the paragraph to the passage if the sentence is heavy
        enough. Returns whether the sentence was added."""
        if book != self.book or weight < JOIN * self.top:
            return False
        first, last = min(start, self.start), max(end, self.end)
        between = text[self.end : start] if start >= self.end else text[end : self.start]
        if last - first > LONGEST or between.strip() or "\n\n" in between:
            return False
        self.start, self.end, self.weight = first, last, self.weight + weight
        return True


def find_heavy_passages(weights: Tensor, books: Sequence[Book], count: int) -> list[_HeavyPassage]:
    """Returns the `count` passages with the largest sums of token weights, without overlaps."""
    sentences = [
        (weight, -number, -start, end)
        for number, book in enumerate(books)
        for (start, end), weight in _weigh_sentences(book, get_book_weights(book, weights)).items()
    ]
    out: list[_HeavyPassage] = []
    for weight, number, start, end in sorted(sentences, reverse=True) if count > 0 else ():
        book, start = -number, -start
        text = books[book].document.text
        if not any(passage.try_add_sentence(book, start, end, weight, text) for passage in out):
            if len(out) < count:
                out.append(_HeavyPassage(book, start, end, weight, weight))
            elif not out or weight < JOIN * out[-1].top:
                break
    return sorted(out, key=lambda passage: -passage.weight)


def _weigh_sentences(book: Book, weights: Tensor) -> dict[tuple[int, int], float]:
    """Sums the weights (n,) of a document's tokens over each sentence."""
    text = book.document.text
    sentences, out = SentenceSplitter(text), dict[tuple[int, int], float]()
    at = torch.nonzero(weights > 0)[:, 0]
    for (start, end), weight in zip(book.spans[at].tolist(), weights[at].tolist(), strict=True):
        # A token may begin with the space before its word, which belongs to the sentence before.
        while start < end - 1 and text[start].isspace():
            start += 1
        span = sentences.find_sentence_around(start)
        if span[0] < span[1]:
            out[span] = out.get(span, 0.0) + weight
    return out
