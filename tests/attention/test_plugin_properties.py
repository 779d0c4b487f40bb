"""Random results of plugins: what the rules allow passes unchanged, all else names the plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import build_step
from hypothesis import example, given
from hypothesis import strategies as st
from properties import SCALARS

from esa_cli.attention.interfaces import Positions
from esa_cli.attention.parts import PositionEncoding, Score, Selector
from esa_cli.attention.plugin_errors import checked_scores, near_positions
from esa_cli.attention.selection import TopK, checked_selection
from esa_cli.attention.step import Step
from esa_cli.errors import PluginError

HEADS, MIDDLE, BUDGET = 2, 9, 4
DTYPES = [torch.int64, torch.int32, torch.bool, torch.float32, torch.float64, torch.complex64]
EDGES = [0, 1, 3, MIDDLE - 1, MIDDLE, -1, 2**62]


@dataclass(frozen=True)
class Gives(Selector):
    out: Any = None

    def select(self, step: Step, budget: int) -> Any:
        return result(self.out)


@dataclass(frozen=True)
class Scored(Score):
    out: Any = None

    def scores(self, step: Step) -> Any:
        return result(self.out)


@dataclass(frozen=True)
class Stands(PositionEncoding):
    out: Any = None
    distance = 9

    def near(self, local: int, chunk: int, start: int, far: int) -> Any:
        return result(self.out)

    def far(self, at: torch.Tensor, local: int, chunk: int, start: int) -> Any:
        return result(self.out)


def result(out: Any) -> Any:
    if isinstance(out, type) and issubclass(out, BaseException):
        raise out("no")
    return out


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Offsets, mostly, and tensors of all other kinds."""
    values = draw(st.lists(st.sampled_from(EDGES) | st.integers(0, MIDDLE), max_size=6))
    if draw(st.booleans()):
        values = sorted(set(values))
    made = torch.tensor(values).to(draw(st.sampled_from([torch.int64, torch.int64, *DTYPES])))
    if draw(st.integers(0, 9)) == 0:
        made = made.to("meta")
    return made[None] if draw(st.integers(0, 9)) == 0 else made


@st.composite
def scores(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.sampled_from([(MIDDLE,), (MIDDLE,), (MIDDLE,), (MIDDLE, 1), (1,), (0,), ()]))
    made = torch.full(shape, draw(st.sampled_from([0.0, 1.0, -torch.inf, torch.inf, torch.nan])))
    return made.to(draw(st.sampled_from([torch.float32, torch.bfloat16, *DTYPES])))


RAISED = st.sampled_from([KeyError, SystemExit, AssertionError, StopIteration, RecursionError])
SELECTIONS = tensors() | st.lists(tensors() | SCALARS, max_size=3) | SCALARS | RAISED


@pytest.fixture(scope="module")
def step() -> Step:
    return build_step(torch.randn(HEADS, 3, 8), torch.randn(1, MIDDLE, 8), low=2, after=1)


@given(out=SELECTIONS)
@example(out=torch.tensor([0, 3, 8]))
@example(out=[torch.tensor([1]), torch.tensor([], dtype=torch.int64)])
def test_selections(step: Step, out: Any) -> None:
    if isinstance(out, torch.Tensor):
        fine = allowed_tensor(out)
    else:
        fine = isinstance(out, list) and len(out) == HEADS and all(map(allowed_tensor, out))
    if fine:
        assert checked_selection(Gives(out=out), step, BUDGET) is out
        return
    with pytest.raises(PluginError, match=r"^selector Gives (must return|fails: )"):
        checked_selection(Gives(out=out), step, BUDGET)


def allowed_tensor(row: Any) -> bool:
    """The rule for one selection, in plain Python."""
    if not isinstance(row, torch.Tensor) or row.is_meta or row.dtype != torch.int64:
        return False
    if row.dim() != 1 or row.numel() > BUDGET:
        return False
    places = row.tolist()
    return places == sorted(set(places)) and all(0 <= place < MIDDLE for place in places)


@given(out=scores() | tensors() | SCALARS | RAISED)
@example(out=torch.full((MIDDLE,), torch.nan))
@example(out=torch.zeros(MIDDLE, dtype=torch.int64))
def test_scores(step: Step, out: Any) -> None:
    fine = (
        isinstance(out, torch.Tensor)
        and (out.shape == (MIDDLE,) and not out.is_meta and out.is_floating_point())
        and not out.isnan().any()
    )
    if fine:
        found = checked_scores(Scored(out=out), step)
        assert found is out
        assert TopK().select(build_like(step, Scored(out=out)), BUDGET).numel() == BUDGET
        return
    with pytest.raises(PluginError, match=r"^score Scored (must return|fails: )"):
        checked_scores(Scored(out=out), step)


def build_like(step: Step, score: Score) -> Step:
    return build_step(step.queries, torch.randn(1, MIDDLE, 8), low=2, after=1, score=score)


@given(out=tensors() | SCALARS | RAISED | st.tuples(tensors(), tensors()))
def test_positions(out: Any) -> None:
    with pytest.raises(PluginError, match=r"^position Stands (must return Positions|fails: )"):
        near_positions(Stands(out=out), 3, 2, 9, 4)
    given_ = Positions(torch.arange(2), torch.arange(5))
    assert near_positions(Stands(out=given_), 3, 2, 9, 4) is given_
