"""The conformance suite, which checks whether a plugin's part or recipe keeps the interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention import parts
from esa_cli.attention.algebra import fuse_attention, join_key_heads
from esa_cli.attention.compression import Linear
from esa_cli.attention.kernels import compute_reference_attention
from esa_cli.attention.rope import FixedFrequencyRotaryModule, Rope
from esa_cli.attention.selection import SumScore
from esa_cli.attention.step import Positions, Projection, Step
from esa_cli.attention.window import QueryState, QuestionAndText, Window
from esa_cli.errors import NOT_BLAMED, PluginError
from esa_cli.methods import registry
from esa_cli.methods.plugin_loading import describe_error, load_file, load_installed_plugins
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage.memory_store import MemoryKVStore
from esa_cli.system.registry import suggest_name

Checks = Iterator[str]
"""Yields the name of each check before the check runs, and raises at the first failure."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of a plugin; `detail` is the reason of a failure, else empty."""

    check: str
    passed: bool
    detail: str


class _CheckFailure(Exception):
    """An exception that says which required property a plugin's part lacks."""


def _ensure(condition: bool | Tensor, detail: str) -> None:
    """Raises _CheckFailure with the detail if the condition is false."""
    if not condition:
        raise _CheckFailure(detail)


def _ensure_type(name: str, value: Any, expected: Any, smallest: int = 0) -> None:
    is_valid = type(value) is expected and value >= smallest
    _ensure(is_valid, f"{name} is {value!r}, not {expected.__name__} from {expected(smallest)}")


def _ensure_numbers(name: str, result: Any, *shape: int, smallest: float = -torch.inf) -> None:
    is_tensor = isinstance(result, Tensor)
    is_shaped = is_tensor and result.shape == shape and result.dtype != torch.bool
    kind = f"{result.dtype} {tuple(result.shape)}" if is_tensor else type(result).__name__
    _ensure(is_shaped, f"{name}: {kind}, not numbers {shape}")
    is_valid = result.isfinite() & (result >= smallest)
    _ensure(is_valid.all(), f"{name}: {int((~is_valid).sum())} are not finite or below {smallest}")


@contextmanager
def _prefix_failures(case_name: str) -> Iterator[None]:
    """Puts the name of a test case before the reason of a failure in the `with` block."""
    try:
        yield
    except NOT_BLAMED:
        raise
    except BaseException as error:
        raise _CheckFailure(f"{case_name}: {describe_failure(error)}") from error


def describe_failure(error: BaseException) -> str:
    """Returns the reason of a failed check, or the error that the plugin's code raised."""
    return str(error) if isinstance(error, _CheckFailure) else f"raised {describe_error(error)}"


def check(
    kind: str, name: str, options: Mapping[str, Any] | None = None, *, folded: int = 32
) -> list[CheckResult]:
    """Checks a part or, if the kind is `method`, a recipe, and stops at the first failure.
    `options` are the part's settings. `folded` is F = G * D, for compressors that fit one model
    only. Raises PluginError: the kind is unknown. PresetError: the method is unknown."""
    load_installed_plugins()
    if kind not in (*SUITES, registry.RECIPES.kind):
        raise PluginError(
            f"there is no kind of part {kind!r}", suggest_name(kind, [*SUITES, "method"])
        )
    checks = check_recipe(name)
    if kind in SUITES:
        registry.find_part_class(kind, name)
        checks = check_part(kind, name, options or {}, folded)
    findings: list[CheckResult] = []
    try:
        for check_name in checks:
            findings.append(CheckResult(check_name, True, ""))
    except NOT_BLAMED:
        raise
    except BaseException as error:
        findings[-1] = CheckResult(findings[-1].check, False, describe_failure(error))
    return findings


