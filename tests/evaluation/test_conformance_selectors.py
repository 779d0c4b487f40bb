"""Conformance of selectors: right ones pass, wrong ones fail with the reason; random steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import reference
import torch
from conformance_tools import examine, first
from conftest import copy_registries
from torch import Tensor

import esa_cli.documents.readers  # noqa: F401 - registered before a test copies the registry
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import LayerState, Step
from esa_cli.evaluation.conformance import advance, make_step, observed_step


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_registries(monkeypatch)


class First(Selector):
    def select(self, step: Step, budget: int) -> Tensor:
        return first(step, budget)


def loud(step: Step, budget: int) -> Tensor:
    """The best by the first head and query."""
    logits = [block[0, 0] for _, block in step.head_logits(False)] or [torch.zeros(0)]
    best = torch.cat(logits).topk(min(budget, step.middle)).indices
    return best.sort().values


@dataclass
class Uncut(LayerState):
    """A layer state that stays as it is when tokens are taken back."""

    kept: Tensor | None = None

    def crop(self, length: int) -> None:
        pass


class Selectors:
    """One broken selector each; `WRONG_SELECTORS` is what the suite has to say."""

    class Duplicates(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget) // 2

    class TooFar(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget) + 1

    class Greedy(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, step.middle)

    class Random(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            return torch.randperm(step.middle)[:budget].sort().values

    class Scribbler(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            step.queries.mul_(2)
            return first(step, budget)

    class Vandal(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            step.store.span(0, 3)[1].mul_(2)
            return first(step, budget)

    class NotEmpty(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            assert step.middle > 0, "nothing to choose from"
            return first(step, budget)

    class Remembers(Selector):
        def new_layer_state(self) -> Uncut:
            return Uncut()

        def select(self, step: Step, budget: int) -> Tensor:
            state = step.layer_state(self)
            state.kept = first(step, budget) if state.kept is None else state.kept
            return state.kept

    class RemembersInItself(Selector):
        kept: dict[int, Tensor] = field(default_factory=dict, init=False)

        def select(self, step: Step, budget: int) -> Tensor:
            if not step.decoding:
                self.kept[step.layer] = loud(step, budget)
            return self.kept.get(step.layer, loud(step, budget))

    class NothingAfter(First):
        surveys: bool = True

        def after_survey(self, turn: Any) -> Any:
            return turn.layer_scores

    class SumsPerhaps(First):
        sums_layers: Any = "perhaps"

    class RandomInLateLayers(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            some = torch.randperm(step.middle)[:budget].sort().values
            return some if step.layer > 20 else first(step, budget)

    class OneHeadTooFar(Selector):
        def select(self, step: Step, budget: int) -> list[Tensor]:
            rows = [first(step, budget)] * (step.queries.shape[0] - 1)
            return [*rows, first(step, budget) + 1]

    class Fraction(Selector):
        def allowance(self, step: Step, budget: int) -> Any:
            return budget / 2

        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget)

    class OverItsAllowance(Selector):
        def allowance(self, step: Step, budget: int) -> int:
            return budget // 2

        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, 2 * budget)

    class Idle(Selector):
        pass


BUILDS = "builds a frozen dataclass of its base class"
MEMBERS = "declares its members"
RESULTS = "valid results on random steps"
WRONG_SELECTORS = {
    "Duplicates": (RESULTS, "ascending offsets"),
    "TooFar": (RESULTS, "k > M: raised ValueError: must select ascending offsets below 7"),
    "Greedy": (RESULTS, "usual: raised ValueError: must select ascending offsets below 100, at"),
    "Random": (RESULTS, "equal steps give different results"),
    "Scribbler": (RESULTS, "the part changed the queries"),
    "Vandal": (RESULTS, "the part changed the values"),
    "NotEmpty": (RESULTS, "empty M: raised AssertionError: nothing to choose from"),
    "OneHeadTooFar": (RESULTS, "k > M: "),
    "Fraction": (RESULTS, "usual: allowance is 8.0"),
    "OverItsAllowance": (RESULTS, "below 100, at most 8"),
    "Remembers": ("works after the store is cropped", "ascending offsets below 6"),
    "RemembersInItself": (RESULTS, "an answer's token: equal steps"),
    "RandomInLateLayers": (RESULTS, "a late layer: equal steps"),
    "NothingAfter": (MEMBERS, "no attribute 'layer_scores'"),
    "SumsPerhaps": (MEMBERS, "sums_layers is 'perhaps'"),
    "Idle": (BUILDS, "abstract method"),
}


@pytest.mark.parametrize("error", [SystemExit(0), BaseException("b")])
def test_a_selector_that_ends_the_program_fails(error: BaseException) -> None:
    class Ends(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            raise error

    found = examine("selector", Ends)
    assert any(f"raised {type(error).__name__}" in detail for detail in found.values())


@pytest.mark.parametrize("name", WRONG_SELECTORS)
def test_wrong_selectors_fail(name: str) -> None:
    found = examine("selector", getattr(Selectors, name))
    wanted, detail = WRONG_SELECTORS[name]
    assert detail in found[wanted]
    assert set(found) == {wanted}


def test_make_step_has_the_shapes_it_says() -> None:
    step = make_step(middle=20, chunk=3, initial=5, local=7, heads=4, groups=2, dim=8)
    assert step.queries.shape == (4, 3, 8)
    assert step.store.span(0, 35)[0].shape == (2, 35, 8)
    assert (step.low, step.high, step.local, step.start) == (5, 25, 7, 32)
    later = advance(step, 2)
    assert (later.low, later.high, later.local, later.start) == (5, 28, 7, 35)
    step.store.crop(-30)
    short = advance(replace(later, start=0), 1)
    assert (short.low, short.high, short.local, short.start) == (0, 0, 7, 7)


class Right:
    """Selectors that use all that the protocol allows."""

    class Ragged(Selector):
        def allowance(self, step: Step, budget: int) -> int:
            return step.middle if step.layer == 0 else budget

        def select(self, step: Step, budget: int) -> list[Tensor]:
            heads = step.queries.shape[0]
            return [first(step, budget * head // heads) for head in range(heads)]

    class Observing(Selector):
        def observe(self, step: Step) -> None:
            assert step.lse is not None
            assert step.lse.shape == step.queries.shape[:2]

        def select(self, step: Step, budget: int) -> Tensor:
            assert step.lse is None
            return first(step, budget)

    class SharedByLayers(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            kept: list[Tensor] = step.turn_state(self)
            if not kept:
                kept.append(first(step, budget))
            return kept[0][:budget]

        def new_turn_state(self) -> list[Tensor]:
            return []


@pytest.mark.parametrize("name", ["Ragged", "Observing", "SharedByLayers"])
def test_right_selectors_pass(name: str) -> None:
    assert examine("selector", getattr(Right, name)) == {}


@pytest.mark.parametrize("options", [{}, {"initial": 0}, {"local": 0}, {"dtype": torch.float64}])
def test_watched_has_the_log_sum_exp_of_initial_local_and_current(options: dict[str, Any]) -> None:
    step = make_step(middle=9, chunk=3, **{"initial": 2, "local": 4, **options})
    lse = observed_step(step).lse
    assert lse is not None
    heads, chunk, _ = step.queries.shape
    keys = reference.plain(step.store.span(0, len(step.store))[0])
    queries = reference.plain(step.queries)
    for h in range(heads):
        for c in range(chunk):
            at = step.start + c
            away = dict.fromkeys(range(step.low), float(step.distance))
            away |= {n: at - n for n in range(step.start - step.local, at + 1)}
            group = keys[reference.group_of(h, heads, len(keys))]
            logits = [
                step.scale * reference.dot(reference.rotate(queries[h][c], apart), group[n])
                for n, apart in away.items()
            ]
            _, want = reference.softmax_over(logits, [[]] * len(logits), 0)
            assert float(lse[h, c]) == pytest.approx(want, abs=1e-4)
