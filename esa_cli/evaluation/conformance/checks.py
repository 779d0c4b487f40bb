"""Checks of parts and recipes against the interfaces. An exception in one is a finding, too.

Selectors may select fewer than min(budget, M) tokens, never more; as in attention, a selector gets
its own allowance, and observes the chunk after. A compressor must reduce each key on its own: keys
are reduced block by block, as tokens leave L. Near tokens need not have their true distances.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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

T = TypeVar("T")
SELECTION = "ascending offsets inside M, within the budget"
SCORES = "a finite score for each token of M"
UNTOUCHED = "leaves queries and store alone"
MAPS = "reduces queries and keys, each on its own"
PLACED = "positions of near and far tokens"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Args:
        check: its name. detail: what is wrong, with numbers; empty if it passed.
    """

    check: str
    passed: bool
    detail: str


def describe(error: BaseException) -> str:
    """An exception as a detail: type, message and line."""
    if isinstance(error, EsaError):
        return error.message
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {error}{where}"


def attempt(check: str, complaint: Callable[[], str]) -> Finding:
    """Runs one check. complaint: returns what is wrong, or an empty string; may raise."""
    return each(check, {"": None}, lambda _: complaint())


def each(check: str, cases: Mapping[str, T], complaint: Callable[[T], str]) -> Finding:
    """Checks one property of every case; the detail names the first case without it."""
    for name, case in cases.items():
        try:
            detail = complaint(case)
        except NOT_BLAMED:
            raise
        except BaseException as error:
            detail = describe(error)
        if detail:
            return Finding(check, False, f"{name}: {detail}" if name else detail)
    return Finding(check, bool(cases), "" if cases else "no case gave a result to look at")


def run(cases: Mapping[str, Callable[[], T]]) -> tuple[list[Finding], dict[str, T]]:
    """Runs every case: a finding on each, and the results of those that did not raise."""
    findings: list[Finding] = []
    results: dict[str, T] = {}

    def keep(case: str) -> str:
        results[case] = cases[case]()
        return ""

    for case in cases:
        findings.append(attempt(f"runs: {case}", partial(keep, case)))
    return findings, results


def _whole(name: str, value: object, least: int) -> str:
    """Complains unless a member's value is a whole number from `least`."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
    return "" if whole else f"{name} is {value!r}, not a whole number from {least}"


def _kind(out: Any) -> str:
    return f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"


# Steps of selectors and scores

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


class TriedStep(NamedTuple):
    """A part's result on a step, and an equal step that the part never had."""

    step: Step
    twin: Step
    out: Any
    budget: int = 0


def _rows(out: Any) -> list[Tensor]:
    return out if isinstance(out, list) else [out]


def _vector(out: Any, step: Step) -> str:
    """Complains unless a result is a tensor of shape (n,) on the queries' device."""
    if not isinstance(out, Tensor) or out.ndim != 1:
        return f"has {_kind(out)}, not (n,)"
    device = step.queries.device
    return "" if out.device == device else f"is on {out.device}, not {device}"


def _pure(
    results: Mapping[str, TriedStep],
    cases: Mapping[str, Callable[[], TriedStep]],
    make: Callable[[], Step],
    call: Callable[[Step], Any],
) -> list[Finding]:
    """Checks that a part is deterministic and changes neither queries nor store.

    Args:
        results: of `cases`, the first time. call: gives a tensor, or a list of them.
    """

    def repeats() -> str:
        step = make()
        first, second, fresh = (
            [row.clone() for row in _rows(call(given))] for given in (step, step, make())
        )
        detail = _apart(first, second, "the same step again")
        detail = detail or _apart(first, fresh, "an equal step")
        for case in reversed([*results]):  # state that is kept from other steps
            if detail:
                break
            again = _rows(cases[case]().out)
            detail = _apart(_rows(results[case].out), again, "an equal step, after others")
            detail = detail and f"{case}: {detail}"
        return detail

    return [attempt("deterministic", repeats), each(UNTOUCHED, results, _untouched)]