def check_plugin_file(path: str | Path) -> dict[tuple[str, str], list[CheckResult]]:
    """Loads a plugin file, and checks every part (with default settings) and recipe that the file
    registers. Raises PluginError: the file is missing, does not run, or registers only readers."""
    kinds = (*SUITES, registry.RECIPES.kind)
    pairs = [pair for pair in load_file(path) if pair[0] in kinds]
    if not pairs:
        raise PluginError(
            f"{path} registers only readers, which have no checks", "use `esa ask --plugin`"
        )
    return {pair: check(*pair) for pair in pairs}


def check_part(kind: str, name: str, options: Mapping[str, Any], folded: int) -> Checks:
    """Builds a part from settings, and runs the checks for the kind of part."""
    yield "builds a frozen dataclass of its base class"
    cls: Any = registry.find_part_class(kind, name)
    base, suite = SUITES[kind]
    _ensure(cls.__dataclass_params__.frozen, f"{cls.__name__}: use @dataclass(frozen=True)")
    _ensure(issubclass(cls, base), f"{cls.__name__} is not derived from {base.__name__}")
    with _prefix_failures(f"check({kind!r}, {name!r}, options)"):
        part = registry.build_part(kind, {**options, "name": name})
    yield from suite(part, folded) if suite is check_compressor else suite(part)


BUDGET = 16
STEPS: dict[str, dict[str, Any]] = {
    "usual": {}, "k > M": {"middle": 7}, "k = M": {"middle": BUDGET}, "M = 1": {"middle": 1},
    "empty M": {"middle": 0}, "C = 1": {"chunk": 1}, "C = 40": {"chunk": 40},
    "an answer's token": {"chunk": 1, "decoding": True}, "a late layer": {"layer": 30},
    "L = 0": {"local": 0}, "H = G": {"heads": 4, "groups": 4}, "H = 3 G": {"heads": 6, "groups": 2},
    "bfloat16": {"dtype": torch.bfloat16}, "float16": {"dtype": torch.float16},
    "ties": {"ties": True}, "large logits": {"spread": 100.0},
    "more than one block of keys": {"middle": 9000}, "no text": {"words": False},
}  # fmt: skip
"""The arguments of `make_step` in each test case, by the case's name."""


def _check_steps(call_part: Callable[..., list[Tensor]], cases: dict[str, dict[str, Any]]) -> None:
    """Fails if `call_part` rejects a part's results, if equal steps give different results, or if
    the part changes a step. Each case has arguments of `make_step`, and may have a `budget`."""
    first: dict[str, list[Tensor]] = {}
    for case in (*cases, *reversed(cases)):  # a second order shows state kept from other steps
        options = dict(cases[case])
        given = {"budget": options.pop("budget")} if "budget" in options else {}
        step, twin = make_step(**options), make_step(**{**options, "observe": None})
        with _prefix_failures(case):
            results = [row.clone() for row in call_part(step, **given)]
            before = first.setdefault(case, results)
            alike = len(before) == len(results) and all(map(torch.equal, before, results))
            _ensure(alike, "equal steps give different results")
            now, untouched = _collect_step_tensors(step), _collect_step_tensors(twin)
            changed = [name for name, x in untouched.items() if not torch.equal(x, now[name])]
            _ensure(not changed, f"the part changed the {', '.join(changed)}")


def _collect_step_tensors(step: Step) -> dict[str, Tensor]:
    store = step.store
    keys, values = store.span(0, len(store))
    pairs = store.reduced_key_blocks(0, store.reduced_key_count) if store.reduced_key_count else ()
    reduced = torch.cat([torch.empty(0), *(block for _, block in pairs)])
    return {"queries": step.queries, "keys": keys, "values": values, "reduced keys": reduced}


