"""The suite passes what is right, and fails what is wrong for the right reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from conftest import copy_registries
from torch import Tensor

import esa_cli.documents.readers  # noqa: F401 - registered before a test copies the registry
from esa_cli.attention.compression import Linear, Moments
from esa_cli.attention.interfaces import Positions
from esa_cli.attention.learned_maps import save_learned
from esa_cli.attention.positions import FixedDistance
from esa_cli.attention.step import Step
from esa_cli.errors import PluginError, PresetError
from esa_cli.evaluation.conformance import Finding, advance, check, check_file, make_step
from esa_cli.evaluation.conformance.random_steps import watched
from esa_cli.evaluation.conformance.selector_checks import SHAPE
from esa_cli.methods import recipes, registry

BUILT_IN = [
    (kind, name)
    for kind in registry.KINDS
    for name in registry.names(kind)
    if registry.origin(kind, name).startswith("esa_cli.") and name != "learned"
]


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_registries(monkeypatch)


def failed(findings: list[Finding]) -> dict[str, str]:
    """What did not pass, and why; a finding has a detail exactly when it did not."""
    assert all(finding.passed == (finding.detail == "") for finding in findings)
    return {finding.check: finding.detail for finding in findings if not finding.passed}


def examine(kind: str, cls: type) -> dict[str, str]:
    registry.register(kind, "under-test")(dataclass(frozen=True)(cls))
    return failed(check(kind, "under-test"))


@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_built_in_methods_conform(kind: str, name: str) -> None:
    assert failed(check(kind, name)) == {}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("selector", {"name": "topk", "proximity": 3}),
        ("score", {"name": "sum", "rotate": True}),
        ("score", {"name": "vote", "rule": "max", "pool": "mean", "rotate": False}),
        ("score", {"name": "vote", "shortlist": 12}),
        ("compressor", {"name": "closed-form", "rank": 3, "fit_tokens": 5}),
    ],
)
def test_built_in_methods_conform_with_other_settings(kind: str, options: dict[str, Any]) -> None:
    assert failed(check(kind, options["name"], options)) == {}


def test_learned_compressor_conforms_when_given_its_file(tmp_path: Path) -> None:
    save_learned(tmp_path / "maps.safetensors", [Linear(torch.randn(24, 4), torch.randn(24, 4))])
    options = {"file": str(tmp_path / "maps.safetensors")}
    assert failed(check("compressor", "learned", options, folded=24)) == {}
    assert "missing" in failed(check("compressor", "learned"))["builds"]


def test_check_needs_a_method_there_is() -> None:
    with pytest.raises(PluginError, match="no such kind"):
        check("banana", "topk")
    with pytest.raises(PresetError, match="unknown selector"):
        check("selector", "topp")


def first(step: Step, budget: int) -> Tensor:
    return torch.arange(min(budget, step.middle))


class First:
    def select(self, step: Step, budget: int) -> Tensor:
        return first(step, budget)


def loud(step: Step, budget: int) -> Tensor:
    """The best by the first head and query."""
    logits = [block[0, 0] for _, block in step.head_logits(False)] or [torch.zeros(0)]
    best = torch.cat(logits).topk(min(budget, step.middle)).indices
    return best.sort().values


class Uncut(list[Tensor]):
    """A memo value that stays as it is when tokens are taken back."""

    def truncate(self, length: int) -> None:
        pass


class Selectors:
    """One broken selector each; `WRONG_SELECTORS` is what the suite has to say."""

    class Duplicates:
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget) // 2

    class Descending:
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget).flip(0)

    class TooFar:
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget) + 1

    class Negative:
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget) - 1

    class Greedy:
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, step.middle)

    class Narrow:
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget).int()

    class Square:
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget)[None]

    class AList:
        def select(self, step: Step, budget: int) -> Any:
            return first(step, budget).tolist()

    class Random:
        def select(self, step: Step, budget: int) -> Tensor:
            return torch.randperm(step.middle)[:budget].sort().values

    class Scribbler:
        def select(self, step: Step, budget: int) -> Tensor:
            step.queries.mul_(2)
            return first(step, budget)

    class ScribblingObserver:
        def observe(self, step: Step) -> None:
            step.queries.mul_(2)

        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget)

    class Vandal:
        def select(self, step: Step, budget: int) -> Tensor:
            step.store.span(0, 3)[1].mul_(2)
            return first(step, budget)

    class NotEmpty:
        def select(self, step: Step, budget: int) -> Tensor:
            assert step.middle > 0, "nothing to choose from"
            return first(step, budget)

    class Remembers:
        def select(self, step: Step, budget: int) -> Tensor:
            kept: list[Tensor] = step.store.memo.setdefault("kept", Uncut([first(step, budget)]))
            return kept[0]

    class RemembersInItself:
        kept: dict[int, Tensor] = field(default_factory=dict, init=False)

        def select(self, step: Step, budget: int) -> Tensor:
            if not step.decoding:
                self.kept[step.layer] = loud(step, budget)
            return self.kept.get(step.layer, loud(step, budget))

    class ThreeRounds(First):
        rounds: Any = 3

    class NothingAgain(First):
        rounds: int = 2

    class NoneAgain(NothingAgain):
        def again(self, shared: dict[str, Any]) -> None:
            return None

    class SumsPerhaps(First):
        sums_layers: Any = "perhaps"

    class RandomInLateLayers:
        def select(self, step: Step, budget: int) -> Tensor:
            some = torch.randperm(step.middle)[:budget].sort().values
            return some if step.layer > 20 else first(step, budget)

    class TwoHeads:
        def select(self, step: Step, budget: int) -> list[Tensor]:
            return [first(step, budget)] * 2

    class OneHeadTooFar:
        def select(self, step: Step, budget: int) -> list[Tensor]:
            rows = [first(step, budget)] * (step.queries.shape[0] - 1)
            return [*rows, first(step, budget) + 1]

    class OneHeadSquare:
        def select(self, step: Step, budget: int) -> list[Tensor]:
            rows = [first(step, budget)] * (step.queries.shape[0] - 1)
            return [first(step, budget)[None], *rows]

    class OneHeadRandom:
        def select(self, step: Step, budget: int) -> list[Tensor]:
            some = torch.randperm(step.middle)[:budget].sort().values
            return [some] + [first(step, budget)] * (step.queries.shape[0] - 1)

    class Fraction:
        def allowance(self, step: Step, budget: int) -> Any:
            return budget / 2

        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget)

    class OverItsAllowance:
        def allowance(self, step: Step, budget: int) -> int:
            return budget // 2

        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, 2 * budget)

    class EarlyLayersOnly:
        def select(self, step: Step, budget: int) -> Tensor:
            assert step.layer < 30, "no such layer"
            return first(step, budget)

    class NotForAnswers:
        def select(self, step: Step, budget: int) -> Tensor:
            assert not step.decoding, "an answer"
            return first(step, budget)

    class Idle:
        pass


WRONG_SELECTORS = {
    "Duplicates": ("unique", "such as 0"),
    "Descending": ("ascending", "14 follows 15 at place 1"),
    "TooFar": ("inside M", "offset 7 with M = 7"),
    "Negative": ("inside M", "offset -1 with M = 100"),
    "Greedy": ("within the budget", "100 tokens for budget 16 and M = 100: 16 at most"),
    "Narrow": ("int64", "torch.int32"),
    "Square": (SHAPE, "(1, 16)"),
    "AList": (SHAPE, "a list of 16 for 6 query heads"),
    "Random": ("deterministic", "of 16 numbers differ"),
    "Scribbler": ("leaves the queries alone", "768 of 768"),
    "ScribblingObserver": ("leaves the queries alone", "768 of 768"),
    "Vandal": ("leaves the store alone", "96 of 4096 numbers in the values changed"),
    "NotEmpty": ("runs: empty M", "AssertionError: nothing to choose from"),
    "TwoHeads": (SHAPE, "a list of 2 for 6 query heads"),
    "OneHeadTooFar": ("inside M", "head 5: offset 7 with M = 7"),
    "OneHeadSquare": (SHAPE, "head 0: has shape (1, 16)"),
    "OneHeadRandom": ("deterministic", "of 96 numbers differ"),
    "Fraction": ("allowance is a whole number from 0", "0.0 in layer 0 for budget 0"),
    "OverItsAllowance": ("within the budget", "16 tokens for budget 8 and M = 100: 8 at most"),
    "EarlyLayersOnly": ("runs: a late layer", "no such layer"),
    "NotForAnswers": ("runs: an answer's token", "an answer"),
    "Remembers": ("works after the store is cropped", "M = 6: not within the budget"),
    "RemembersInItself": ("deterministic", "an answer's token: "),
    "RandomInLateLayers": ("deterministic", "a late layer: "),
    "ThreeRounds": ("declares its optional members", "rounds is 3, not 1 or 2"),
    "NothingAgain": ("declares its optional members", "no attribute 'again'"),
    "NoneAgain": ("declares its optional members", "again gives None, not a dict"),
    "SumsPerhaps": ("declares its optional members", "sums_layers is 'perhaps'"),
    "Idle": ("has select(step, budget)", "no such method"),
}


@pytest.mark.parametrize("name", WRONG_SELECTORS)
def test_wrong_selectors_fail(name: str) -> None:
    found = examine("selector", getattr(Selectors, name))
    wanted, detail = WRONG_SELECTORS[name]
    assert detail in found[wanted]
    # What a wrong result of any step breaks as well: the same property in the cropped store.
    also = {"works after the store is cropped"}
    if wanted == SHAPE:
        also |= {"int64", "on the queries' device", "within the budget"}
        also |= {"inside M", "ascending", "unique", "deterministic"}
    assert set(found) <= {wanted} | also


class Scores:
    """One broken score each."""

    class NotANumber:
        features: bool = False

        def scores(self, step: Step) -> Tensor:
            return torch.full((step.middle,), torch.nan)

    class Infinite:
        features: bool = False

        def scores(self, step: Step) -> Tensor:
            return torch.full((step.middle,), torch.inf)

    class FirstBlockOnly:
        features: bool = False

        def scores(self, step: Step) -> Tensor:
            blocks = (logits.sum(dim=(0, 1)) for _, logits in step.head_logits(False))
            return next(blocks, step.queries.new_zeros(0))

    class Whole:
        features: bool = False

        def scores(self, step: Step) -> Tensor:
            return torch.zeros(step.middle, dtype=torch.long)

    class Undecided:
        features: Any = "perhaps"

        def scores(self, step: Step) -> Tensor:
            return torch.zeros(step.middle)

    class Dice:
        features: bool = False

        def scores(self, step: Step) -> Tensor:
            return torch.rand(step.middle)

    class LastOfAll:
        features: bool = False
        last: Any = "the last"

        def scores(self, step: Step) -> Tensor:
            return torch.zeros(step.middle)

    class CountsSteps:
        features: bool = False
        seen: list[int] = field(default_factory=list, init=False)

        def scores(self, step: Step) -> Tensor:
            self.seen.append(step.start)
            return torch.full((step.middle,), float(len(self.seen) > 9))

    class ScribblesOnReducedKeys:
        features: bool = True

        def scores(self, step: Step) -> Tensor:
            if step.projection is not None:
                for _, reduced in step.store.feature_blocks(step.low, step.high):
                    reduced.neg_()
            return torch.zeros(step.middle)

    class NeedsOne:
        features: bool = True

        def scores(self, step: Step) -> Tensor:
            return torch.cat([block.amax(dim=0) for _, block in step.sums(False)])


WRONG_SCORES = {
    "NotANumber": ("never NaN", "100 of 100"),
    "Infinite": ("never +inf", "100 of 100"),
    "FirstBlockOnly": ("a tensor of M scores", "more than one block of keys: has 1020 scores"),
    "Whole": ("floating point", "torch.int64"),
    "Undecided": ("declares features", "'perhaps'"),
    "Dice": ("deterministic", "numbers differ on the same step again"),
    "LastOfAll": ("declares last", "last is 'the last'"),
    "CountsSteps": ("deterministic", "numbers differ on an equal step, after others"),
    "ScribblesOnReducedKeys": (
        "leaves the store alone",
        "reduced keys: 500 of 520 numbers in the reduced keys changed",
    ),
    "NeedsOne": ("runs: empty M", "raised"),
}


@pytest.mark.parametrize("name", WRONG_SCORES)
def test_wrong_scores_fail(name: str) -> None:
    found = examine("score", getattr(Scores, name))
    wanted, detail = WRONG_SCORES[name]
    assert detail in found[wanted]
    assert set(found) == {wanted}


@dataclass(frozen=True)
class Maps:
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
        (Maps(apart=1), "shapes (C, R) and (n, R)", "R is 3 for queries and 4 for keys"),
        (Maps(mix=True), "each key on its own", "apart"),
        (Maps(noise=True), "deterministic", "two fits map the same queries"),
        (Maps(running=True), "each key on its own", "key 50 of 100 is mapped"),
        (Maps(double=True), "one floating point dtype", "torch.float32 queries became"),
        (Maps(write=True), "leaves queries and keys alone", "32 numbers were written over"),
    ],
)
def test_wrong_compressors_fail(projection: Maps, wanted: str, detail: str) -> None:
    class Broken:
        fit_tokens: int = field(default=4, init=False)

        def fit(self, layer: int, moments: Moments) -> Maps:
            return projection

    found = examine("compressor", Broken)
    assert detail in found[wanted]
    assert set(found) == {wanted}


def test_compressors_may_leave_short_documents_alone() -> None:
    class Careful:
        fit_tokens: int = 9

        def fit(self, layer: int, moments: Moments) -> Maps | None:
            return None if moments.count < 9 else Maps()

    assert examine("compressor", Careful) == {}


def test_what_is_fitted_on_all_the_tokens_is_looked_at_too() -> None:
    class Broken:
        fit_tokens: int = 9

        def fit(self, layer: int, moments: Moments) -> Maps:
            return Maps(apart=moments.count // 9)

    assert set(examine("compressor", Broken)) == {"shapes (C, R) and (n, R)"}


@pytest.mark.parametrize("name", ["queries", "keys", "count", "seen"])
def test_compressors_leave_the_moments_alone(name: str) -> None:
    class Broken:
        fit_tokens: int = 4

        def fit(self, layer: int, moments: Moments) -> None:
            setattr(moments, name, getattr(moments, name) + 1)

    found = examine("compressor", Broken)
    assert "fit changed the moments" in found["runs: fit on all the tokens asked for"]


@pytest.mark.parametrize("count", [-1, 2.5, True])
def test_fit_tokens_must_be_a_count(count: Any) -> None:
    class Broken:
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
        (lambda p: Positions(p.query[:-1], p.key), "shapes (C,), (L + C,) and (n,)", "(7,)"),
        (lambda p: p.query, "shapes (C,), (L + C,) and (n,)", "far gives a Tensor, not Positions"),
        (lambda p: (*p,), "shapes (C,), (L + C,) and (n,)", "far gives a tuple, not Positions"),
        (lambda p: Positions(p.query, p.key.tolist()), "shapes (C,), (L + C,) and (n,)", "a list"),
        (lambda p: Positions(p.query, p.key - 5), "not negative", "far keys go down to -5"),
        (lambda p: Positions(p.query * torch.nan, p.key), "finite", "8 far queries"),
        (lambda p: Positions(p.query, p.key + 5000), "no far query before a far key", "5000"),
        (lambda p: Positions(p.query > 0, p.key), "integers or floats", "torch.bool"),
        (lambda p: Positions(p.query + torch.rand(1), p.key), "deterministic", "8 far queries"),
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
    assert set(found) == {"leaves the positions it is given alone"}
    assert "usual: 39 of the positions" in found["leaves the positions it is given alone"]


def test_encodings_repeat_themselves_in_every_place() -> None:
    class Broken(FixedDistance):
        def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
            place = super().near(local, chunk, start, far)
            return Positions(place.query, place.key + (torch.rand(1) if start > 1000 else 0))

    found = examine("position", Broken)
    assert set(found) == {"deterministic"}
    assert "a long document: 1536 near keys differ the second time" in found["deterministic"]


class Encodings:
    """Encodings whose optional members are broken, one each; `WRONG_MEMBERS` has the complaint."""

    class NoReach(FixedDistance):
        reach: Any = 0

    class SpokenReach(FixedDistance):
        reach: Any = "far"

    class OneSharpness(FixedDistance):
        def sharpness(self, at: Tensor) -> Tensor:
            return torch.ones(1)

    class WholeSharpness(FixedDistance):
        def sharpness(self, at: Tensor) -> Tensor:
            return torch.ones_like(at)

    class LostSharpness(FixedDistance):
        def sharpness(self, at: Tensor) -> Tensor:
            return at.float().log()

    class CommonSharpness(FixedDistance):
        def sharpness(self, at: Tensor) -> Tensor:
            return at.float() - at[0] + 1

    class EveryFrequency(FixedDistance):
        def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
            return torch.cat((inverse, inverse)), factor

    class NoFrequency(FixedDistance):
        def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
            return inverse / (length - 1), factor

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
    "NoReach": ("declares reach", "reach is 0"),
    "SpokenReach": ("declares reach", "reach is 'far'"),
    "OneSharpness": ("sharpness (C,)", "the first tokens: not one factor a query: shape (1,)"),
    "WholeSharpness": ("sharpness (C,)", "torch.int64"),
    "LostSharpness": ("sharpness (C,)", "2 factors are not finite and above 0"),
    "CommonSharpness": ("sharpness (C,)", "the last query's factor is 8, but alone it has 1"),
    "EveryFrequency": ("frequencies (D / 2,)", "short: not D / 2 = 4 frequencies: shape (8,)"),
    "NoFrequency": ("frequencies (D / 2,)", "frequencies are not finite floats from 0"),
    "Overwritten": ("frequencies (D / 2,)", "changes the frequencies it is given"),
    "NoFactor": ("frequencies (D / 2,)", "the factor is None"),
    "Restless": ("frequencies (D / 2,)", "other frequencies the second time"),
}


@pytest.mark.parametrize("name", WRONG_MEMBERS)
def test_wrong_optional_members_fail(name: str) -> None:
    found = examine("position", getattr(Encodings, name))
    wanted, detail = WRONG_MEMBERS[name]
    assert detail in found[wanted]
    assert set(found) == {wanted}


def test_optional_members_are_looked_at_where_there_are_any() -> None:
    class Whole(FixedDistance):
        reach = 7

        def sharpness(self, at: Tensor) -> Tensor:
            return torch.full(at.shape, 1.5)

        def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
            return inverse / 2, factor

    registry.register("position", "whole")(dataclass(frozen=True)(Whole))
    optional = {"declares reach", "sharpness (C,)", "frequencies (D / 2,)"}
    assert optional <= {finding.check for finding in check("position", "whole") if finding.passed}
    assert not optional & {finding.check for finding in check("position", "esa")}


def test_a_method_must_be_frozen() -> None:
    @dataclass
    class Open:
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget)

    registry.register("selector", "open")(Open)
    assert set(failed(check("selector", "open"))) == {"frozen"}


def test_check_file_checks_everything_it_registers(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from esa_cli.methods.registry import register\n"
        "@register('selector', 'a')\n@dataclass(frozen=True)\nclass A:\n"
        "    def select(self, step, budget):\n        raise KeyError(budget)\n"
        "@register('position', 'b')\n@dataclass(frozen=True)\nclass B:\n    pass\n"
    )
    found = check_file(path)
    assert set(found) == {("selector", "a"), ("position", "b")}
    assert failed(found["selector", "a"])["runs: usual"] == "raised KeyError: 16 (two.py, line 7)"
    assert "has distance, near and far" in failed(found["position", "b"])


def test_a_setting_without_a_default_is_asked_for() -> None:
    class Needy:
        file: str

        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget)

    assert "esa_cli.evaluation.conformance takes file" in examine("selector", Needy)["builds"]
    assert failed(check("selector", "under-test", {"file": "maps.pt"})) == {}


RECIPE = """
from esa_cli.methods.recipes import recipe
@recipe("recipe-under-test", about="", source="", cost="")
def under_test(base):
    return {}
