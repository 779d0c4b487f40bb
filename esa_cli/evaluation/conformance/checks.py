"""Checks of parts and recipes against the interfaces. An exception in one is a finding, too.

Selectors may select fewer than min(budget, M) tokens, never more; as in attention, a selector gets
its own allowance, and observes the chunk after. A compressor must reduce each key on its own: keys
are reduced block by block, as tokens leave L. Near tokens need not have their true distances.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.compression import Linear
from esa_cli.attention.parts import Compressor, Moments, PositionEncoding, Score, Selector
from esa_cli.attention.step import Positions, Projection, Step
from esa_cli.attention.window import Window
from esa_cli.errors import NOT_BLAMED, EsaError
from esa_cli.evaluation.conformance.random_steps import Observe, advance, make_step, observed_step
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import resolve

SELECTION = "ascending offsets inside M, within the budget"
SCORES = "a finite score for each token of M"
UNTOUCHED = "leaves queries and store alone"
MAPS = "reduces queries and keys, each on its own"
PLACED = "positions of near and far tokens"
MEMBERS = "declares its members"
REPEATS = "deterministic"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Args:
        check: its name. detail: what is wrong, with numbers; empty if it passed.
    """

    check: str
    passed: bool
    detail: str


class _Wrong(Exception):
    """A property that a part lacks."""


def _expect(holds: bool | Tensor, detail: str) -> None:
    if not holds:
        raise _Wrong(detail)


def describe(error: BaseException) -> str:
    """An exception as a detail: type, message and line."""
    if isinstance(error, _Wrong | EsaError):
        return str(error.args[0]) if isinstance(error, _Wrong) else error.message
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {error}{where}"


def finding(check: str, cases: Mapping[str, Callable[[], object]]) -> Finding:
    """Runs one check on every case until one raises; the detail names that case."""
    for name, run in cases.items():
        try:
            run()
        except NOT_BLAMED:
            raise
        except BaseException as error:
            detail = describe(error)
            return Finding(check, False, f"{name}: {detail}" if name else detail)
    return Finding(check, bool(cases), "" if cases else "no case gave a result to look at")


def _over(check: Callable[..., object], cases: Mapping[str, Sequence[Any]]) -> Any:
    return {name: partial(check, *arguments) for name, arguments in cases.items()}


def _run(cases: Mapping[str, Callable[[], Any]]) -> tuple[list[Finding], dict[str, Any]]:
    """A finding on every case, and the results of those that did not raise."""
    results: dict[str, Any] = {}

    def run(case: str) -> None:
        results[case] = cases[case]()

    return [finding(f"runs: {case}", {"": partial(run, case)}) for case in cases], results