def check_selector(selector: parts.Selector) -> Checks:
    """Checks that a selector returns valid selections, no larger than the selector's allowance."""
    observe = selector.observe if selector.is_observer else None

    def select(step: Step, budget: int = BUDGET) -> list[Tensor]:
        allowed = selector.allowance(step, budget)
        _ensure_type("allowance", allowed, int)
        out: Any = selector.select(step, allowed)
        heads, rows = step.queries.shape[0], out if isinstance(out, list) else [out]
        _ensure(rows is not out or len(out) == heads, f"{len(rows)} tensors for {heads} heads")
        for row in rows:
            is_offsets = row.dtype == torch.int64 and row.ndim == 1
            _ensure(is_offsets, f"{row.dtype} of {row.ndim} dimensions, not torch.int64 (n,)")
        parts.check_selected_offsets(out, step, allowed)
        if observe is not None:
            observe(make_observed_step(step))
        return rows

    yield "declares its members"
    _ensure_type("sums_layers", selector.sums_layers, bool)
    _ensure_type("surveys", selector.surveys, bool)
    if selector.surveys:
        step = make_step()
        selector.select(step, BUDGET)
        _ensure_type("the result of survey_complete", selector.survey_complete(step), bool)
        for turn in (step.query.selector, selector.new_turn_state()):
            selector.after_survey(turn)
    yield "valid results on random steps"
    cases = {case: {**options, "observe": observe} for case, options in STEPS.items()}
    cases |= {f"budget {n}": {"budget": n, "observe": observe} for n in (0, 1)}
    _check_steps(select, {**cases, "nothing observed": {}})
    yield "works after the store is cropped"
    step = make_step(observe=observe)
    select(step)
    for tokens in (8, 60, 50):  # one chunk, half of the document, nearly all other tokens
        step = advance(step, back=tokens)
        select(step)


def check_score(score: parts.Score) -> Checks:
    """Checks that a score gives each middle token a number, which may be -inf."""

    def score_random_step(step: Step) -> list[Tensor]:
        out: Any = score.scores(step)
        finite = out.where(~out.isneginf(), 0) if isinstance(out, Tensor) else out
        _ensure_numbers("scores", finite, step.middle)
        _ensure(out.is_floating_point(), f"scores: {out.dtype}, not a floating point dtype")
        return [out]

    yield "declares its members"
    _ensure_type("features", score.features, bool)
    if score.last_layer is not None:
        _ensure_type("last_layer", score.last_layer, int)
    yield "valid results on random steps"
    cases = {case: {**options, "score": score} for case, options in STEPS.items()}
    if score.features:
        maps = Linear(*torch.randn(2, 32, 5, generator=torch.Generator().manual_seed(7)))
        for dtype in (torch.float32, torch.bfloat16):
            cases[f"reduced keys, {dtype}"] = {"score": score, "projection": maps, "dtype": dtype}
    _check_steps(score_random_step, cases)
    yield "declares whether it rotates"
    # Compressors are fitted, and a stored KV cache is found again, by what `rotates` says.
    near, far = (score.scores(make_step(score=score, distance=n)) for n in (8, 4096))
    _ensure(score.rotates or torch.equal(near, far), "rotates is False, but scores change")


def check_compressor(compressor: parts.Compressor, folded: int) -> Checks:
    """Checks a compressor for layer 0 and F = `folded`. The compressor is fitted on few tokens, and
    on as many tokens as `fit_tokens` says."""

    def make_random_matrix(rows: int, seed: int) -> Tensor:
        return torch.randn(rows, folded, generator=torch.Generator().manual_seed(seed))

    def fit_on_tokens(max_tokens: int) -> Any:
        moments, twin = parts.Moments(), parts.Moments()
        if count := min(compressor.fit_tokens, max_tokens):
            for each in (moments, twin):
                each.add_tokens(make_random_matrix(count, 0), make_random_matrix(count, 1))
        projection = compressor.fit(0, moments)
        for name, before in vars(twin).items():
            now = getattr(moments, name)
            same = torch.equal(now, before) if isinstance(before, Tensor) else now == before
            _ensure(same, "fit changed its argument `moments`")
        return projection

    yield "declares fit_tokens"
    _ensure_type("fit_tokens", compressor.fit_tokens, int)
    yield "valid projections"
    for limit in (5, 4096):
        with _prefix_failures(f"fitted on at most {limit} tokens"):
            first, again = fit_on_tokens(limit), fit_on_tokens(limit)
            if first is None and again is None:  # a compressor may leave the keys whole
                continue
            for rows in ((1, 1), (8, 100), (40, 3)):
                for dtype in (torch.float32, torch.bfloat16):
                    q, k = (make_random_matrix(n, n).to(dtype) for n in rows)
                    _check_projection(first, again, q, k)