def _apart(first: list[Tensor], again: list[Tensor], when: str) -> str:
    if [row.shape for row in first] != [row.shape for row in again]:
        return f"other shapes on {when}"
    changed = sum(
        int(((a != b) & ~(a.isnan() & b.isnan())).sum()) for a, b in zip(first, again, strict=True)
    )
    total = sum(row.numel() for row in first)
    return f"{changed} of {total} numbers differ on {when}" if changed else ""


def _untouched(tried: TriedStep) -> str:
    now = _tensors(tried.step)
    for name, before in _tensors(tried.twin).items():
        if now[name].shape != before.shape:
            return f"the {name} had {_kind(before)}, now {_kind(now[name])}"
        changed = int((now[name] != before).sum())
        if changed:
            return f"{changed} of {before.numel()} numbers of the {name} changed"
    return ""


def _tensors(step: Step) -> dict[str, Tensor]:
    store = step.store
    keys, values = store.span(0, len(store))
    blocks = [block for _, block in store.feature_blocks(0, store.reduced)] if store.reduced else []
    reduced = torch.cat(blocks) if blocks else torch.empty(0)
    return {"queries": step.queries, "keys": keys, "values": values, "reduced keys": reduced}


# Selectors


def _selection(tried: TriedStep) -> str:
    heads = tried.step.queries.shape[0]
    if isinstance(tried.out, list) and len(tried.out) != heads:
        return f"a list of {len(tried.out)} for {heads} query heads"
    for head, row in enumerate(_rows(tried.out)):
        if detail := _offsets(row, tried):
            return f"head {head}: {detail}" if isinstance(tried.out, list) else detail
    return ""


def _offsets(row: Any, tried: TriedStep) -> str:
    middle, count = tried.step.middle, min(tried.budget, tried.step.middle)
    if detail := _vector(row, tried.step):
        return detail
    if row.dtype != torch.int64:
        return f"is {row.dtype}, not torch.int64"
    if row.shape[0] > count:
        return f"{row.shape[0]} tokens for budget {tried.budget} and M = {middle}: {count} at most"
    outside = row[(row < 0) | (row >= middle)]
    if outside.numel():
        return f"offset {outside[0].item()} with M = {middle}"
    wrong = torch.nonzero(row[1:] <= row[:-1])[:, 0]
    if wrong.numel():
        before, after = row[int(wrong[0]) : int(wrong[0]) + 2].tolist()
        return f"{after} follows {before} at place {int(wrong[0]) + 1}; {wrong.numel()} in all"
    return ""


def check_selector(selector: Selector, device: str) -> list[Finding]:
    """Every check of a selector, on random steps on `device`."""
    observe: Observe | None = selector.observe if selector.observes else None
    make = partial(make_step, device=device)

    def select(step: Step, budget: int = BUDGET) -> Any:
        return selector.select(step, selector.allowance(step, budget))

    def tried(budget: int, watch: Observe | None, options: dict[str, Any]) -> TriedStep:
        step, twin = make(observe=watch, **options), make(**options)
        allowed = selector.allowance(step, budget)
        out = selector.select(step, allowed)
        if watch is not None:
            watch(observed_step(step))
        return TriedStep(step, twin, out, allowed)

    def members() -> str:
        for name, value in (("sums_layers", selector.sums_layers), ("surveys", selector.surveys)):
            if not isinstance(value, bool):
                return f"{name} is {value!r}, not True or False"
        if selector.surveys:
            step = make()
            selector.select(step, BUDGET)
            complete: Any = selector.survey_complete(step)
            if not isinstance(complete, bool):
                return f"survey_complete gives {complete!r}, not True or False"
            for turn in (step.query.selector, selector.new_turn_state()):
                selector.after_survey(turn)
        return ""

    def allowance(layer: int) -> str:
        budgets = (0, BUDGET)
        values = (selector.allowance(make(layer=layer), budget) for budget in budgets)
        return next(filter(None, (_whole("allowance", value, 0) for value in values)), "")

    def after_crop() -> str:
        step = make(observe=observe)
        select(step)
        for tokens in TAKEN_BACK:
            step = advance(step, back=tokens, observe=observe)
            allowed = selector.allowance(step, BUDGET)
            out = selector.select(step, allowed)
            if detail := _selection(TriedStep(step, step, out, allowed)):
                return f"{tokens} tokens taken back, M = {step.middle}: {detail}"
        return ""

    findings = [
        attempt("declares its members", members),
        each("allowance is a whole number", {"layer 0": 0, "layer 30": 30}, allowance),
    ]
    if not findings[-1].passed:
        return findings
    cases = {case: partial(tried, BUDGET, observe, options) for case, options in STEPS.items()}
    cases["budget 0"] = partial(tried, 0, observe, {})
    cases["budget 1"] = partial(tried, 1, observe, {})
    cases["nothing observed"] = partial(tried, BUDGET, None, {})
    ran, results = run(cases)
    findings += [*ran, each(SELECTION, results, _selection)]
    if findings[-1].passed:
        findings += _pure(results, cases, partial(make, observe=observe), select)
        findings.append(attempt("works after the store is cropped", after_crop))
    return findings


