"""Evidence of an answer from rows: its attention to tokens and sentences, and heat maps.

Probabilities are computed again from each chunk's trace, exp(scale * q . k - lse), at the positions
of the encoding. A token's weight in a layer is the maximum over heads and over the tokens of the
question, or of the answer, of probability times the norm of its value (Kobayashi et al., "Attention
is Not Only a Weight", 2020), norms as multiples of their mean. Its weight is the mean over the
middle half of the layers; benchmarks/NOTES.md has the measurements. A passage is one sentence or
line, or a few adjacent ones of similar weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.algebra import soft_capped
from esa_cli.attention.rope import Rope
from esa_cli.attention.step import ChunkTrace, Positions
from esa_cli.documents.sentences import LONGEST, Sentences
from esa_cli.qa.answering.reply import HeatMap, Reply, ShadedSpan
from esa_cli.qa.finding.books import Book
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import token_bounds

if TYPE_CHECKING:
    from esa_cli.qa.answering.session import Session


BLOCK_ELEMENTS = 4 << 20
"""Most logarithms in memory together (16 MB)."""
NEAR = -1
"""Index of the local tokens, where far ones have the index of their selection."""


class Share(NamedTuple):
    """Attention of some query heads to some of the documents' tokens in one chunk of one layer.

    `heads`: which of the H. `start`: position of the first of the C queries. `at`: (n,) positions
    of the tokens. `logs`: (h, C, n) float32 logarithms of probabilities. `lengths`: (g, n) norms of
    the values as multiples of their mean; h / g heads share a key head.
    """

    heads: range
    start: int
    at: Tensor
    logs: Tensor
    lengths: Tensor


class _RotatedKeys(NamedTuple):
    """Rotated keys (G, n, D) of the tokens at (n,), standing at `place` (n,), and the lengths
    (G, n) of their values."""

    at: Tensor
    place: Tensor
    rope: Rope
    keys: Tensor
    lengths: Tensor


class AttentionWeights:
    """Weights of the documents' tokens; give it to `Session.ask` as `trace`.

    It has the last question's weights, without its survey pass. Read them before the cache
    changes.

    Args:
        layers: indices of those that run the method; the middle half of them counts. tokens: N, how
            many are cached before the question.
    """

    def __init__(self, layers: Sequence[int], tokens: int) -> None:
        outer = len(layers) // 4
        self.layers = layers[outer : len(layers) - outer]
        self.tokens = tokens
        self._last = (-1, -1)
        self.clear()

    def clear(self) -> None:
        """Drops the weights."""
        self._asked = torch.zeros(len(self.layers), self.tokens)
        self._answered = torch.zeros(len(self.layers), self.tokens)
        self._rotated_keys: dict[tuple[int, int], _RotatedKeys] = {}
        self._waiting: list[ChunkTrace] = []

    @property
    def question_weights(self) -> Tensor:
        """(N,) weights for the question's tokens; 0 where none attended to it."""
        self._catch_up()
        return self._asked.mean(dim=0)

    @property
    def weights(self) -> Tensor:
        """(N,) weights for the tokens of question and answer."""
        self._catch_up()
        return torch.maximum(self._asked, self._answered).mean(dim=0)

    def __call__(self, trace: ChunkTrace) -> None:
        if trace.start < self.tokens:
            return
        if not trace.decoding and (trace.layer, trace.start) <= self._last:
            # A forward call of many words: turns before the question, the question, or it again.
            self.clear()
        self._last = (trace.layer, trace.start)
        if trace.layer in self.layers:
            self._waiting.append(trace)
            if trace.decoding:
                self._catch_up()

    @torch.inference_mode()
    def _catch_up(self) -> None:
        """Adds the traces that wait; those of a survey pass were dropped."""
        waiting, self._waiting = self._waiting, []
        for trace in waiting:
            for share in self.shares(trace):
                self.note(trace, share)

    def note(self, trace: ChunkTrace, share: Share) -> None:
        """Adds one share."""
        groups, at = share.lengths.shape[0], share.at.cpu()
        row = (self._answered if trace.decoding else self._asked)[self.layers.index(trace.layer)]
        top = share.logs.view(groups, -1, len(at)).amax(dim=1).exp_()
        row[at] = torch.maximum(row[at], (top * share.lengths).amax(dim=0).cpu())

    def shares(self, trace: ChunkTrace) -> Iterator[Share]:
        """Attention to the documents' tokens: the far ones, for each head where each has its own,
        then the local ones."""
        every = range(trace.queries.shape[0])
        joint = isinstance(trace.far, Tensor)
        for head, far in enumerate(trace.far_rows):
            held = int((far < self.tokens).sum())
            if held:
                heads = every if joint else range(head, head + 1)
                yield from self._taken(trace, head, heads, far[:held], trace.far_positions[head])
        first = trace.start - trace.local
        if first < self.tokens:
            at = torch.arange(first, self.tokens, device=trace.queries.device)
            yield from self._taken(trace, NEAR, every, at, trace.near_positions)

    def _taken(
        self, trace: ChunkTrace, part: int, heads: range, at: Tensor, place: Positions
    ) -> Iterator[Share]:
        """Shares of the tokens at (n,), the first of those that `place` has keys for; some queries
        at a time."""
        device, which = trace.queries.device, slice(heads.start, heads.stop)
        query, key = place.query.to(device), place.key[: at.shape[0]].to(device)
        _, _, _, keys, lengths = self._rotated(trace, part, at, key)
        if len(heads) < trace.queries.shape[0]:
            group = heads.start * trace.store.heads // trace.queries.shape[0]
            keys, lengths = keys[group : group + 1], lengths[group : group + 1]
        queries = trace.scaled[which] * trace.scale
        most = max(1, BLOCK_ELEMENTS // (len(heads) * at.shape[0]))
        for low in range(0, queries.shape[1], most):
            rows = slice(low, low + most)
            logits = _products(trace.rope.rotate(queries[:, rows], query[rows]), keys)
            limit = trace.max_distance
            if part == NEAR and limit is not None and int(query[rows].max() - key.min()) > limit:
                # Keys that are further away are attended to at the encoding's largest distance.
                still = trace.rope.rotate(trace.store.gather(at)[0], torch.zeros_like(key))
                limits = torch.full_like(query[rows], limit)
                away = _products(trace.rope.rotate(queries[:, rows], limits), still)
                logits = torch.where(query[rows, None] - key[None] > limit, away, logits)
            logs = soft_capped(logits.float(), trace.cap).sub_(trace.lse[which, rows, None])
            yield Share(heads, trace.start + low, at, logs, lengths)

    def _rotated(self, trace: ChunkTrace, part: int, at: Tensor, place: Tensor) -> _RotatedKeys:
        """Kept while the answer's tokens see the same ones at the same places."""
        known, rope = self._rotated_keys.get((trace.layer, part)), trace.rope
        if known and rope is known.rope and at.equal(known.at) and place.equal(known.place):
            return known
        near = (int(at[0]), int(at[-1]) + 1)
        keys, values = trace.store.span(*near) if part == NEAR else trace.store.gather(at)
        lengths = values.float().norm(dim=-1)
        lengths /= lengths.mean().clamp_min(1e-30)
        rotated = _RotatedKeys(at, place, rope, rope.rotate(keys, place), lengths)
        self._rotated_keys[trace.layer, part] = rotated
        return rotated


def _products(q: Tensor, k: Tensor) -> Tensor:
    """q (h, C, D) . k (g, n, D) -> (h, C, n); h / g query heads share a key head."""
    heads, chunk, dim = q.shape
    return (q.reshape(k.shape[0], -1, dim) @ k.transpose(1, 2)).view(heads, chunk, -1)


FOUND = 1.3
"""Documents whose best sentence has less `strength` than this may not contain the answer. Chosen so
that hardly any answer that is there is doubted: benchmarks/NOTES.md."""
JOIN = 0.5
"""An adjacent sentence joins a passage with at least this share of its heaviest one's weight."""


@dataclass
class _Passage:
    """Characters [start, end) of a book, their weight, and that of the heaviest sentence."""

    book: int
    start: int
    end: int
    weight: float
    top: float

    def try_add(self, book: int, start: int, end: int, weight: float, text: str) -> bool:
        """Adds a sentence that is adjacent, in the same paragraph and heavy enough; returns whether
        it did."""
        if book != self.book or weight < JOIN * self.top:
            return False
        first, last = min(start, self.start), max(end, self.end)
        between = text[self.end : start] if start >= self.end else text[end : self.start]
        if last - first > LONGEST or between.strip() or "\n\n" in between:
            return False
        self.start, self.end, self.weight = first, last, self.weight + weight
        return True


def reply_from_rows(
    session: Session, question: str, books: Sequence[Book], evidence: int, **asking: Any
) -> tuple[Reply, Tensor]:
    """The reply to one question about open books with so many passages as evidence, and the weights
    (N,) of the cached tokens. `asking` is for `Session.ask`; raises as it does."""
    weights = AttentionWeights(session.layers, session.document_tokens)
    reply = session.ask(question, trace=weights, **asking)
    passages, found = rests_on(weights, books, evidence)
    return replace(reply, evidence=passages, found=found), weights.weights


def weighed_passages(
    passages: Sequence[Passage], books: Sequence[Book]
) -> tuple[list[Passage], Tensor]:
    """Passages that were read with their weights, and the weights (N,) of the books' tokens: each
    passage's weight, shared evenly by its tokens."""
    shares = torch.tensor([one.score for one in passages]).softmax(0).tolist()
    weighed = [replace(one, weight=share) for one, share in zip(passages, shares, strict=True)]
    by_name = {book.document.name: book for book in books}
    weights = torch.zeros(max(book.rows.stop for book in books))
    for one in weighed:
        book = by_name[one.document]
        first, last = token_bounds(book.spans, torch.tensor([(one.start, one.end)]))
        if count := int(last - first):
            start = book.rows.start + int(first)
            weights[start : start + count] += one.weight / count
    return weighed, weights


def rests_on(
    weighed: AttentionWeights, books: Sequence[Book], count: int
) -> tuple[tuple[Passage, ...], bool]:
    """At most `count` passages by the `trace` of the question, heaviest first, and whether the
    documents seem to have the answer."""
    weights = weighed.weights
    passages = heaviest(weights, books, count)
    total = sum(float(weights_of(book, weights).sum()) for book in books)
    evidence = tuple(
        Passage.of(books[one.book].document, one.start, one.end, weight=one.weight / total)
        for one in passages
    )
    return evidence, strength(weighed.question_weights, books) >= FOUND


def strength(asked: Tensor, books: Sequence[Book]) -> float:
    """Attention of the question's tokens (N,) to the best single sentence, averaged over layers.
    1.0 is one token of the sentence with the full attention of some head in every layer. It does
    not grow with the documents."""
    each = [w for book in books for w in _by_sentence(book, weights_of(book, asked)).values()]
    return max(each, default=0.0)


def heaviest(weights: Tensor, books: Sequence[Book], count: int) -> list[_Passage]:
    """The passages with the most of the cached tokens' weights (N,), none overlapping."""
    sentences = [
        (weight, -book, -start, end)
        for book, one in enumerate(books)
        for (start, end), weight in _by_sentence(one, weights_of(one, weights)).items()
    ]
    out: list[_Passage] = []
    for weight, minus_book, minus_start, end in (
        sorted(sentences, reverse=True) if count > 0 else ()
    ):
        book, start = -minus_book, -minus_start
        text = books[book].document.text
        if not any(passage.try_add(book, start, end, weight, text) for passage in out):
            if len(out) < count:
                out.append(_Passage(book, start, end, weight, weight))
            elif not out or weight < JOIN * out[-1].top:
                break
    return sorted(out, key=lambda passage: -passage.weight)


def _by_sentence(book: Book, weights: Tensor) -> dict[tuple[int, int], float]:
    """The weight of each sentence that has any; weights (n,) of the book's tokens."""
    text = book.document.text
    sentences, out = Sentences(text), dict[tuple[int, int], float]()
    at = torch.nonzero(weights > 0)[:, 0]
    for (start, end), weight in zip(book.spans[at].tolist(), weights[at].tolist(), strict=True):
        # A token may begin with the space before its word, which belongs to the sentence before.
        while start < end - 1 and text[start].isspace():
            start += 1
        span = sentences.around(start)
        if span[0] < span[1]:
            out[span] = out.get(span, 0.0) + weight
    return out


LEVELS = 8
"""Shades; style sheets have a class for each."""
COLD = 1 / 64
"""A token with less than this share of the heaviest token's weight is plain."""


def heat_maps(books: Sequence[Book], weights: Tensor) -> list[HeatMap]:
    """One for each book by the cached tokens' weights (N,), in shades of the heaviest of all."""
    top = heaviest_token(books, weights)
    return [
        HeatMap(book.document.name, tuple(shaded_spans(book.spans, weights_of(book, weights), top)))
        for book in books
    ]


def weights_of(book: Book, weights: Tensor) -> Tensor:
    """(n,) of the book's tokens, out of (N,)."""
    return weights[book.rows.start : book.rows.stop]


def heaviest_token(books: Sequence[Book], weights: Tensor) -> float:
    """The highest weight of a token of the books; 0 where they have none."""
    return max(
        (float(weights_of(book, weights).max()) for book in books if len(book.rows)), default=0.0
    )


def shaded_spans(spans: Tensor, weights: Tensor, top: float) -> list[ShadedSpan]:
    """The characters `spans` (n, 2) of the tokens that are not cold by `weights` (n,), ascending
    and apart; `top` is the weight of the last shade."""
    out: list[ShadedSpan] = []
    if top <= 0:
        return out
    for i in (weights >= COLD * top).nonzero()[:, 0].tolist():
        start, end = int(spans[i, 0]), int(spans[i, 1])
        start = max(start, out[-1].end) if out else start
        level = max(1, round(LEVELS * (float(weights[i]) / top) ** 0.5))
        if out and out[-1][1:] == (start, level):
            out[-1] = ShadedSpan(out[-1].start, end, level)
        elif start < end:
            out.append(ShadedSpan(start, end, level))
    return out
