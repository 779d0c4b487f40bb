"""Conformance of parts: wrong ones fail with the reason; what was watched, in loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from conformance_tools import examine, failed, first
from conftest import copy_registries
from saved_projections import save_learned_projections
from torch import Tensor

import esa_cli.documents.readers  # noqa: F401 - registered before a test copies the registry
from esa_cli.attention.compression import Linear, Moments
from esa_cli.attention.parts import Compressor, Score, Selector
from esa_cli.attention.positions import FixedDistancePositions
from esa_cli.attention.step import LayerState, Positions, Projection, Step
from esa_cli.evaluation.conformance import (
    check,
    check_plugin_file,
    make_step,
    make_step_for_observe,
)
from esa_cli.methods import registry


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_registries(monkeypatch)


BUILDS = "builds a frozen dataclass of its base class"
MEMBERS = "declares its members"
RESULTS = "valid results on random steps"


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
                for _, reduced in step.store.get_reduced_blocks(step.low, step.high):
                    reduced.neg_()
            return torch.zeros(step.middle)

    class RotatesInSilence(Score):
        def scores(self, step: Step) -> Tensor:
            blocks = [block.sum(dim=(0, 1)) for _, block in step.head_logits(True)]
            return torch.cat(blocks) if blocks else torch.zeros(0)


PROJECTIONS = "valid projections"
SCALES = "query_scale (C,)"
FREQUENCIES = "frequencies (D / 2,)"
PLACED = "positions of near and far tokens"
WRONG_SCORES = {
    "NotANumber": (RESULTS, "100 are not finite"),
    "FirstBlockOnly": (RESULTS, "more than one block of keys: scores: torch.float32 (1020,)"),
    "CountsSteps": (RESULTS, "equal steps give different results"),
    "ScribblesOnReducedKeys": (RESULTS, "the part changed the reduced keys"),
    "RotatesInSilence": ("declares whether it rotates", "rotates is False"),
}


@dataclass(frozen=True)
class Maps(Projection):
    """A projection to R = 3 that a test may bend."""

    apart: int = 0
    mix: bool = False
    noise: bool = False
    double: bool = False
    write: bool = False

    def queries(self, q: Tensor) -> Tensor:
        out = q[:, :3] + (torch.rand(1).to(q) if self.noise else 0)
        return out.double() if self.double else out

    def keys(self, k: Tensor) -> Tensor:
        out = k.mul_(2) if self.write else k
        out = out[:, : 3 + self.apart]
        return out - out.mean(dim=0) if self.mix else out


@pytest.mark.parametrize(
    ("projection", "wanted", "detail"),
    [
        (Maps(apart=1), PROJECTIONS, "queries: torch.float32 (1, 3), not numbers (1, 4)"),
        (Maps(mix=True), PROJECTIONS, "apart"),
        (Maps(double=True), PROJECTIONS, "torch.float32 inputs gave torch.float64 queries"),
        (Maps(noise=True), PROJECTIONS, "two equal fits project equal queries"),
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
class Bent(FixedDistancePositions):
    def bend(self, positions: Positions) -> Positions:
        return positions

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return self.bend(super().far(at, local, chunk, start))


@pytest.mark.parametrize(
    ("bend", "detail"),
    [
        (lambda p: Positions(p.query[:-1], p.key), "(7,)"),
        (lambda p: p.query, "far returns a Tensor, not Positions"),
        (lambda p: (*p,), "far returns a tuple, not Positions"),
        (lambda p: Positions(p.query, p.key.tolist()), "far keys: list"),
        (lambda p: Positions(p.query, p.key - 5), "far keys: 40 are not finite or below 0"),
        (lambda p: Positions(p.query * torch.nan, p.key), "far queries: 8 are not finite"),
        (lambda p: Positions(p.query, p.key + 5000), "5000"),
        (lambda p: Positions(p.query > 0, p.key), "torch.bool"),
        (lambda p: Positions(p.query + torch.rand(1), p.key), "are different the second time"),
    ],
)
def test_wrong_positions_fail(bend: Any, detail: str) -> None:
    class Broken(Bent):
        def bend(self, positions: Positions) -> Positions:
            return bend(positions)

    found = examine("position", Broken)
    assert detail in found[PLACED]


def test_encodings_leave_the_positions_they_are_given_alone() -> None:
    class Broken(FixedDistancePositions):
        def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
            return Positions(torch.full((chunk,), self.distance), at.zero_())

    found = examine("position", Broken)
    assert set(found) == {PLACED}
    assert "usual: the encoding changed its argument `at`" in found[PLACED]


@pytest.mark.parametrize(
    ("member", "broken", "wanted", "detail"),
    [
        ("query_scale", lambda at: torch.ones(1), SCALES, "factors: torch.float32 (1,)"),
        ("query_scale", lambda at: at.float().log(), SCALES, "factors: 2 are not finite"),
        (
            "query_scale",
            lambda at: at.float() - at[0] + 1,
            SCALES,
            "the last factor is different when alone",
        ),
        ("frequencies", lambda f, *_: (torch.cat((f, f)), 1.0), FREQUENCIES, "torch.float32 (8,)"),
        (
            "frequencies",
            lambda f, *_: (f.div_(2), 1.0),
            FREQUENCIES,
            "the encoding changed its argument `inverse`",
        ),
        ("frequencies", lambda f, *_: (f, None), FREQUENCIES, "the factor is None"),
        ("frequencies", lambda f, *_: (f * torch.rand(1), 1.0), FREQUENCIES, "the second time"),
        ("max_distance", 0, MEMBERS, "max_distance is 0"),
    ],
)
def test_wrong_optional_members_fail(member: str, broken: Any, wanted: str, detail: str) -> None:
    value = (lambda self, *given: broken(*given)) if callable(broken) else broken
    found = examine("position", type("Broken", (FixedDistancePositions,), {member: value}))
    assert detail in found[wanted]
    assert set(found) == {wanted}


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

        def start_turn_after_survey(self, turn: Any) -> Any:
            return turn.layer_scores

    class OverItsAllowance(Selector):
        def allowance(self, step: Step, budget: int) -> int:
            return budget // 2

        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, 2 * budget)

    class Idle(Selector):
        pass


WRONG_SELECTORS = {
    "Scribbler": (RESULTS, "the part changed the queries"),
    "Vandal": (RESULTS, "the part changed the values"),
    "NotEmpty": (RESULTS, "empty M: raised AssertionError: nothing to choose from"),
    "OverItsAllowance": (RESULTS, "below 100, at most 8"),
    "Remembers": ("works after the store is cropped", "ascending offsets below 6"),
    "RemembersInItself": (RESULTS, "an answer's token: equal steps"),
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
        (lambda step, some: torch.randperm(step.middle)[: len(some)].sort().values, "equal steps"),
    ],
)
def test_wrong_choices_fail(choose: Any, detail: str) -> None:
    class Broken(Selector):
        def select(self, step: Step, budget: int) -> Any:
            return choose(step, first(step, budget))

    found = examine("selector", Broken)
    assert set(found) == {RESULTS}
    assert detail in found[RESULTS]


@pytest.mark.parametrize("name", [*WRONG_SCORES, *WRONG_SELECTORS])
def test_wrong_scores_and_selectors_fail(name: str) -> None:
    kind, parts = ("score", Scores) if name in WRONG_SCORES else ("selector", Selectors)
    found = examine(kind, getattr(parts, name))
    wanted, detail = {**WRONG_SCORES, **WRONG_SELECTORS}[name]
    assert detail in found[wanted]
    assert set(found) == {wanted}


@pytest.mark.parametrize("options", [{}, {"initial": 0}, {"local": 0}, {"dtype": torch.float64}])
def test_watched_has_the_log_sum_exp_of_initial_local_and_current(options: dict[str, Any]) -> None:
    step = make_step(middle=9, chunk=3, **{"initial": 2, "local": 4, **options})
    lse = make_step_for_observe(step).lse
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


BUILT_IN = [
    (kind, name)
    for kind in registry.KINDS
    for name in sorted(registry.PARTS[kind])
    if registry.PARTS[kind].find_module(name).startswith("esa_cli.") and name != "learned"
]


@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_built_in_methods_conform(kind: str, name: str) -> None:
    assert failed(check(kind, name)) == {}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("selector", {"name": "topk", "proximity": 3}),
        ("score", {"name": "sum", "rotate": True}),
        ("score", {"name": "vote", "rule": "max", "rotate": False}),
        ("score", {"name": "vote", "shortlist": 12}),
        ("score", {"name": "bm25", "window": 8, "layers": "all"}),
        ("compressor", {"name": "closed-form", "rank": 3, "fit_tokens": 5}),
    ],
)
def test_built_in_methods_conform_with_other_settings(kind: str, options: dict[str, Any]) -> None:
    assert failed(check(kind, options["name"], options)) == {}


def test_learned_compressor_conforms_when_given_its_file(tmp_path: Path) -> None:
    save_learned_projections(tmp_path / "maps.safetensors", [Linear(*torch.randn(2, 32, 4))])
    options = {"file": str(tmp_path / "maps.safetensors")}
    assert failed(check("compressor", "learned", options)) == {}
    assert "missing" in failed(check("compressor", "learned"))[BUILDS]


def test_a_method_must_be_frozen() -> None:
    @dataclass
    class Open(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget)

    registry.register("selector", "open")(Open)
    assert "frozen=True" in failed(check("selector", "open"))[BUILDS]


def test_check_file_checks_everything_it_registers(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from esa_cli.methods import Selector, register\n"
        "@register('selector', 'a')\n@dataclass(frozen=True)\nclass A(Selector):\n"
        "    def select(self, step, budget):\n        raise KeyError(budget)\n"
        "@register('position', 'b')\n@dataclass(frozen=True)\nclass B:\n    pass\n"
    )
    found = check_plugin_file(path)
    assert set(found) == {("selector", "a"), ("position", "b")}
    assert failed(found["selector", "a"]) == {
        "valid results on random steps": "usual: raised KeyError: 16 (two.py, line 7)"
    }
    assert "not derived from PositionEncoding" in failed(found["position", "b"])[BUILDS]


RECIPE = """
from esa_cli.methods.registry import recipe
@recipe("recipe-under-test", about="", source="", cost="")
def under_test(base):
    return {}
"""
WRONG_RECIPES = {
    "{'window': {'selected': base.window.selected + 1}}": "must attend to the preset's 2112 tokens",
    "{'selector': {'name': 'topkk'}}": "unknown selector 'topkk'",
    "{'selector': {'name': 'topk', 'proximty': 3}}": "no setting 'proximty'",
    "{'windows': {'local': 3}}": "must not set 'windows'",
    "{'model': 'random:llama'}": "must not set 'model'",
    "None": "must return a mapping, got None",
    "{}['key']": "fails: KeyError: 'key'",
}


@pytest.mark.parametrize("settings", WRONG_RECIPES)
def test_wrong_recipes_fail(settings: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(RECIPE.replace("{}", settings))
    (found,) = check_plugin_file(path).values()
    assert WRONG_RECIPES[settings] in failed(found)["valid settings"]


@pytest.mark.parametrize("name", sorted(registry.RECIPES))
def test_built_in_recipes_conform(name: str) -> None:
    assert failed(check("method", name)) == {}