def _whole(name: str, value: object, least: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
    _expect(whole, f"{name} is {value!r}, not a whole number from {least}")


def _boolean(name: str, value: object) -> None:
    _expect(isinstance(value, bool), f"{name} is {value!r}, not True or False")


def _kind(out: Any) -> str:
    return f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"


# Selectors and scores, on random steps

BUDGET = 16
FOLDED = 32
"""F of the steps that keep make_step's G and D."""
STEPS: dict[str, dict[str, Any]] = {
    "usual": {}, "k > M": {"middle": 7}, "k = M": {"middle": BUDGET}, "M = 1": {"middle": 1},
    "empty M": {"middle": 0}, "C = 1": {"chunk": 1}, "C = 40": {"chunk": 40},
    "an answer's token": {"chunk": 1, "decoding": True}, "a late layer": {"layer": 30},
    "L = 0": {"local": 0}, "H = G": {"heads": 4, "groups": 4}, "H = 3 G": {"heads": 6, "groups": 2},
    "bfloat16": {"dtype": torch.bfloat16}, "float16": {"dtype": torch.float16},
    "ties": {"ties": True}, "large logits": {"spread": 100.0},
    "more than one block of keys": {"middle": 9000}, "no text": {"words": False},
}  # fmt: skip
"""Options of `make_step`, by the name of the case."""
TAKEN_BACK = (8, 60, 50)
"""Tokens cropped in turn: the last chunk, half of the document, nearly all that is left."""


class _Trial(NamedTuple):
    """A part's result on a step, and an equal step that the part never had."""

    step: Step
    twin: Step
    out: Any
    budget: int = 0


def _on_steps(
    cases: Mapping[str, Callable[[], _Trial]],
    check: str,
    look: Callable[[_Trial], None],
    make: Callable[[], Step],
    call: Callable[[Step], Any],
) -> list[Finding]:
    """Findings on every case: it runs, its result passes `look`, and a part is deterministic and
    changes neither queries nor store. call: gives a tensor, or a list of them."""
    findings, trials = _run(cases)
    findings.append(finding(check, {case: partial(look, trials[case]) for case in trials}))
    if not findings[-1].passed:
        return findings

    def repeats() -> None:
        step = make()
        first, second, fresh = (
            [row.clone() for row in _rows(call(given))] for given in (step, step, make())
        )
        _alike(first, second, "the same step again")
        _alike(first, fresh, "an equal step")

    again = {"": repeats} | {  # state that is kept from other steps
        case: partial(_again, trials[case], cases[case]) for case in reversed(trials)
    }
    untouched = {case: partial(_untouched, trial) for case, trial in trials.items()}
    return [*findings, finding(REPEATS, again), finding(UNTOUCHED, untouched)]


def _again(trial: _Trial, run: Callable[[], _Trial]) -> None:
    _alike(_rows(trial.out), _rows(run().out), "an equal step, after others")


def _rows(out: Any) -> list[Tensor]:
    return out if isinstance(out, list) else [out]


def _alike(first: list[Tensor], again: list[Tensor], when: str) -> None:
    shapes = [row.shape for row in first]
    _expect(shapes == [row.shape for row in again], f"other shapes on {when}")
    changed = sum(
        int(((a != b) & ~(a.isnan() & b.isnan())).sum()) for a, b in zip(first, again, strict=True)
    )
    total = sum(row.numel() for row in first)
    _expect(not changed, f"{changed} of {total} numbers differ on {when}")


def _untouched(trial: _Trial) -> None:
    now = _tensors(trial.step)
    for name, before in _tensors(trial.twin).items():
        shapes = f"the {name} had {_kind(before)}, now {_kind(now[name])}"
        _expect(now[name].shape == before.shape, shapes)
        changed = int((now[name] != before).sum())
        _expect(not changed, f"{changed} of {before.numel()} numbers of the {name} changed")


def _tensors(step: Step) -> dict[str, Tensor]:
    store = step.store
    keys, values = store.span(0, len(store))
    blocks = [block for _, block in store.feature_blocks(0, store.reduced)] if store.reduced else []
    reduced = torch.cat(blocks) if blocks else torch.empty(0)
    return {"queries": step.queries, "keys": keys, "values": values, "reduced keys": reduced}


def _vector(out: Any, step: Step, where: str = "") -> None:
    _expect(isinstance(out, Tensor) and out.ndim == 1, f"{where}has {_kind(out)}, not (n,)")
    device = step.queries.device
    _expect(out.device == device, f"{where}is on {out.device}, not {device}")


def _selection(trial: _Trial) -> None:
    step, heads, middle = trial.step, trial.step.queries.shape[0], trial.step.middle
    by_head = isinstance(trial.out, list)
    if by_head:
        many = f"a list of {len(trial.out)} for {heads} query heads"
        _expect(len(trial.out) == heads, many)
    most = min(trial.budget, middle)
    for head, row in enumerate(_rows(trial.out)):
        where = f"head {head}: " if by_head else ""
        _vector(row, step, where)
        _expect(row.dtype == torch.int64, f"{where}is {row.dtype}, not torch.int64")
        budget = f"budget {trial.budget} and M = {middle}: {most} at most"
        _expect(row.shape[0] <= most, f"{where}{row.shape[0]} tokens for {budget}")
        offsets = row.tolist()
        for offset in offsets:
            _expect(0 <= offset < middle, f"{where}offset {offset} with M = {middle}")
        for place, (before, after) in enumerate(pairwise(offsets), 1):
            _expect(before < after, f"{where}{after} follows {before} at place {place}")


def check_selector(selector: Selector, device: str) -> list[Finding]:
    """Every check of a selector, on random steps on `device`."""
    observe: Observe | None = selector.observe if selector.observes else None
    make = partial(make_step, device=device)

    def tried(budget: int, watch: Observe | None, options: dict[str, Any]) -> _Trial:
        step, twin = make(observe=watch, **options), make(**options)
        allowed = selector.allowance(step, budget)
        out = selector.select(step, allowed)
        if watch is not None:
            watch(observed_step(step))
        return _Trial(step, twin, out, allowed)

    def select(step: Step) -> Any:
        return selector.select(step, selector.allowance(step, BUDGET))

    def members() -> None:
        _boolean("sums_layers", selector.sums_layers)
        _boolean("surveys", selector.surveys)
        if selector.surveys:
            step = make()
            selector.select(step, BUDGET)
            _boolean("what survey_complete gives", selector.survey_complete(step))
            for turn in (step.query.selector, selector.new_turn_state()):
                selector.after_survey(turn)

    def allowance(layer: int) -> None:
        for budget in (0, BUDGET):
            _whole("allowance", selector.allowance(make(layer=layer), budget), 0)

    def after_crop() -> None:
        step = make(observe=observe)
        select(step)
        for tokens in TAKEN_BACK:
            step = advance(step, back=tokens, observe=observe)
            allowed = selector.allowance(step, BUDGET)
            _selection(_Trial(step, step, selector.select(step, allowed), allowed))

    layers = {"layer 0": (0,), "layer 30": (30,)}
    findings = [
        finding(MEMBERS, {"": members}),
        finding("allowance is a whole number", _over(allowance, layers)),
    ]
    if not findings[-1].passed:
        return findings
    cases = {case: partial(tried, BUDGET, observe, options) for case, options in STEPS.items()}
    cases["budget 0"] = partial(tried, 0, observe, {})
    cases["budget 1"] = partial(tried, 1, observe, {})
    cases["nothing observed"] = partial(tried, BUDGET, None, {})
    findings += _on_steps(cases, SELECTION, _selection, partial(make, observe=observe), select)
    if findings[-1].check == UNTOUCHED:
        findings.append(finding("works after the store is cropped", {"": after_crop}))
    return findings


def _scored(trial: _Trial) -> None:
    out, middle = trial.out, trial.step.middle
    _vector(out, trial.step)
    _expect(out.shape[0] == middle, f"has {out.shape[0]} scores for M = {middle}")
    _expect(out.is_floating_point(), f"is {out.dtype}, not a floating point dtype")
    bad = int((out.isnan() | out.isposinf()).sum())
    _expect(not bad, f"{bad} of {out.numel()} are NaN or +inf")


def check_score(score: Score, device: str) -> list[Finding]:
    """Every check of a score, on random steps on `device`."""
    make = partial(make_step, device=device, score=score)

    def tried(options: dict[str, Any]) -> _Trial:
        step = make(**options)
        return _Trial(step, make(**options), score.scores(step))

    def members() -> None:
        _boolean("features", score.features)
        if score.last_layer is not None:
            _whole("last_layer", score.last_layer, 0)

    def rotation() -> None:
        """A score whose numbers depend on the far distance rotates its queries, and must say so:
        compressors are fitted, and stored rows found again, by what `rotates` says."""
        near, again, far = (
            score.scores(make(distance=distance)).nan_to_num() for distance in (8, 8, 4096)
        )
        changes = torch.equal(near, again) and not torch.equal(near, far)
        wrong = "scores change with the far distance, but rotates is False"
        _expect(score.rotates or not changes, wrong)

    cases = {case: partial(tried, options) for case, options in STEPS.items()}
    if score.features:
        random = torch.Generator().manual_seed(7)
        maps = {"projection": Linear(*torch.randn(2, FOLDED, 5, generator=random))}
        cases["reduced keys"] = partial(tried, maps)
        cases["reduced keys, bfloat16"] = partial(tried, {**maps, "dtype": torch.bfloat16})
    return [
        finding(MEMBERS, {"": members}),
        finding("declares whether it rotates", {"": rotation}),
        *_on_steps(cases, SCORES, _scored, make, score.scores),
    ]


# Compressors

ROWS = {
    "C = 1, n = 1": (1, 1, torch.float32),
    "C = 8, n = 100": (8, 100, torch.float32),
    "C = 40, n = 3": (40, 3, torch.float32),
    "bfloat16": (8, 100, torch.bfloat16),
}
"""Queries, keys and their dtype."""


def random_moments(count: int, folded: int, device: str, seed: int = 0) -> Moments:
    """Moments of `count` random folded queries and keys (count, F)."""
    moments = Moments()
    if count:
        q, k = (_random(count, folded, device, seed + key) for key in range(2))
        moments.add(q, k)
    return moments


def _random(rows: int, folded: int, device: str, seed: int) -> Tensor:
    return torch.randn(rows, folded, generator=torch.Generator().manual_seed(seed)).to(device)


def check_compressor(compressor: Compressor, device: str, folded: int) -> list[Finding]:
    """Every check of a compressor for layer 0 and F = `folded`."""
    seen = compressor.fit_tokens
    declared = finding("declares fit_tokens", {"": partial(_whole, "fit_tokens", seen, 0)})
    if not declared.passed:
        return [declared]

    def fit(count: int) -> Projection | None:
        moments, twin = (random_moments(count, folded, device) for _ in range(2))
        projection = compressor.fit(0, moments)
        for name in ("count", "seen", "queries", "keys"):
            now, before = getattr(moments, name), getattr(twin, name)
            same = torch.equal(now, before) if isinstance(before, Tensor) else now == before
            _expect(same, "fit changed the moments it was given")
        return projection

    fits = {
        "fit on a short document": partial(fit, min(seen, 5)),
        "fit on all the tokens asked for": partial(fit, min(seen, 4096)),
    }
    findings, fitted = _run(fits)
    # A compressor that is fitted on few tokens may give another map, or none.
    maps = {case: projection for case, projection in fitted.items() if projection is not None}
    if not maps:
        return [declared, *findings]
    mapped = {
        f"{rows}, {case}": partial(_mapped, projection, folded, device, *ROWS[rows])
        for case, projection in maps.items()
        for rows in ROWS
    }
    findings.append(finding(MAPS, mapped))
    if findings[-1].passed:
        again = {case: partial(_fits_alike, fits[case], folded, device) for case in maps}
        findings.append(finding(REPEATS, again))
    return [declared, *findings]


def _mapped(
    projection: Projection, folded: int, device: str, chunk: int, count: int, dtype: torch.dtype
) -> None:
    """Looks at a projection's results: queries (C, F) -> (C, R), keys (n, F) -> (n, R)."""
    q, k = (_random(rows, folded, device, seed=rows).to(dtype) for rows in (chunk, count))
    given = q.clone(), k.clone()
    queries, keys = projection.queries(given[0]), projection.keys(given[1])
    changed = int((given[0] != q).sum()) + int((given[1] != k).sum())
    _expect(not changed, f"{changed} numbers were written over")
    for name, rows, out in (("queries", q, queries), ("keys", k, keys)):
        became = f"{name} {tuple(rows.shape)} became {tuple(out.shape)}"
        _expect(out.ndim == 2 and out.shape[0] == rows.shape[0], became)
        _expect(out.device == rows.device, f"{name} went from {rows.device} to {out.device}")
        bad = int((~out.isfinite()).sum())
        _expect(not bad, f"{bad} numbers of the {name} are not finite")
    sizes = f"R is {queries.shape[1]} for queries and {keys.shape[1]} for keys"
    _expect(queries.shape[1] == keys.shape[1], sizes)
    types = f"{dtype} became {queries.dtype} queries, {keys.dtype} keys"
    _expect(keys.is_floating_point() and queries.dtype == keys.dtype, types)
    # A step's queries are float32, and meet the reduced keys.
    single = dtype != torch.float32 or queries.dtype == dtype
    _expect(single, f"{dtype} queries became {queries.dtype}")
    for at in sorted({0, count // 2, count - 1}):
        alone = projection.keys(k[at : at + 1].clone()).float()
        apart = float((alone - keys[at : at + 1].float()).abs().max())
        same = apart <= 0.02 * float(alone.abs().max()) + 1e-5
        _expect(same, f"key {at} of {count} is mapped {apart:.3g} apart from when it is alone")


def _fits_alike(fit: Callable[[], Projection | None], folded: int, device: str) -> None:
    rows = _random(9, folded, device, 4)
    maps = [fit(), fit()]
    _expect(None not in maps, "fit gave None, and a projection before")
    for name in ("queries", "keys"):
        first, second = (getattr(projection, name)(rows.clone()) for projection in maps)
        apart = float((first - second).abs().max())
        _expect(not apart, f"two fits map the same {name} up to {apart:.3g} apart")


# Position encodings

PLACES = {
    "usual": (16, 8, 200, 40),
    "no far token": (16, 8, 200, 0),
    "L = 0": (0, 8, 200, 40),
    "C = 1": (16, 1, 200, 40),
    "C = 40": (16, 40, 200, 40),
    "the first chunk": (0, 8, 0, 0),
    "all is local": (100, 8, 100, 0),
    "a long document": (1024, 512, 1_000_000, 1024),
}
"""Arguments of an encoding: L, C, the first current token, and n far tokens."""
QUERIES = {"the first tokens": (0, 8), "one token": (200, 1), "far on": (1_000_000, 40)}
"""Absolute position of the first query and how many there are."""
RATES = {
    "short": (8, 10_000.0, 1),
    "longer than any window": (128, 500_000.0, 10_000_000),
    "D = 64": (64, 10_000.0, 30_000),
}
"""D, the base of the host's frequencies, and how many tokens are cached."""


def check_position(encoding: PositionEncoding, device: str) -> list[Finding]:
    """Every check of a position encoding; positions may be on any device."""

    def members() -> None:
        _whole("distance", encoding.distance, 0)
        if encoding.max_distance is not None:
            _whole("max_distance", encoding.max_distance, 1)

    scale, frequencies = partial(_scale, encoding, device), partial(_frequencies, encoding, device)
    return [
        finding(MEMBERS, {"": members}),
        finding(PLACED, _over(partial(_placed, encoding), PLACES)),
        finding("query_scale (C,)", _over(scale, QUERIES)),
        finding("frequencies (D / 2,)", _over(frequencies, RATES)),
    ]


def _placed(encoding: PositionEncoding, local: int, chunk: int, start: int, far: int) -> None:
    """Half of the far tokens are at the document's start, half right before L."""
    last = start - local
    at = torch.cat((torch.arange(far // 2), torch.arange(last - far + far // 2, last)))
    given = at.clone()
    twice = [
        (encoding.near(local, chunk, start, far), encoding.far(given, local, chunk, start))
        for _ in range(2)
    ]
    changed = int((given != at).sum())
    _expect(not changed, f"{changed} of the positions `at` were written over")
    counts = ((chunk, local + chunk), (chunk, far))
    for name, both, out, again in zip(("near", "far"), counts, *twice, strict=True):
        positions = f"{name} gives a {type(out).__name__}, not Positions"
        _expect(isinstance(out, Positions), positions)
        for part, count in zip(("query", "key"), both, strict=True):
            what = f"{name} {'queries' if part == 'query' else 'keys'}"
            _part(what, getattr(out, part), count, getattr(again, part))
    query, key = twice[0][1]
    if key.numel():
        first, latest = query.min().item(), key.max().item()
        _expect(first >= latest, f"a far query at {first}, before a far key at {latest}")


def _part(what: str, part: Any, count: int, second: Tensor) -> None:
    shaped = isinstance(part, Tensor) and part.shape == (count,)
    _expect(shaped, f"{what} have {_kind(part)}, not ({count},)")
    _expect(part.dtype != torch.bool and not part.is_complex(), f"{what} are {part.dtype}")
    bad = int((~part.isfinite()).sum())
    _expect(not bad, f"{what} are not finite: {bad}")
    least = part.min().item() if count else 0
    _expect(least >= 0, f"{what} go down to {least}")
    changed = int((part != second).sum())
    _expect(not changed, f"{what} differ the second time: {changed}")


def _scale(encoding: PositionEncoding, device: str, start: int, count: int) -> None:
    at = torch.arange(start, start + count, device=device)
    out: Any = encoding.query_scale(at)
    alone = encoding.query_scale(at[-1:])
    if out is None and alone is None:
        return
    shaped = isinstance(out, Tensor) and alone is not None and out.shape == (count,)
    _expect(shaped, f"not one factor a query: {_kind(out)} for {count} queries")
    assert alone is not None
    _expect(out.is_floating_point(), f"factors are {out.dtype}")
    bad = int((~(out.isfinite() & (out > 0))).sum())
    _expect(not bad, f"{bad} factors are not finite and above 0")
    apart = f"the last query's factor is {out[-1]:.3g}, but alone it has {alone.item():.3g}"
    _expect(torch.allclose(out[-1:], alone), apart)


def _frequencies(encoding: Any, device: str, dim: int, base: float, length: int) -> None:
    inverse = base ** (-torch.arange(0, dim, 2, device=device) / dim)
    before = inverse.clone()
    changed: Any = encoding.frequencies(inverse, 1.0, length)
    second: Any = encoding.frequencies(before.clone(), 1.0, length)
    if changed is None or second is None:
        _expect(changed is second, "gives frequencies only sometimes")
        return
    (out, factor), (again, _) = changed, second
    _expect(torch.equal(inverse, before), "changes the frequencies it is given")
    shaped = isinstance(out, Tensor) and out.shape == inverse.shape
    _expect(shaped, f"not D / 2 = {dim // 2} frequencies: {_kind(out)}")
    positive = out.is_floating_point() and bool((out.isfinite() & (out >= 0)).all())
    _expect(positive, "frequencies are not finite floats from 0")
    number = isinstance(factor, int | float) and not isinstance(factor, bool)
    above = number and 0 < factor < torch.inf
    _expect(above, f"the factor is {factor!r}, not a number above 0")
    _expect(torch.equal(out, again), "gives other frequencies the second time")


# Recipes

USUAL = Window(initial=64, selected=1024, local=1024, chunk=512)
SMALL = Window(initial=4, selected=64, local=64, chunk=32)
CASES: dict[str, tuple[int, Window, int]] = {
    "usual": (8192, USUAL, 100_000),
    "a small window": (512, SMALL, 100_000),
    "I = 0": (512, replace(SMALL, initial=0), 100_000),
    "k = 0": (512, replace(SMALL, selected=0), 100_000),
    "L = 0": (512, replace(SMALL, local=0), 100_000),
    "a short document": (8192, USUAL, 100),
    "an unknown length": (8192, USUAL, 0),
}
"""The model's trained window, the preset's windows, and the tokens of the document."""


def check_recipe(name: str) -> list[Finding]:
    """Every check of a recipe."""

    def applied(context: int, window: Window, length: int) -> Preset:
        position = {"name": "esa", "distance": context // 2}
        base = Preset(name="base", model="any", context=context, window=window, position=position)
        preset = resolved_preset.apply(name, base, length)
        resolve(preset)
        return preset

    findings, results = _run(_over(applied, CASES))

    def repeats(case: str) -> None:
        _expect(applied(*CASES[case]) == results[case], "other settings the second time")

    again = finding(REPEATS, {case: partial(repeats, case) for case in results})
    return [*findings, *([again] if results else [])]
