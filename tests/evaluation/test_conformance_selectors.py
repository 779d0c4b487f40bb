"""Conformance of selectors: right ones pass, wrong ones fail with the reason; random steps."""

from __future__ import annotations

from dataclasses import dataclass, field
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
from esa_cli.evaluation.conformance import make_step, observed_step


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
    "Scribbler": (RESULTS, "the queries changed"),
    "Vandal": (RESULTS, "the values changed"),
    "NotEmpty": (RESULTS, "empty M: raised AssertionError: nothing to choose from"),
    "OverItsAllowance": (RESULTS, "below 100, at most 8"),
    "Remembers": ("works after the store is cropped", "ascending offsets below 6"),
    "RemembersInItself": (RESULTS, "an answer's token: another result"),
    "NothingAfter": (MEMBERS, "no attribute 'layer_scores'"),
    "Idle": (BUILDS, "abstract method"),
}


@pytest.mark.parametrize("error", [SystemExit(0), BaseException("b")])
def test_a_selector_that_ends_the_program_fails(error: BaseException) -> None:
    class Ends(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            raise error

    found = examine("selector", Ends)
    assert any(f"raised {type(error).__name__}" in detail for detail in found.values())


@pytest.mark.parametrize(
    ("choose", "detail"),
    [
        (lambda step, some: some // 2, "ascending offsets"),
        (lambda step, some: some + 1, "k > M: raised ValueError: must select ascending offsets"),
        (lambda step, some: torch.arange(step.middle), "offsets below 100, at most 16"),
        (lambda step, some: [*[some] * (len(step.queries) - 1), some + 1], "k > M: "),
        (
            lambda step, some: torch.randperm(step.middle)[: len(some)].sort().values,
            "an equal step",
        ),
    ],
)
def test_wrong_choices_fail(choose: Any, detail: str) -> None:
    class Broken(Selector):
        def select(self, step: Step, budget: int) -> Any:
            return choose(step, first(step, budget))

    found = examine("selector", Broken)
    assert set(found) == {RESULTS}
    assert detail in found[RESULTS]


@pytest.mark.parametrize("name", WRONG_SELECTORS)
def test_wrong_selectors_fail(name: str) -> None:
    found = examine("selector", getattr(Selectors, name))
    wanted, detail = WRONG_SELECTORS[name]
    assert detail in found[wanted]
    assert set(found) == {wanted}


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
