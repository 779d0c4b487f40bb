"""Selects whole windows of tokens by the sum of the scores of the current and all earlier layers.

In a small model only few layers find the relevant passage of a long document, so each layer adds
the scores of all earlier layers to its own scores. The second pass of a question and the tokens of
an answer reuse the last layer's selection.

The selector `fused-consensus` adds a second score, such as BM25, after standardising both scores,
so that a score without clear winners does not outvote the other."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.algebra import to_float64
from esa_cli.attention.parts import Score, Selector, require_at_least
from esa_cli.attention.step import Step
from esa_cli.methods import registry
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.registry import PresetSizes, recipe, register
from esa_cli.methods.voting import PLAIN, build_esa_vote_settings


def find_centred_window_start(centre: Tensor, window_size: int, middle_count: int) -> Tensor:
    """Returns the start of the window centred on `centre`, moved inside the M middle tokens."""
    return (centre - (window_size - 1) / 2).round().clamp(0, middle_count - window_size)


def select_windows(scores: Tensor, budget: int, window_size: int, min_share: float = 0) -> Tensor:
    """Selects the windows with the highest mean scores, except windows with less than `min_share`
    times the best mean. Returns ascending offsets of at most `budget` tokens."""
    window_size = min(window_size, budget, scores.shape[0])
    if window_size < 1:
        return torch.arange(0, device=scores.device)
    # Logits may all be below zero: only differences count.
    left, first = to_float64(scores) - min(0.0, float(scores.min())), None
    taken = torch.zeros_like(left, dtype=torch.bool)
    for _ in range(budget // window_size):
        means = functional.avg_pool1d(left[None], window_size, stride=1)[0]
        start = int(means.argmax())
        best = float(means[start])
        first = best if first is None else first
        if best <= 0 or best < min_share * first:
            break
        chosen = left[start : start + window_size]
        offsets = torch.arange(window_size, device=left.device)
        centre = start + (chosen * offsets).sum() / chosen.sum()
        start = int(find_centred_window_start(centre, window_size, scores.shape[0]))
        taken[start : start + window_size] = True
        left = torch.where(taken, 0.0, left)
    return torch.nonzero(taken)[:, 0].to(scores.device)


@dataclass
class SummedLayerScores:
    """Scores (M,) of the middle tokens, summed over the layers up to `layer`."""

    layer: int
    low: int  # the absolute position of the first middle token
    scores: Tensor
    chosen: Tensor | None = None  # absolute positions that were selected by the scores


@dataclass
class LayerScoresState:
    """The layer scores of one question and its answer, which a `LayerSumSelector` sums."""

    # By the start of a chunk, since all chunks pass a layer before the next layer.
    layer_scores: dict[int, SummedLayerScores] = field(default_factory=dict)
    surveyed: SummedLayerScores | None = None  # of the first pass, by which the second selects


@dataclass(frozen=True)
class LayerSumSelector(Selector):
    """Base class of selectors that add the scores of all earlier layers to the current layer's.

    If `rounds` is 2, the question passes through the model twice, and in the second pass every
    layer selects by the scores that all layers had in the first pass."""

    rounds: Literal[1, 2] = 1
    sums_layers = True

    @abstractmethod
    def select_best_tokens(self, scores: Tensor, step: Step, budget: int) -> Tensor:
        """Returns ascending offsets of at most `budget` tokens with the best scores (M,)."""

    @property
    def surveys(self) -> bool:
        return self.rounds == 2

    def new_turn_state(self) -> LayerScoresState:
        return LayerScoresState()

    def select(self, step: Step, budget: int) -> Tensor:
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        turn: LayerScoresState = step.turn_state(self)
        if turn.surveyed is not None:
            return self._select_by_scores(turn.surveyed, step, budget)
        layer_scores = turn.layer_scores
        if step.decoding and (earlier := [at for at in layer_scores if at < step.start]):
            return self._select_by_scores(layer_scores[max(earlier)], step, budget)
        before = layer_scores.get(step.start)
        if before is None or before.layer >= step.layer:
            before = None
            # Scores of layers after this one are left from an earlier pass.
            for start in [at for at, other in layer_scores.items() if other.layer > step.layer]:
                del layer_scores[start]
        scores = step.scores()
        # A token without a score counts as the lowest that has one.
        worst = scores.masked_fill(scores.isneginf(), 0.0).amin().clamp(max=0.0)
        total = torch.where(scores.isneginf(), worst, scores.nan_to_num())
        if before is not None:
            total = before.scores + total
        layer_scores[step.start] = SummedLayerScores(step.layer, step.low, total)
        if step.query.surveying:
            # No middle tokens: those that half of the layers select change the others' scores.
            return torch.arange(0, device=step.queries.device)
        return self.select_best_tokens(total, step, budget)

    def survey_complete(self, step: Step) -> bool:
        """Whether all scoring layers have scored the last chunk of the question."""
        turn: LayerScoresState = step.turn_state(self)
        last, stop = step.last_scoring_layer, step.start + step.queries.shape[1]
        scored = step.start in turn.layer_scores and stop == len(step.store)
        return scored and last is not None and step.layer >= last

    def start_turn_after_survey(self, turn: LayerScoresState | None) -> LayerScoresState:
        """Returns the state of the second pass, with the scores of the last scoring layer."""
        layer_scores = turn.layer_scores if turn else {}
        return LayerScoresState(surveyed=layer_scores[max(layer_scores)] if layer_scores else None)

    def _select_by_scores(self, earlier: SummedLayerScores, step: Step, budget: int) -> Tensor:
        """Returns the middle tokens with the best `earlier` scores, without scoring them again."""
        if earlier.chosen is None or earlier.chosen.shape[0] > budget:
            scored = replace(step, low=earlier.low, high=earlier.low + earlier.scores.shape[0])
            earlier.chosen = self.select_best_tokens(earlier.scores, scored, budget) + earlier.low
        chosen = earlier.chosen.to(step.queries.device) - step.low
        return chosen[(chosen >= 0) & (chosen < step.middle)]


@register("selector", "consensus", about="whole windows, by the scores of all layers so far")
@dataclass(frozen=True)
class LayerConsensusSelector(LayerSumSelector):
    """Selects windows of `passage` tokens by the scores summed over the current and all earlier
    layers, except windows that score less than `share` times the best window."""

    passage: int = 64
    share: float = 0.0

    def __post_init__(self) -> None:
        require_at_least(1, passage=self.passage)
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be from 0 to 1, got {self.share}")

    @property
    def window_size(self) -> int:
        return self.passage

    def select_best_tokens(self, scores: Tensor, step: Step, budget: int) -> Tensor:
        return select_windows(scores, budget, self.passage, self.share)


@recipe(
    "esa-consensus",
    about="whole passages by the scores of all layers, positioned right before the question",
    source="this project, after the paper",
    cost=f"F M for a question, 0 for an answer's token, + {ATTENDED}",
)
def build_esa_consensus_settings(preset: PresetSizes) -> dict[str, Any]:
    selector = {"name": "consensus", "passage": 64, "share": 0.5, "rounds": 2}
    vote = {"name": "vote", "rule": "softmax", "rotate": True, "contrast": True}
    return {
        **build_esa_vote_settings(preset),
        "selector": selector,
        "score": {**PLAIN, **vote},
        "position": {"name": "contiguous", "distance": min(1024, preset.context // 2)},
        "window": {"ending": 0},
        "reading": "local",
    }


def standardise_scores(scores: Tensor, window_size: int) -> Tensor:
    """Shifts and scales scores (M,) so that the means of all windows of tokens have mean 0 and
    standard deviation 1; returns zeros if all windows have the same mean. A token without a score
    (-inf) counts as the token with the lowest finite score."""
    finite = to_float64(scores)
    finite = torch.where(finite.isneginf(), finite.nan_to_num(neginf=torch.inf).amin(), finite)
    finite = finite.nan_to_num(posinf=0.0)
    means = functional.avg_pool1d(finite[None], min(window_size, scores.shape[0]), stride=1)[0]
    spread = means.std(correction=0)
    if float(spread) <= 1e-12 * float(means.abs().amax()):
        return torch.zeros_like(finite)
    return (finite - means.mean()) / spread


@register("selector", "fused-consensus", about="as consensus, with a second score added")
@dataclass(frozen=True)
class FusedConsensusSelector(LayerConsensusSelector):
    """Selects windows by the standardised sum over layers, plus `weight` times `second`."""

    second: str = "bm25"
    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, weight=self.weight)
        registry.build_method_part("score", {"name": self.second})

    def select_best_tokens(self, scores: Tensor, step: Step, budget: int) -> Tensor:
        words: Score = registry.build_method_part("score", {"name": self.second})
        second = standardise_scores(words.for_single_layers().scores(step), self.passage)
        both = standardise_scores(scores, self.passage) + self.weight * second.to(scores.device)
        return super().select_best_tokens(both, step, budget)


@recipe(
    "esa-consensus-bm25",
    about="as esa-consensus by the preset's heads, with BM25 of the question's words added",
    source="this project, after the paper and Robertson et al. 1994, Okapi at TREC-3",
    cost=f"F M for a question, 0 for an answer's token, + {ATTENDED}",
)
def build_esa_consensus_bm25_settings(preset: PresetSizes) -> dict[str, Any]:
    whole = build_esa_consensus_settings(preset)
    fused = {"name": "fused-consensus", "second": "bm25", "weight": 1.0}
    score = {key: value for key, value in whole["score"].items() if key != "heads"}
    return {**whole, "selector": {**whole["selector"], **fused}, "score": score}