# Scores


def _scored(tried: TriedStep) -> str:
    out, middle = tried.out, tried.step.middle
    if detail := _vector(out, tried.step):
        return detail
    if out.shape[0] != middle:
        return f"has {out.shape[0]} scores for M = {middle}"
    if not out.is_floating_point():
        return f"is {out.dtype}, not a floating point dtype"
    bad = int((out.isnan() | out.isposinf()).sum())
    return f"{bad} of {out.numel()} are NaN or +inf" if bad else ""


def check_score(score: Score, device: str) -> list[Finding]:
    """Every check of a score, on random steps on `device`."""
    make = partial(make_step, device=device, score=score)

    def tried(options: dict[str, Any]) -> TriedStep:
        step = make(**options)
        return TriedStep(step, make(**options), score.scores(step))

    def members() -> str:
        if not isinstance(score.features, bool):
            return f"features is {score.features!r}, not True or False"
        last = score.last_layer
        return "" if last is None else _whole("last_layer", last, 0)

    def rotation() -> str:
        """A score whose numbers depend on the far distance rotates its queries, and must say so:
        compressors are fitted, and stored rows found again, by what `rotates` says."""
        near, again, far = (
            score.scores(make(distance=distance)).nan_to_num() for distance in (8, 8, 4096)
        )
        if torch.equal(near, again) and not torch.equal(near, far) and not score.rotates:
            return "scores change with the far distance, but rotates is False"
        return ""

    cases = {case: partial(tried, options) for case, options in STEPS.items()}
    if score.features:
        random = torch.Generator().manual_seed(7)
        maps = {"projection": Linear(*torch.randn(2, FOLDED, 5, generator=random))}
        cases["reduced keys"] = partial(tried, maps)
        cases["reduced keys, bfloat16"] = partial(tried, {**maps, "dtype": torch.bfloat16})
    findings, results = run(cases)
    findings.append(attempt("declares its members", members))
    findings.append(attempt("declares whether it rotates", rotation))
    findings.append(each(SCORES, results, _scored))
    if findings[-1].passed:
        findings += _pure(results, cases, make, score.scores)
    return findings


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
    declared = attempt("declares fit_tokens", lambda: _whole("fit_tokens", seen, 0))
    if not declared.passed:
        return [declared]

    def fit(count: int) -> Projection | None:
        moments, twin = (random_moments(count, folded, device) for _ in range(2))
        projection = compressor.fit(0, moments)
        names = ("count", "seen", "queries", "keys")
        if not all(_equal(getattr(moments, name), getattr(twin, name)) for name in names):
            raise ValueError("fit changed the moments it was given")
        return projection

    counts = {
        "fit on a short document": min(seen, 5),
        "fit on all the tokens asked for": min(seen, 4096),
    }
    findings, fitted = run({case: partial(fit, count) for case, count in counts.items()})
    # What is fitted on few tokens may be another map, or none.
    maps = {case: projection for case, projection in fitted.items() if projection is not None}
    if not maps:
        return [declared, *findings]
    mapped = {
        f"{rows}, {case}": partial(_mapped, projection, folded, device, *ROWS[rows])
        for case, projection in maps.items()
        for rows in ROWS
    }
    again = {case: partial(fit, counts[case]) for case in maps}
    findings.append(each(MAPS, mapped, lambda complaint: complaint()))
    if findings[-1].passed:
        findings.append(each("deterministic", again, partial(_fits_alike, folded, device)))
    return [declared, *findings]