def _check_projection(projection: Any, twin: Any, q: Tensor, k: Tensor) -> None:
    """Fails if a projection's reduced queries (C, R) or keys (n, R) are invalid, or differ from the
    results of an equal projection. Each key must be reduced independently of other keys."""
    given = q.clone(), k.clone()
    queries, keys = projection.queries(given[0]), projection.keys(given[1])
    untouched = torch.equal(given[0], q) and torch.equal(given[1], k)
    _ensure(untouched, "the projection changed its arguments")
    _ensure_numbers("queries", queries, len(q), keys.shape[-1])
    _ensure_numbers("keys", keys, len(k), queries.shape[-1])
    # A step's queries are float32, and meet the reduced keys.
    wanted = torch.float32 if q.dtype == torch.float32 else keys.dtype
    alike = keys.is_floating_point() and queries.dtype == keys.dtype == wanted
    _ensure(alike, f"{q.dtype} inputs gave {queries.dtype} queries and {keys.dtype} keys")
    for x, fitted in ((queries, twin.queries(q.clone())), (keys, twin.keys(k.clone()))):
        _ensure(torch.equal(x, fitted), "two equal fits project equal queries or keys differently")
    for at in {0, len(k) // 2, len(k) - 1}:
        alone = projection.keys(k[at : at + 1].clone()).float()
        apart = float((alone - keys[at : at + 1].float()).abs().max())
        same = apart <= 0.02 * float(alone.abs().max()) + 1e-5
        _ensure(same, f"key {at} of {len(k)} is projected {apart:.3g} apart from when it is alone")


PLACES = {
    "usual": (16, 8, 200, 40), "no far token": (16, 8, 200, 0), "L = 0": (0, 8, 200, 40),
    "C = 1": (16, 1, 200, 40), "C = 40": (16, 40, 200, 40), "the first chunk": (0, 8, 0, 0),
    "all is local": (100, 8, 100, 0), "a long document": (1024, 512, 1_000_000, 1024),
}  # fmt: skip
"""Test cases of a position encoding: L, C, the first current token, and n far tokens."""


def check_position_encoding(encoding: parts.PositionEncoding) -> Checks:
    """Checks that a position encoding gives valid positions, query scales and frequencies."""
    yield "declares its members"
    _ensure_type("distance", encoding.distance, int)
    if encoding.max_distance is not None:
        _ensure_type("max_distance", encoding.max_distance, int, 1)
    yield "positions of near and far tokens"
    for case, arguments in PLACES.items():
        with _prefix_failures(case):
            _check_positions(encoding, *arguments)
    yield "query_scale (C,)"
    for start, count in ((0, 8), (200, 1), (1_000_000, 40)):
        at = torch.arange(start, start + count)
        factors, alone = (encoding.query_scale(places) for places in (at, at[-1:]))
        if factors is not None or alone is not None:
            with _prefix_failures(f"{count} queries from {start}"):
                _ensure_numbers("factors", factors, count, smallest=1e-30)
                _ensure_numbers("the last factor alone", alone, 1, smallest=1e-30)
                same = factors is not None and alone is not None and factors[-1:].allclose(alone)
                _ensure(same, "the last factor is different when alone")
    yield "frequencies (D / 2,)"
    for dim, base, length in ((8, 1e4, 1), (128, 5e5, 10_000_000), (64, 1e4, 30_000)):
        inverse = base ** (-torch.arange(0, dim, 2) / dim)
        given = inverse.clone()
        first: Any = encoding.frequencies(given, 1.0, length)
        again: Any = encoding.frequencies(inverse.clone(), 1.0, length)
        _ensure(torch.equal(given, inverse), "the encoding changed its argument `inverse`")
        if first is not None or again is not None:
            with _prefix_failures(f"D = {dim}, {length} tokens"):
                _ensure_numbers("frequencies", first[0], dim // 2, smallest=0)
                is_factor = isinstance(first[1], int | float) and 0 < first[1] < torch.inf
                _ensure(is_factor, f"the factor is {first[1]!r}, not a number above 0")
                _ensure(torch.equal(first[0], again[0]), "frequencies differ the second time")


def _check_positions(
    encoding: parts.PositionEncoding, local: int, chunk: int, start: int, far: int
) -> None:
    """Fails if a position encoding's positions are invalid. Half of the far tokens are the first
    tokens, and the other half are right before the local tokens."""
    last = start - local
    at = torch.cat((torch.arange(far // 2), torch.arange(last - far + far // 2, last)))
    given = at.clone()
    first, again = (
        (encoding.near(local, chunk, start, far), encoding.far(given, local, chunk, start))
        for _ in range(2)
    )
    _ensure(torch.equal(given, at), "the encoding changed its argument `at`")
    names = ("near", local + chunk), ("far", far)
    for (name, keys), out, other in zip(names, first, again, strict=True):
        _ensure(isinstance(out, Positions), f"{name} returns a {type(out).__name__}, not Positions")
        _ensure_numbers(f"{name} queries", out.query, chunk, smallest=0)
        _ensure_numbers(f"{name} keys", out.key, keys, smallest=0)
        same = torch.equal(out.query, other.query) and torch.equal(out.key, other.key)
        _ensure(same, f"the {name} positions are different the second time")
    query, key = first[1].query, first[1].key
    if far:
        _ensure(query.min() >= key.max(), f"a far query is before a far key at {key.max().item()}")


SUITES: dict[str, tuple[type, Callable[..., Checks]]] = {
    "selector": (parts.Selector, check_selector),
    "score": (parts.Score, check_score),
    "compressor": (parts.Compressor, check_compressor),
    "position": (parts.PositionEncoding, check_position_encoding),
}
CASES: dict[str, tuple[int, tuple[int, int, int, int], int]] = {
    "usual": (8192, (64, 1024, 1024, 512), 100_000),
    "a small window": (512, (4, 64, 64, 32), 100_000),
    "I = 0": (512, (0, 64, 64, 32), 100_000), "k = 0": (512, (4, 0, 64, 32), 100_000),
    "L = 0": (512, (4, 64, 0, 32), 100_000),
    "a short document": (8192, (64, 1024, 1024, 512), 100),
    "an unknown length": (8192, (64, 1024, 1024, 512), 0),
}  # fmt: skip
"""Test cases of a recipe: the model's trained window; I, k, L and C; the document's tokens."""


def check_recipe(name: str) -> Checks:
    """Checks that a recipe returns valid settings in all test cases, and equal settings twice."""
    yield "valid settings"
    for case, (context, sizes, length) in CASES.items():
        with _prefix_failures(case):
            settings: dict[str, Any] = {"context": context, "window": Window(*sizes)}
            settings["position"] = {"name": "esa", "distance": context // 2}
            base = Preset(name="base", model="any", **settings)
            first, again = (resolved_preset.apply_method(name, base, length) for _ in range(2))
            resolved_preset.resolve_preset(first)
            _ensure(first == again, "the settings are different the second time")


Observe = Callable[[Step], None]
PLAIN = SumScore()


def make_step(
    *, middle: int = 100, chunk: int = 8, initial: int = 4, local: int = 16, heads: int = 6,
    groups: int = 2, dim: int = 16, dtype: torch.dtype = torch.float32, spread: float = 1.0, ties:
    bool = False, distance: int = 64, layer: int = 0, decoding: bool = False, score: parts.Score =
    PLAIN, projection: Projection | None = None, observe: Observe | None = None, words: bool =
    True,
) -> Step:  # fmt: skip
    """Makes a step over a random document of I initial, M middle, L local and C current tokens.
    Equal arguments give equal steps. `spread` is the standard deviation of queries (H, C, D), keys
    and values (G, N, D). With `ties` all keys are equal, and with `words` the step has a text.
    `observe` is a selector's method, and is called for every chunk before the step's chunk."""
    start = initial + middle + local
    store = MemoryKVStore(groups, dim, dtype, torch.device("cpu"))
    random = torch.Generator().manual_seed(0)
    queries, keys, values = (
        (torch.randn(h, start + chunk, dim, generator=random) * spread).to(dtype)
        for h in (heads, groups, groups)
    )
    if ties:
        keys = keys[:, :1].expand_as(keys)
    text = QuestionAndText(
        "Where are word3 and word7?", lambda: [f" word{n % 50}." for n in range(start)]
    )
    rope = Rope(FixedFrequencyRotaryModule(10000.0 ** (-torch.arange(0, dim, 2) / dim), 1.0))
    step = Step(
        layer, start, queries[:, start:], store, initial, initial + middle, local, distance,
        dim**-0.5, rope, score, projection=projection, decoding=decoding,
        query=QueryState(text=text if words else None),
    )  # fmt: skip
    for low in range(0, start, 256):
        high = min(low + 256, start)
        store.append(keys[:, low:high], values[:, low:high])
        if observe is not None:
            observe(make_observed_step(_make_step_for_chunk(step, low, queries[:, low:high])))
    store.append(keys[:, start:], values[:, start:])
    _append_reduced_keys(step)
    return step


def advance(
    step: Step, chunk: int = 8, *, decoding: bool = False, back: int = 0, observe: Observe | None =
    None,
) -> Step:  # fmt: skip
    """Makes the step after the given step, with `chunk` new random tokens and equal windows. First
    calls `observe` for the given step's chunk, if the store has the chunk. Then removes the last
    `back` tokens from the store and begins a new turn, if `back` is not 0."""
    store = step.store
    if observe is not None and len(store) == step.start + step.queries.shape[1]:
        observe(make_observed_step(step))
    if back:
        store.crop(-back)
        for state in step.states.values():
            state.crop(len(store))
        step = replace(step, query=QueryState(text=step.text))
    random = torch.Generator().manual_seed(1)
    queries, keys, values = (
        torch.randn(rows, chunk, store.dim, generator=random).to(step.queries)
        for rows in (step.queries.shape[0], store.heads, store.heads)
    )
    step = replace(_make_step_for_chunk(step, len(store), queries), decoding=decoding)
    store.append(keys, values)
    _append_reduced_keys(step)
    return step


def make_observed_step(step: Step) -> Step:
    """Returns the step for `observe` after attention to initial and local tokens."""
    chunk, rope = step.queries.shape[1], step.rope
    places = torch.arange(step.local + chunk)
    keys, values = step.store.span(step.start - step.local, step.start + chunk)
    queries = rope.rotate(step.queries, places[step.local :])
    near = compute_reference_attention(queries, rope.rotate(keys, places), values, True, step.scale)
    keys, values = step.store.span(0, step.low)
    far = compute_reference_attention(step.rotated(True), keys, values, False, step.scale)
    return replace(step, low=0, projection=None, lse=fuse_attention([near, far])[1])


def _make_step_for_chunk(step: Step, start: int, queries: Tensor) -> Step:
    """Returns the step for a chunk whose queries (H, C, D) begin at position `start`."""
    local = min(step.local, start)
    high = start - local
    step = replace(step, low=min(step.low, high), high=high, local=local)
    return replace(step, start=start, queries=queries, decoding=False)


def _append_reduced_keys(step: Step) -> None:
    if step.projection is not None:
        for _, keys in step.store.key_blocks(step.store.reduced_key_count, step.high):
            step.store.append_reduced_keys(step.projection.keys(join_key_heads(keys)))
