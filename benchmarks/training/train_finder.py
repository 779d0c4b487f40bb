"""Trains a finder of the passages that answer questions.

    python benchmarks/training/texts.py texts/
    python benchmarks/training/train_finder.py benchmarks/training/pairs texts/ --out finder/

`esa ask --set answer.finder=finder/` then uses it. A step has segments of two texts, read as a
document is read later. The loss is the cross-entropy of the windows with the answer among all
windows of the step, by late interaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from finder_encoder import new_finder, save_finder
from numpy.typing import NDArray
from question_pairs import ENGLISH
from small_llama import LayerWeights
from torch import Tensor
from torch.nn.functional import normalize, softplus
from training_data import ABSENT, KINDS, Integers, TrainingData, pad_lists
from training_loop import Batch, BatchGroups, TrainedModel, TrainingSettings, explain_writing_errors
from training_program import TrainingJob, digest_files, make_parser, run_program

from esa_cli.models.text_passes.text_forward import WEIGHTS
from esa_cli.qa.finding.finder import (
    CONTEXT_TOKENS,
    PROMPT,
    SEGMENT_TOKENS,
    WEIGHT_SCALE,
    TokenEncoder,
)
from esa_cli.qa.presets.preset_files import MAPS

BLOCK = 8
"""Tokens whose best product with a question's token is computed once for all windows."""
MOST_BLOCKS = 32
"""The most blocks of a window."""
QUESTION_TOKENS = 48
"""The most tokens of a question with its prompt."""
SHARE = 0.6
"""The share of a window that must be in the segment, and of an answer that must be in a window."""
LEAST = 16
"""The fewest tokens of a window in a segment."""
LOWER = 0.15
"""The share of questions that are asked in lower case."""
KIND_WEIGHTS = (1.0, 1.6, 0.5)
"""How often questions are drawn, by kind, if a step has too many."""
ABSENT_WEIGHT = 0.5
"""The weight of an absent question's loss: any window of its passage is right."""


@dataclass(frozen=True, kw_only=True)
class FinderSettings(TrainingSettings):
    """Settings of a finder's training.

    Args:
        layers: of the model that run, all with LoRA matrices of the rank `rank`.
        dim: R, numbers of a reduced key. step_texts, segments, questions: of a step, at most.
        english: how probable it is that an English text is drawn, divided by what it would be in
            another language.
    """

    minutes: float = 1.25
    lr: float = 1e-3
    head_lr: float = 2.0
    warm_up: int = 30
    layers: int = 14
    rank: int = 32
    dim: int = 128
    step_texts: int = 2
    segments: int = 64
    questions: int = 384
    english: float = 1.0


