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
from esa_cli.attention.positions import FixedDistance
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
    "CountsSteps": (RESULTS, "equal steps give different results"),
    "ScribblesOnReducedKeys": (RESULTS, "the part changed the reduced keys"),
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
        (Maps(noise=True), PROJECTIONS, "two equal fits project equal queries"),
        (Maps(running=True), PROJECTIONS, "key 50 of 100 is projected"),
        (Maps(double=True), PROJECTIONS, "torch.float32 inputs gave torch.float64 queries"),
        (Maps(write=True), PROJECTIONS, "the projection changed its arguments"),
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
    assert "fit changed its argument `moments`" in found[PROJECTIONS]


@pytest.mark.parametrize("count", [-1, 2.5, True])
def test_fit_tokens_must_be_a_count(count: Any) -> None:
    class Broken(Compressor):
        fit_tokens: int = count

        def fit(self, layer: int, moments: Moments) -> None:
            return None

    assert repr(count) in examine("compressor", Broken)["declares fit_tokens"]


@dataclass(frozen=True)
class Bent(FixedDistance):
    def bend(self, positions: Positions) -> Positions:
        return positions

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return self.bend(super().far(at, local, chunk, start))


@pytest.mark.parametrize(
    ("bend", "wanted", "detail"),
    [
        (lambda p: Positions(p.query[:-1], p.key), PLACED, "(7,)"),
        (lambda p: p.query, PLACED, "far returns a Tensor, not Positions"),
        (lambda p: (*p,), PLACED, "far returns a tuple, not Positions"),
        (lambda p: Positions(p.query, p.key.tolist()), PLACED, "far keys: list"),
        (lambda p: Positions(p.query, p.key - 5), PLACED, "far keys: 40 are not finite or below 0"),
        (lambda p: Positions(p.query * torch.nan, p.key), PLACED, "far queries: 8 are not finite"),
        (lambda p: Positions(p.query, p.key + 5000), PLACED, "5000"),
        (lambda p: Positions(p.query > 0, p.key), PLACED, "torch.bool"),
        (
            lambda p: Positions(p.query + torch.rand(1), p.key),
            PLACED,
            "are different the second time",
        ),
    ],
)
def test_wrong_positions_fail(bend: Any, wanted: str, detail: str) -> None:
    class Broken(Bent):
        def bend(self, positions: Positions) -> Positions:
            return bend(positions)

    found = examine("position", Broken)
    assert detail in found[wanted]


def test_encodings_leave_the_positions_they_are_given_alone() -> None:
    class Broken(FixedDistance):
        def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
            return Positions(torch.full((chunk,), self.distance), at.zero_())

    found = examine("position", Broken)
    assert set(found) == {PLACED}
    assert "usual: the encoding changed its argument `at`" in found[PLACED]


class Encodings:
    """Encodings whose optional members are broken, one each; `WRONG_MEMBERS` has the complaint."""

    class NoLimit(FixedDistance):
        max_distance: Any = 0

    class OneScale(FixedDistance):
        def query_scale(self, at: Tensor) -> Tensor:
            return torch.ones(1)

    class LostScale(FixedDistance):
        def query_scale(self, at: Tensor) -> Tensor:
            return at.float().log()

    class CommonScale(FixedDistance):
        def query_scale(self, at: Tensor) -> Tensor:
            return at.float() - at[0] + 1

    class EveryFrequency(FixedDistance):
        def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
            return torch.cat((inverse, inverse)), factor

    class Overwritten(FixedDistance):
        def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
            return inverse.div_(2), factor

    class NoFactor(FixedDistance):
        def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, Any]:
            return inverse, None

    class Restless(FixedDistance):
        def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
            return inverse * torch.rand(1), factor


WRONG_MEMBERS = {
    "NoLimit": (MEMBERS, "max_distance is 0"),
    "OneScale": ("query_scale (C,)", "8 queries from 0: factors: torch.float32 (1,)"),
    "LostScale": ("query_scale (C,)", "factors: 2 are not finite"),
    "CommonScale": ("query_scale (C,)", "the last factor is different when alone"),
    "EveryFrequency": ("frequencies (D / 2,)", "D = 8, 1 tokens: frequencies: torch.float32 (8,)"),
    "Overwritten": ("frequencies (D / 2,)", "the encoding changed its argument `inverse`"),
    "NoFactor": ("frequencies (D / 2,)", "the factor is None"),
    "Restless": ("frequencies (D / 2,)", "frequencies differ the second time"),
}


@pytest.mark.parametrize("name", WRONG_MEMBERS)
def test_wrong_optional_members_fail(name: str) -> None:
    found = examine("position", getattr(Encodings, name))
    wanted, detail = WRONG_MEMBERS[name]
    assert detail in found[wanted]
    assert set(found) == {wanted}