"""
WRONG_RECIPES = {
    "{'window': {'selected': base.window.selected + 1}}": "takes 2113 tokens where",
    "{'selector': {'name': 'topkk'}}": "unknown selector 'topkk'",
    "{'selector': {'name': 'topk', 'proximty': 3}}": "no setting 'proximty'",
    "{'windows': {'local': 3}}": "sets 'windows'",
    "{'model': 'random:llama'}": "sets 'model'",
    "None": "gives no mapping but None",
    "{}['key']": "fails: KeyError: 'key'",
}


@pytest.mark.parametrize("settings", WRONG_RECIPES)
def test_wrong_recipes_fail(settings: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(RECIPE.replace("{}", settings))
    (found,) = check_file(path).values()
    assert WRONG_RECIPES[settings] in failed(found)["runs: usual"]
    assert failed(found).get("deterministic", "no case") != ""


def test_recipes_have_to_hold_for_every_preset_and_length(tmp_path: Path) -> None:
    path = tmp_path / "narrow.py"
    settings = (
        "{'position': {'name': 'esa', 'distance': 4000}, 'window': {'local': 0 if base.length"
    )
    settings += " > 1000 else base.window.local}}"
    path.write_text(RECIPE.replace("{}", settings))
    (found,) = check_file(path).values()
    short = {"runs: a short document", "runs: an unknown length"}
    assert set(failed(found)) == {one.check for one in found if "runs" in one.check} - short


def test_recipes_have_to_repeat_themselves(tmp_path: Path) -> None:
    path = tmp_path / "random.py"
    settings = "{'position': {'name': 'esa', 'distance': __import__('random').randrange(400)}}"
    path.write_text(RECIPE.replace("{}", settings))
    (found,) = check_file(path).values()
    assert "other settings the second time" in failed(found)["deterministic"]


@pytest.mark.parametrize("name", [one.name for one in recipes.known()])
def test_built_in_recipes_conform(name: str) -> None:
    assert failed(check("method", name)) == {}


def test_readers_have_no_checks(tmp_path: Path) -> None:
    path = tmp_path / "reader.py"
    path.write_text(
        "from esa_cli.documents.readers import register\n"
        "@register('reader-under-test')\nclass R:\n"
        "    what, suffixes, binary = 'a test', ('.under-test',), False\n"
        "    def sniff(self, head): return False\n"
        "    def read(self, data, name): raise ValueError\n"
    )
    with pytest.raises(PluginError, match="readers only, and there are no checks"):
        check_file(path)
    path = tmp_path / "both.py"
    path.write_text((tmp_path / "reader.py").read_text().replace("-under-test", "-2") + RECIPE)
    assert [pair[0] for pair in check_file(path)] == ["method"]


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

    class Ragged:
        def allowance(self, step: Step, budget: int) -> int:
            return step.middle if step.layer == 0 else budget

        def select(self, step: Step, budget: int) -> list[Tensor]:
            heads = step.queries.shape[0]
            return [first(step, budget * head // heads) for head in range(heads)]

    class Observing:
        def observe(self, step: Step) -> None:
            assert step.lse is not None
            assert step.lse.shape == step.queries.shape[:2]

        def select(self, step: Step, budget: int) -> Tensor:
            assert step.lse is None
            return first(step, budget)

    class SharedByLayers:
        def select(self, step: Step, budget: int) -> Tensor:
            kept: Tensor = step.shared.setdefault("kept", first(step, budget))
            return kept[:budget]


@pytest.mark.parametrize("name", ["Ragged", "Observing", "SharedByLayers"])
def test_right_selectors_pass(name: str) -> None:
    assert examine("selector", getattr(Right, name)) == {}


def test_make_step_observes_as_attention_does() -> None:
    """A chunk is observed after it was selected for: with the next step, or when tokens go."""
    seen: list[tuple[int, int, int, int, int]] = []

    def observe(step: Step) -> None:
        stop = step.start + step.queries.shape[1]
        assert len(step.store) == stop, "the chunk's own keys are in the store"
        seen.append((step.low, step.high, step.local, step.start, stop))

    step = make_step(middle=300, observe=observe)
    assert seen == [(0, 0, 0, 0, 256), (0, 240, 16, 256, 320)]
    step = advance(step, 5, observe=observe)
    assert seen[2:] == [(0, 304, 16, 320, 328)]
    step = advance(step, 1, back=11, decoding=True, observe=observe)
    assert seen[3:] == [(0, 312, 16, 328, 333)]
    assert (step.start, step.decoding, len(step.store)) == (322, True, 323)
    step.store.crop(-1)
    step = advance(step, 2, observe=observe)
    assert (len(seen), step.start, step.decoding) == (4, 322, False)


@pytest.mark.parametrize("options", [{}, {"initial": 0}, {"local": 0}, {"dtype": torch.float64}])
def test_watched_has_the_log_sum_exp_of_initial_local_and_current(options: dict[str, Any]) -> None:
    step = make_step(middle=9, chunk=3, **{"initial": 2, "local": 4, **options})
    lse = watched(step).lse
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