def _equal(now: Any, before: Any) -> bool:
    if isinstance(now, Tensor) and isinstance(before, Tensor):
        return torch.equal(now, before)
    return bool(now == before)


def _mapped(
    projection: Projection, folded: int, device: str, chunk: int, count: int, dtype: torch.dtype
) -> str:
    """Complains about a projection's results: queries (C, F) -> (C, R), keys (n, F) -> (n, R)."""
    q, k = (_random(rows, folded, device, seed=rows).to(dtype) for rows in (chunk, count))
    given = q.clone(), k.clone()
    queries, keys = projection.queries(given[0]), projection.keys(given[1])
    changed = int((given[0] != q).sum()) + int((given[1] != k).sum())
    if changed:
        return f"{changed} numbers were written over"
    for name, rows, out in (("queries", q, queries), ("keys", k, keys)):
        if out.ndim != 2 or out.shape[0] != rows.shape[0]:
            return f"{name} {tuple(rows.shape)} became {tuple(out.shape)}"
        if out.device != rows.device:
            return f"{name} went from {rows.device} to {out.device}"
        if not out.isfinite().all():
            return f"{int((~out.isfinite()).sum())} numbers of the {name} are not finite"
    if queries.shape[1] != keys.shape[1]:
        return f"R is {queries.shape[1]} for queries and {keys.shape[1]} for keys"
    if not keys.is_floating_point() or queries.dtype != keys.dtype:
        return f"{dtype} became {queries.dtype} queries, {keys.dtype} keys"
    if dtype == torch.float32 != queries.dtype:  # a step's queries are, and meet the reduced keys
        return f"{dtype} queries became {queries.dtype}"
    for at in sorted({0, count // 2, count - 1}):
        alone = projection.keys(k[at : at + 1].clone()).float()
        apart = float((alone - keys[at : at + 1].float()).abs().max())
        if apart > 0.02 * float(alone.abs().max()) + 1e-5:
            return f"key {at} of {count} is mapped {apart:.3g} apart from when it is alone"
    return ""


def _fits_alike(folded: int, device: str, fit: Callable[[], Projection | None]) -> str:
    rows = _random(9, folded, device, 4)
    maps = [fit(), fit()]
    if maps[0] is None or maps[1] is None:
        return "fit gave None, and a projection before"
    for name in ("queries", "keys"):
        first, second = (getattr(projection, name)(rows.clone()) for projection in maps)
        apart = float((first - second).abs().max())
        if apart:
            return f"two fits map the same {name} up to {apart:.3g} apart"
    return ""


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


def _placed(encoding: PositionEncoding, place: tuple[int, int, int, int]) -> str:
    """Half of the far tokens are at the document's start, half right before L."""
    local, chunk, start, far = place
    last = start - local
    at = torch.cat((torch.arange(far // 2), torch.arange(last - far + far // 2, last)))
    given = at.clone()
    twice = [
        (encoding.near(local, chunk, start, far), encoding.far(given, local, chunk, start))
        for _ in range(2)
    ]
    changed = int((given != at).sum())
    if changed:
        return f"{changed} of the positions `at` were written over"
    counts = ((chunk, local + chunk), (chunk, far))
    for name, (query_count, key_count), out, again in zip(
        ("near", "far"), counts, *twice, strict=True
    ):
        if not isinstance(out, Positions):
            return f"{name} gives a {type(out).__name__}, not Positions"
        both = ((out.query, query_count, again.query), (out.key, key_count, again.key))
        for what, (part, count, second) in zip(("queries", "keys"), both, strict=True):
            if detail := _part(part, count, second):
                return f"{name} {what} {detail}"
    query, key = twice[0][1]
    if key.numel() and query.min() < key.max():
        return f"a far query at {query.min().item()}, before a far key at {key.max().item()}"
    return ""


def _part(part: Any, count: int, second: Tensor) -> str:
    if not isinstance(part, Tensor) or part.shape != (count,):
        return f"have {_kind(part)}, not ({count},)"
    if part.dtype == torch.bool or part.is_complex():
        return f"are {part.dtype}"
    if not part.isfinite().all():
        return f"are not finite: {int((~part.isfinite()).sum())}"
    if count and part.min() < 0:
        return f"go down to {part.min().item()}"
    changed = int((part != second).sum())
    return f"differ the second time: {changed}" if changed else ""


def _query_scale(encoding: PositionEncoding, device: str, queries: tuple[int, int]) -> str:
    start, count = queries
    at = torch.arange(start, start + count, device=device)
    out: Any = encoding.query_scale(at)
    alone = encoding.query_scale(at[-1:])
    if out is None and alone is None:
        return ""
    if not isinstance(out, Tensor) or alone is None or out.shape != (count,):
        return f"not one factor a query: {_kind(out)} for {count} queries"
    if not out.is_floating_point():
        return f"factors are {out.dtype}"
    bad = int((~(out.isfinite() & (out > 0))).sum())
    if bad:
        return f"{bad} factors are not finite and above 0"
    if not torch.allclose(out[-1:], alone):
        return f"the last query's factor is {out[-1]:.3g}, but alone it has {alone.item():.3g}"
    return ""


def _frequencies(encoding: Any, device: str, rates: tuple[int, float, int]) -> str:
    dim, base, length = rates
    inverse = base ** (-torch.arange(0, dim, 2, device=device) / dim)
    before = inverse.clone()
    changed: Any = encoding.frequencies(inverse, 1.0, length)
    second: Any = encoding.frequencies(before.clone(), 1.0, length)
    if changed is None or second is None:
        return "" if changed is second else "gives frequencies only sometimes"
    (out, factor), (again, _) = changed, second
    if not torch.equal(inverse, before):
        return "changes the frequencies it is given"
    if not isinstance(out, Tensor) or out.shape != inverse.shape:
        return f"not D / 2 = {dim // 2} frequencies: {_kind(out)}"
    if not out.is_floating_point() or not bool((out.isfinite() & (out >= 0)).all()):
        return "frequencies are not finite floats from 0"
    number = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not number or not 0 < factor < torch.inf:
        return f"the factor is {factor!r}, not a number above 0"
    return "" if torch.equal(out, again) else "gives other frequencies the second time"


def check_position(encoding: PositionEncoding, device: str) -> list[Finding]:
    """Every check of a position encoding; positions may be on any device."""

    def members() -> str:
        most = encoding.max_distance
        limit = "" if most is None else _whole("max_distance", most, 1)
        return _whole("distance", encoding.distance, 0) or limit

    return [
        attempt("declares its members", members),
        each(PLACED, PLACES, partial(_placed, encoding)),
        each("query_scale (C,)", QUERIES, partial(_query_scale, encoding, device)),
        each("frequencies (D / 2,)", RATES, partial(_frequencies, encoding, device)),
    ]


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

    def applied(case: str) -> Preset:
        context, window, length = CASES[case]
        position = {"name": "esa", "distance": context // 2}
        base = Preset(name="base", model="any", context=context, window=window, position=position)
        preset = resolved_preset.apply(name, base, length)
        resolve(preset)
        return preset

    findings, results = run({case: partial(applied, case) for case in CASES})

    def repeats(case: str) -> str:
        return "" if applied(case) == results[case] else "other settings the second time"

    again = each("deterministic", {case: case for case in results}, repeats)
    return [*findings, *([again] if results else [])]