class FinderBatches(BatchGroups):
    """Steps with segments around the answers to random questions, and all questions about them.

    Args:
        english: the numbers of the English texts.
    """

    def __init__(
        self, data: TrainingData, settings: FinderSettings, english: Sequence[int] = ()
    ) -> None:
        self.data, self.settings = data, settings
        pairs = data.pairs
        self._pairs_of = [np.flatnonzero(pairs.text == n) for n in range(len(data.texts))]
        counts = np.array([len(pairs) for pairs in self._pairs_of]) ** 0.75
        counts[list(english)] *= settings.english
        self._chances = counts / counts.sum()

    def __getitem__(self, number: int) -> list[Batch]:
        settings, data = self.settings, self.data
        rng = np.random.default_rng((settings.seed, number))
        count = min(settings.step_texts, len(data.texts))
        ids = np.zeros((settings.segments, CONTEXT_TOKENS + SEGMENT_TOKENS), dtype=np.int64)
        windows: list[tuple[int, ...]] = []
        near: list[Integers] = []
        row = 0
        for text in rng.choice(len(data.texts), count, replace=False, p=self._chances):
            starts = self._draw_starts(int(text), settings.segments // count, rng)
            for start in starts:
                tokens = data.texts[text].ids[start - CONTEXT_TOKENS : start + SEGMENT_TOKENS]
                ids[row, : len(tokens)] = tokens
                for first, last in self._cut_windows(int(text), start):
                    shift = row * SEGMENT_TOKENS - start
                    windows.append((int(text), first, last, first + shift, last + shift))
                row += 1
            pairs = self._pairs_of[text]
            middle = data.pairs.answers[pairs].sum(1)[:, None] // 2
            inside = (middle >= starts) & (middle < starts + SEGMENT_TOKENS)
            near.append(pairs[inside.any(1)])
        places = np.array(windows, dtype=np.int64).reshape(-1, 5)
        questions = self._draw_questions(np.concatenate(near), rng)
        right = find_right_windows(data, questions, places)
        questions, right = questions[right.any(1)], right[right.any(1)]
        if not len(questions):
            return []
        forms = np.where(rng.random(len(questions)) < LOWER, "finder_lower", "finder")
        prompts = [
            data.prompts[form][pair][:QUESTION_TOKENS]
            for pair, form in zip(questions, forms, strict=True)
        ]
        question_ids, lengths = pad_lists(prompts, settings.questions, QUESTION_TOKENS)
        bounds = np.stack((places[:, 3] // BLOCK, -(-places[:, 4] // BLOCK)))
        first, last = torch.from_numpy(bounds)
        return [{
            "ids": torch.from_numpy(ids), "first": first, "last": last,
            "question_ids": question_ids, "lengths": lengths, "right": torch.from_numpy(right),
            "kind": torch.from_numpy(data.pairs.kind[questions]),
        }]  # fmt: skip

    def _draw_starts(self, text: int, count: int, rng: np.random.Generator) -> Integers:
        """Draws the first tokens (count,) of segments around the answers to random questions."""
        pairs, tokens = self._pairs_of[text], len(self.data.texts[text].ids)
        picks = rng.choice(pairs, count, replace=len(pairs) < count)
        before = rng.integers(20, SEGMENT_TOKENS - 40, count)
        latest = max(CONTEXT_TOKENS, tokens - SEGMENT_TOKENS)
        starts: Integers = self.data.pairs.answers[picks, 0] - before
        return starts.clip(CONTEXT_TOKENS, latest)

    def _cut_windows(self, text: int, start: int) -> Integers:
        """Returns the parts (W, 2) in a segment of the windows that are mostly in it."""
        windows, end = self.data.texts[text].windows, start + SEGMENT_TOKENS
        low = np.searchsorted(windows[:, 1], start, side="right")
        high = np.searchsorted(windows[:, 0], end)
        parts = windows[low:high].clip(start, end)
        sizes, whole = np.diff(parts, axis=1)[:, 0], np.diff(windows[low:high], axis=1)[:, 0]
        return parts[(sizes >= LEAST) & (sizes >= SHARE * whole)]

    def _draw_questions(self, pairs: Integers, rng: np.random.Generator) -> Integers:
        count = self.settings.questions
        if len(pairs) <= count:
            return pairs
        chances = np.array(KIND_WEIGHTS)[self.data.pairs.kind[pairs]]
        return rng.choice(pairs, count, replace=False, p=chances / chances.sum())


def find_right_windows(
    data: TrainingData, questions: Integers, windows: Integers
) -> NDArray[np.bool_]:
    """Returns which of W windows (W, 5) answer each of Q questions, (Q, W): those with most of the
    answer, and for absent questions those of which half is in the passage.

    Args:
        windows: the text, and tokens [first, last) of the text and of all segments.
    """
    pairs = data.pairs
    own = pairs.text[questions][:, None] == windows[:, 0]

    def count_shared(spans: Integers) -> Integers:
        first, last = spans[questions].T[:, :, None]
        shared: Integers = np.minimum(windows[:, 2], last) - np.maximum(windows[:, 1], first)
        return shared

    size = np.diff(pairs.answers[questions], axis=1)
    answers = count_shared(pairs.answers) >= SHARE * size
    half = count_shared(pairs.passages) >= 0.5 * (windows[:, 2] - windows[:, 1])
    absent = pairs.kind[questions][:, None] == ABSENT
    right: NDArray[np.bool_] = own & np.where(absent, half, answers)
    return right


class FinderModel(TrainedModel):
    """A finder in training; its head are the maps of `TokenEncoder`."""

    losses: ClassVar = KINDS

    def encode_keys(self, weights: list[LayerWeights], ids: Tensor) -> Tensor:
        """Returns the reduced keys (B, T, R) of token ids (B, T)."""
        return normalize(self.compute_states(weights, ids) @ self.head["key_map"], dim=-1)

    def encode_questions(
        self, weights: list[LayerWeights], ids: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the reduced queries (n, R) of all n tokens of Q questions, their weights (n,),
        whose sum is 1 for a question, and the question of each (n,)."""
        states = self.compute_states(weights, ids)
        logits = states @ self.head["query_weight"] / WEIGHT_SCALE + self.head["query_bias"]
        places = torch.arange(ids.shape[1], device=self.device)
        within = (places >= 2) & (places < lengths[:, None])
        shares = softplus(logits) * within
        shares = shares / shares.sum(1, keepdim=True).clamp(min=1e-6)
        queries = normalize(states @ self.head["query_map"], dim=-1)
        return queries[within], shares[within], within.nonzero()[:, 0]

    def compute_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        weights, right = self.merge_weights(), batch["right"]
        keys = self.encode_keys(weights, batch["ids"])[:, CONTEXT_TOKENS:].flatten(0, 1)
        queries, shares, owner = self.encode_questions(
            weights, batch["question_ids"], batch["lengths"]
        )
        low = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        products = (keys.to(low) @ queries.to(low).T).view(-1, BLOCK, len(queries)).amax(1)
        best = find_window_maxima(products, batch["first"], batch["last"]).float() * shares
        total = torch.zeros(len(best), len(right), device=self.device).index_add(1, owner, best)
        scores = total.T * self.head["scale"].exp()
        losses = scores.logsumexp(1) - scores.masked_fill(~right, -1e9).logsumexp(1)
        factors = torch.where(batch["kind"] == ABSENT, ABSENT_WEIGHT, 1.0)
        kinds = torch.nn.functional.one_hot(batch["kind"], len(KINDS)).float()
        return (losses * factors).sum() / factors.sum(), losses.detach() @ kinds, kinds.sum(0)


def find_window_maxima(values: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Returns the largest values (W, n) of the rows [first, last) of `values` (N, n), at least one
    and at most `MOST_BLOCKS` rows.

    The maxima of all runs of 1, 2, 4, ... rows come first: two of them cover a window.
    """
    levels, size = [values], 1
    while 2 * size <= MOST_BLOCKS:
        below = levels[-1]
        pairs = torch.maximum(below[:-size], below[size:])
        levels.append(torch.cat((pairs, below[len(pairs) :])))
        size *= 2
    counts = (last - first).clamp(1, MOST_BLOCKS)
    level = torch.log2(counts.float() + 1e-3).floor().long()
    runs, base = torch.cat(levels), level * len(values)
    return torch.maximum(runs[base + first], runs[base + first + counts - 2**level])


def train_finder(data: TrainingData, settings: FinderSettings, job: TrainingJob) -> dict[str, Any]:
    """Trains a finder, writes it, and returns its record. Raises as `Training.run`."""
    loaded = job.loaded
    if job.start is None:
        encoder = new_finder(
            loaded.model, loaded.tokenizer, layers=settings.layers, first=0, rank=settings.rank,
            dim=settings.dim, seed=settings.seed,
        )  # fmt: skip
    else:
        encoder = TokenEncoder.load(job.start, loaded.model, loaded.tokenizer)
    english = [at for at, text in enumerate(job.texts) if text.language == ENGLISH]
    model = FinderModel(
        loaded.model, settings.layers, encoder.adapter, encoder.maps, job.compile_layers
    )
    training = job.make_training(
        model, FinderBatches(data, settings, english), settings, prompt=PROMPT,
        start=digest_files(job.start, (WEIGHTS, MAPS)),
    )  # fmt: skip
    training.run(job.resume)
    maps = {name: one.detach() for name, one in model.head.items()}
    adapter = model.make_adapter()
    result = TokenEncoder(loaded.model, loaded.tokenizer, adapter, maps, settings.layers)
    with explain_writing_errors(job.folder):
        save_finder(result, job.folder, loaded.ref)
    return training.finish()


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, FinderSettings)
    parser.add_argument(
        "--start", type=Path, metavar="FOLDER",
        help="go on from a trained finder of these layers, rank and dim",
    )  # fmt: skip
    run_program(parser.parse_args(argv), FinderSettings, train_finder)


if __name__ == "__main__":
    main()
