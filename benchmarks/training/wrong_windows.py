"""The windows of a text that a finder ranks high for a question that they do not answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
from question_pairs import TrainingText
from torch import Tensor
from training_data import ABSENT, Integers, TextTokens, TrainingData, cut_windows

from esa_cli.qa.finding.finder import TokenEncoder, compute_window_products, pool_window_products
from esa_cli.qa.finding.passage_finder import AROUND, Ranking
from esa_cli.qa.finding.words import LexicalIndex, list_sentence_words
from esa_cli.qa.reading.passage_reader import collapse_spaces

COUNT = 20
"""The most wrong windows of a question."""
GROUP = 64
"""The number of questions whose scores are computed together."""


@torch.inference_mode()
def find_wrong_windows(
    texts: Sequence[TrainingText], data: TrainingData, encoder: TokenEncoder | None
) -> Integers:
    """Returns for each of P pairs the numbers of the best windows, by an encoder or by BM25 without
    one, that neither overlap the passage nor have the answer's words, (P, COUNT), padded with -1;
    none for absent questions."""
    out, base = np.full((len(data.pairs.text), COUNT), -1, dtype=np.int32), 0
    for number, (text, tokens) in enumerate(zip(texts, data.texts, strict=True)):
        score = make_scorer(text, tokens, encoder)
        contents = [
            collapse_spaces(text.text[start:end]).lower()
            for start, end in cut_windows(text.text).windows
        ]
        answers = [
            collapse_spaces(text.text[slice(*pair.answer or pair.passage)]).lower()
            for pair in text.pairs
        ]
        pairs = [at for at in range(len(text.pairs)) if data.pairs.kind[base + at] != ABSENT]
        for at in range(0, len(pairs), GROUP):
            group = pairs[at : at + GROUP]
            scores = score([text.pairs[n].question for n in group])
            best = scores.topk(min(2 * COUNT, scores.shape[1])).indices.cpu().numpy()
            for n, row in zip(group, best.tolist(), strict=True):
                first, last = data.pairs.passages[base + n]
                spans = tokens.windows[row]
                far = (spans[:, 1] <= first) | (spans[:, 0] >= last)
                wrong = [
                    one for one, other in zip(row, far, strict=True)
                    if other and answers[n] not in contents[one]
                ]  # fmt: skip
                out[base + n, : len(wrong[:COUNT])] = wrong[:COUNT]
        base += len(text.pairs)
        print(f"{number + 1} of {len(texts)} texts: {text.name}", file=sys.stderr, flush=True)
    return out


def find_nearest_windows(data: TrainingData) -> Integers:
    """Returns for each of P pairs the numbers of the windows next to its passage, the nearest
    first, (P, COUNT), padded with -1; none for absent questions."""
    out = np.full((len(data.pairs.text), COUNT), -1, dtype=np.int32)
    for number, text in enumerate(data.texts):
        middles = text.windows.sum(1) / 2
        for pair in np.flatnonzero((data.pairs.text == number) & (data.pairs.kind != ABSENT)):
            first, last = data.pairs.passages[pair]
            away = np.abs(middles - (first + last) / 2)
            far = (text.windows[:, 1] <= first) | (text.windows[:, 0] >= last)
            near = np.argsort(np.where(far, away, np.inf))[:COUNT]
            near = near[far[near]]
            out[pair, : len(near)] = near
    return out


def make_scorer(
    text: TrainingText, tokens: TextTokens, encoder: TokenEncoder | None
) -> Callable[[Sequence[str]], Tensor]:
    """Returns a function from B questions to the scores (B, W) of a text's W windows."""
    if encoder is None:
        index = LexicalIndex([list_sentence_words(text.text)])
        return lambda questions: torch.stack([index.compute_bm25_scores(one) for one in questions])
    device = encoder.maps["key_map"].device
    keys = encoder.encode_document(tokens.ids.tolist(), 0, len(tokens.ids)).to(device)
    bounds = torch.from_numpy(tokens.windows.astype(np.int64)).to(device)
    return lambda questions: score_windows(*encoder.encode_questions(questions), keys, bounds)


def score_windows(queries: Tensor, weights: Tensor, keys: Tensor, bounds: Tensor) -> Tensor:
    """Returns the scores (B, W) of W windows, tokens [first, last) (W, 2), for B questions, as
    `PassageFinder.score_windows` has them without words.

    Args:
        queries, weights: (B, M, R) and (B, M). keys: (N, R).
    """
    within = weights > 0
    owner, shares = within.nonzero()[:, 0], weights[within]
    products = compute_window_products(queries[within], keys, bounds[:, 0], bounds[:, 1])

    def total(products: Tensor) -> Tensor:
        empty = torch.zeros(len(bounds), len(queries), device=keys.device)
        return empty.index_add(1, owner, products * shares).T

    widths = [products, *(pool_window_products(products, count) for count in AROUND)]
    weights_of_widths = zip(Ranking().late, map(total, widths), strict=True)
    return torch.stack([weight * late for weight, late in weights_of_widths]).sum(0)
