"""Conformance of scores, compressors and positions: wrong ones fail with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from conformance_tools import examine
from conftest import copy_registries
from torch import Tensor

import esa_cli.documents.readers  # noqa: F401 - registered before a test copies the registry
from esa_cli.attention.compression import Moments
from esa_cli.attention.parts import Compressor, Score
from esa_cli.attention.positions import FixedDistancePositions
from esa_cli.attention.step import Positions, Projection, Step


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_registries(monkeypatch)


class Scores:
    """One broken score each."""

    class NotANumber(Score):
        features: bool = False

        def scores(self, step: Step) -> Tensor:
            return torch.full((step.middle,), torch.nan)

    class FirstBlockOnly(Score):
        features: bool = False

        def scores(self, step: Step) -> Tensor:
            blocks = (logits.sum(dim=(0, 1)) for _, logits in step.head_logits(False))
            return next(blocks, step.queries.new_zeros(0))

    class Undecided(Score):
        features: Any = "perhaps"

        def scores(self, step: Step) -> Tensor:
            return torch.zeros(step.middle)

    class CountsSteps(Score):
        features: bool = False
        seen: list[int] = field(default_factory=list, init=False)

        def scores(self, step: Step) -> Tensor:
            self.seen.append(step.start)
            return torch.full((step.middle,), float(len(self.seen) > 9))

    class ScribblesOnReducedKeys(Score):
        features: bool = True

        def scores(self, step: Step) -> Tensor:
            if step.projection is not None:
                for _, reduced in step.store.feature_blocks(step.low, step.high):
                    reduced.neg_()
            return torch.zeros(step.middle)

    class RotatesInSilence(Score):
        def scores(self, step: Step) -> Tensor:
            blocks = [block.sum(dim=(0, 1)) for _, block in step.head_logits(True)]
            return torch.cat(blocks) if blocks else torch.zeros(0)

    class NeedsOne(Score):
        features: bool = True

        def scores(self, step: Step) -> Tensor:
            return torch.cat([block.amax(dim=0) for _, block in step.sums(False)])


MEMBERS = "declares its members"
RESULTS = "valid results on random steps"
PROJECTIONS = "valid projections"
PLACED = "positions of near and far tokens"
WRONG_SCORES = {
    "NotANumber": (RESULTS, "100 are not finite"),
    "FirstBlockOnly": (RESULTS, "more than one block of keys: scores: torch.float32 (1020,)"),
    "Undecided": (MEMBERS, "'perhaps'"),
    "CountsSteps": (RESULTS, "another result on an equal step"),
    "ScribblesOnReducedKeys": (RESULTS, "the reduced keys changed"),
    "RotatesInSilence": ("declares whether it rotates", "rotates is False"),
    "NeedsOne": (RESULTS, "empty M: raised"),
}


@pytest.mark.parametrize("name", WRONG_SCORES)
def test_wrong_scores_fail(name: str) -> None:
    found = examine("score", getattr(Scores, name))
    wanted, detail = WRONG_SCORES[name]
    assert detail in found[wanted]
    assert set(found) == {wanted}


@dataclass(frozen=True)
class Maps(Projection):
    """A projection to R = 3 that a test may bend."""

    apart: int = 0
    mix: bool = False
    noise: bool = False
    running: bool = False
    double: bool = False
    write: bool = False

    def queries(self, q: Tensor) -> Tensor:
        out = q[:, :3] + (torch.rand(1).to(q) if self.noise else 0)
        return out.double() if self.double else out

    def keys(self, k: Tensor) -> Tensor:
        out = k.mul_(2) if self.write else k
        out = out[:, : 3 + self.apart]
        out = out.double() if self.double else out
        out = out.cumsum(dim=0) if self.running else out
        return out - out.mean(dim=0) if self.mix else out


@pytest.mark.parametrize(
    ("projection", "wanted", "detail"),
    [
        (Maps(apart=1), PROJECTIONS, "queries: torch.float32 (1, 3), not numbers (1, 4)"),
        (Maps(mix=True), PROJECTIONS, "apart"),
        (Maps(noise=True), PROJECTIONS, "two fits map equal queries"),
        (Maps(running=True), PROJECTIONS, "key 50 of 100 is mapped"),
        (Maps(double=True), PROJECTIONS, "torch.float32 became torch.float64 queries"),
        (Maps(write=True), PROJECTIONS, "queries or keys were written over"),
    ],
)
def test_wrong_compressors_fail(projection: Maps, wanted: str, detail: str) -> None:
    class Broken(Compressor):
        fit_tokens: int = field(default=4, init=False)

        def fit(self, layer: int, moments: Moments) -> Maps:
            return projection

    found = examine("compressor", Broken)
    assert detail in found[wanted]
    assert set(found) == {wanted}


def test_compressors_may_leave_short_documents_alone() -> None:
    class Careful(Compressor):
        fit_tokens: int = 9

        def fit(self, layer: int, moments: Moments) -> Maps | None:
            return None if moments.count < 9 else Maps()

    assert examine("compressor", Careful) == {}


@pytest.mark.parametrize("name", ["queries", "keys", "count", "seen"])
def test_compressors_leave_the_moments_alone(name: str) -> None:
    class Broken(Compressor):
        fit_tokens: int = 4

        def fit(self, layer: int, moments: Moments) -> None:
            setattr(moments, name, getattr(moments, name) + 1)

    found = examine("compressor", Broken)
    assert "fit changed the moments" in found[PROJECTIONS]


@pytest.mark.parametrize("count", [-1, 2.5, True])
def test_fit_tokens_must_be_a_count(count: Any) -> None:
    class Broken(Compressor):
        fit_tokens: int = count

        def fit(self, layer: int, moments: Moments) -> None:
            return None

    assert repr(count) in examine("compressor", Broken)["declares fit_tokens"]


@dataclass(frozen=True)
class Bent(FixedDistancePositions):
    def bend(self, positions: Positions) -> Positions:
        return positions

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return self.bend(super().far(at, local, chunk, start))


@pytest.mark.parametrize(
    ("bend", "wanted", "detail"),
    [
        (lambda p: Positions(p.query[:-1], p.key), PLACED, "(7,)"),
        (lambda p: p.query, PLACED, "far gives a Tensor, not Positions"),
        (lambda p: (*p,), PLACED, "far gives a tuple, not Positions"),
        (lambda p: Positions(p.query, p.key.tolist()), PLACED, "far keys: list"),
        (lambda p: Positions(p.query, p.key - 5), PLACED, "far keys: 40 are not finite or below 0"),
        (lambda p: Positions(p.query * torch.nan, p.key), PLACED, "far queries: 8 are not finite"),
        (lambda p: Positions(p.query, p.key + 5000), PLACED, "5000"),
        (lambda p: Positions(p.query > 0, p.key), PLACED, "torch.bool"),
        (lambda p: Positions(p.query + torch.rand(1), p.key), PLACED, "differ the second time"),
    ],
)
def test_wrong_positions_fail(bend: Any, wanted: str, detail: str) -> None:
    class Broken(Bent):
        def bend(self, positions: Positions) -> Positions:
            return bend(positions)

    found = examine("position", Broken)
    assert detail in found[wanted]


def test_encodings_leave_the_positions_they_are_given_alone() -> None:
    class Broken(FixedDistancePositions):
        def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
            return Positions(torch.full((chunk,), self.distance), at.zero_())

    found = examine("position", Broken)
    assert set(found) == {PLACED}
    assert "usual: the positions `at` were written over" in found[PLACED]


class Encodings:
    """Encodings whose optional members are broken, one each; `WRONG_MEMBERS` has the complaint."""

    class NoLimit(FixedDistancePositions):
        max_distance: Any = 0

    class OneScale(FixedDistancePositions):
        def query_scale(self, at: Tensor) -> Tensor:
            return torch.ones(1)

    class LostScale(FixedDistancePositions):
        def query_scale(self, at: Tensor) -> Tensor:
            return at.float().log()

    class CommonScale(FixedDistancePositions):
        def query_scale(self, at: Tensor) -> Tensor:
            return at.float() - at[0] + 1

    class EveryFrequency(FixedDistancePositions):
        def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
            return torch.cat((inverse, inverse)), factor

    class Overwritten(FixedDistancePositions):
        def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
            return inverse.div_(2), factor

    class NoFactor(FixedDistancePositions):
        def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, Any]:
            return inverse, None

    class Restless(FixedDistancePositions):
        def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
            return inverse * torch.rand(1), factor


WRONG_MEMBERS = {
    "NoLimit": (MEMBERS, "max_distance is 0"),
    "OneScale": ("query_scale (C,)", "8 queries from 0: factors: torch.float32 (1,)"),
    "LostScale": ("query_scale (C,)", "factors: 2 are not finite"),
    "CommonScale": ("query_scale (C,)", "alone, the last factor is another"),
    "EveryFrequency": ("frequencies (D / 2,)", "D = 8, 1 tokens: frequencies: torch.float32 (8,)"),
    "Overwritten": ("frequencies (D / 2,)", "the frequencies it is given change"),
    "NoFactor": ("frequencies (D / 2,)", "the factor is None"),
    "Restless": ("frequencies (D / 2,)", "other frequencies the second time"),
}


@pytest.mark.parametrize("name", WRONG_MEMBERS)
def test_wrong_optional_members_fail(name: str) -> None:
    found = examine("position", getattr(Encodings, name))
    wanted, detail = WRONG_MEMBERS[name]
    assert detail in found[wanted]
    assert set(found) == {wanted}
