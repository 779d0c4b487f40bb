"""Checks the selectors, scores, compressors, position encodings and methods of a plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention import parts
from esa_cli.attention.algebra import concat_key_heads, fuse_attention
from esa_cli.attention.compression import Linear
from esa_cli.attention.kernels import compute_reference_attention
from esa_cli.attention.rope import FixedFrequencyRotaryModule, Rope
from esa_cli.attention.selection import LogitSum
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
class PluginCheckResult:
    """The result of one check of a plugin's class or method."""

    check: str
    passed: bool
    detail: str  # the reason of a failure, else empty


class _CheckFailure(Exception):
    """Says why a plugin's class or method fails a check."""


def _require(condition: bool | Tensor, failure_reason: str) -> None:
    if not condition:
        raise _CheckFailure(failure_reason)


def _require_type_and_minimum(
    value_name: str, value: Any, expected_type: Any, minimum: int = 0
) -> None:
    is_valid = type(value) is expected_type and value >= minimum
    wanted = f"{expected_type.__name__} from {expected_type(minimum)}"
    _require(is_valid, f"{value_name} is {value!r}, not {wanted}")


def _require_tensor(name: str, tensor: Any, *shape: int, smallest: float = -torch.inf) -> None:
    is_tensor = isinstance(tensor, Tensor)
    is_shaped = is_tensor and tensor.shape == shape and tensor.dtype != torch.bool
    kind = f"{tensor.dtype} {tuple(tensor.shape)}" if is_tensor else type(tensor).__name__
    _require(is_shaped, f"{name}: {kind}, not numbers {shape}")
    is_valid = tensor.isfinite() & (tensor >= smallest)
    _require(is_valid.all(), f"{name}: {int((~is_valid).sum())} are not finite or below {smallest}")


@contextmanager
def _prefix_failures_with_case(case_name: str) -> Iterator[None]:
    """Puts a test case's name before the reason of a failed check inside the `with` block."""
    try:
        yield
    except NOT_BLAMED:
        raise
    except BaseException as error:
        raise _CheckFailure(f"{case_name}: {describe_check_failure(error)}") from error


def describe_check_failure(error: BaseException) -> str:
    """Describes why a check failed, or which error the plugin's code raised."""
    return str(error) if isinstance(error, _CheckFailure) else f"raised {describe_error(error)}"


def check(
    kind: str, name: str, options: Mapping[str, Any] | None = None
) -> list[PluginCheckResult]:
    """Checks a plugin's class, such as a selector, or a method if the kind is `method`, until a
    check fails. Raises PluginError: the kind is unknown. PresetError: the recipe is unknown."""
    load_installed_plugins()
    if kind not in KINDS:
        message = f"a plugin cannot register the kind {kind!r}"
        raise PluginError(message, suggest_name(kind, KINDS))
    checks = check_method_settings(name)
    if kind in SUITES:
        registry.find_registered_class(kind, name)
        checks = check_class(kind, name, options or {})
    findings: list[PluginCheckResult] = []
    try:
        for check_name in checks:
            findings.append(PluginCheckResult(check_name, True, ""))
    except NOT_BLAMED:
        raise
    except BaseException as error:
        findings[-1] = PluginCheckResult(findings[-1].check, False, describe_check_failure(error))
    return findings


def check_plugin_file(path: str | Path) -> dict[tuple[str, str], list[PluginCheckResult]]:
    """Loads a plugin file, and checks every class and method that the file registers, with default
    settings. Raises PluginError: the file is missing, does not run, or registers only readers."""
    pairs = [pair for pair in load_file(path) if pair[0] in KINDS]
    if not pairs:
        raise PluginError(
            f"{path} registers only readers of documents, which `esa plugins check` cannot check",
            "try a reader of documents with `esa ask --plugin FILE`",
        )
    return {pair: check(*pair) for pair in pairs}


def check_class(kind: str, name: str, options: Mapping[str, Any]) -> Checks:
    yield "builds a frozen dataclass of its base class"
    cls: Any = registry.find_registered_class(kind, name)
    base, suite = SUITES[kind]
    _require(cls.__dataclass_params__.frozen, f"{cls.__name__}: use @dataclass(frozen=True)")
    _require(issubclass(cls, base), f"{cls.__name__} is not derived from {base.__name__}")
    with _prefix_failures_with_case(f"check({kind!r}, {name!r}, options)"):
        part = registry.build_method_part(kind, {**options, "name": name})
    yield from suite(part)


BUDGET = 16
STEPS: dict[str, dict[str, Any]] = {
    "usual": {}, "k > M": {"middle": 7}, "k = M": {"middle": BUDGET}, "M = 1": {"middle": 1},
    "empty M": {"middle": 0}, "C = 1": {"chunk": 1}, "C = 40": {"chunk": 40},
    "an answer's token": {"chunk": 1, "decoding": True}, "a late layer": {"layer": 30},
    "L = 0": {"local": 0}, "H = G": {"heads": 4, "groups": 4}, "H = 3 G": {"heads": 6, "groups": 2},
    "bfloat16": {"dtype": torch.bfloat16}, "float16": {"dtype": torch.float16},
    "equal keys": {"equal_keys": True}, "large logits": {"deviation": 100.0},
    "more than one block of keys": {"middle": 9000}, "no text": {"has_text": False},
}  # fmt: skip
"""The arguments of `make_step` in each test case, by the case's name."""


def _check_on_random_steps(
    compute_results: Callable[..., list[Tensor]], step_cases: dict[str, dict[str, Any]]
) -> None:
    """Fails if a selector or score gives other results for equal inputs, or changes an input."""
    first: dict[str, list[Tensor]] = {}
    for case in (*step_cases, *reversed(step_cases)):  # shows state kept from other steps
        options = dict(step_cases[case])
        given = {"budget": options.pop("budget")} if "budget" in options else {}
        step, twin = make_step(**options), make_step(**{**options, "observe": None})
        with _prefix_failures_with_case(case):
            results = [row.clone() for row in compute_results(step, **given)]
            before = first.setdefault(case, results)
            alike = len(before) == len(results) and all(map(torch.equal, before, results))
            _require(alike, "equal steps give different results")
            now, untouched = _collect_step_tensors(step), _collect_step_tensors(twin)
            changed = [name for name, x in untouched.items() if not torch.equal(x, now[name])]
            _require(not changed, f"the part changed the {', '.join(changed)}")


def _collect_step_tensors(step: Step) -> dict[str, Tensor]:
    store = step.store
    keys, values = store.span(0, len(store))
    pairs = store.get_reduced_blocks(0, store.reduced_key_count) if store.reduced_key_count else ()
    reduced = torch.cat([torch.empty(0), *(block for _, block in pairs)])
    return {"queries": step.queries, "keys": keys, "values": values, "reduced keys": reduced}


def check_selector(selector: parts.Selector) -> Checks:
    """Checks that a plugin's selector selects only middle tokens, and no more than allowed."""
    observe = selector.observe if selector.is_observer else None

    def select_and_check_offsets(step: Step, budget: int = BUDGET) -> list[Tensor]:
        allowed = selector.allowance(step, budget)
        _require_type_and_minimum("allowance", allowed, int)
        out: Any = selector.select(step, allowed)
        heads, rows = step.queries.shape[0], out if isinstance(out, list) else [out]
        _require(rows is not out or len(out) == heads, f"{len(rows)} tensors for {heads} heads")
        for row in rows:
            is_offsets = row.dtype == torch.int64 and row.ndim == 1
            _require(is_offsets, f"{row.dtype} of {row.ndim} dimensions, not torch.int64 (n,)")
        parts.check_selected_offsets(out, step, allowed)
        if observe is not None:
            observe(make_step_for_observe(step))
        return rows

    yield "declares its members"
    _require_type_and_minimum("sums_layers", selector.sums_layers, bool)
    _require_type_and_minimum("surveys", selector.surveys, bool)
    if selector.surveys:
        step = make_step()
        selector.select(step, BUDGET)
        _require_type_and_minimum("survey_complete()", selector.survey_complete(step), bool)
        for turn in (step.query.selector, selector.new_turn_state()):
            selector.start_turn_after_survey(turn)
    yield "valid results on random steps"
    cases = {case: {**options, "observe": observe} for case, options in STEPS.items()}
    cases |= {f"budget {n}": {"budget": n, "observe": observe} for n in (0, 1)}
    _check_on_random_steps(select_and_check_offsets, {**cases, "nothing observed": {}})
    yield "works after the store is cropped"
    step = make_step(observe=observe)
    select_and_check_offsets(step)
    for tokens in (8, 60, 50):  # one chunk, half of the document, nearly all other tokens
        step = advance(step, removed_tokens=tokens)
        select_and_check_offsets(step)


def check_score(score: parts.Score) -> Checks:
    """Checks that a plugin's score gives each middle token a number or minus infinity."""

    def score_random_step(step: Step) -> list[Tensor]:
        out: Any = score.scores(step)
        finite = out.where(~out.isneginf(), 0) if isinstance(out, Tensor) else out
        _require_tensor("scores", finite, step.middle)
        _require(out.is_floating_point(), f"scores: {out.dtype}, not a floating point dtype")
        return [out]

    yield "declares its members"
    _require_type_and_minimum("features", score.features, bool)
    if score.last_layer is not None:
        _require_type_and_minimum("last_layer", score.last_layer, int)
    yield "valid results on random steps"
    cases = {case: {**options, "score": score} for case, options in STEPS.items()}
    if score.features:
        maps = Linear(*torch.randn(2, 32, 5, generator=torch.Generator().manual_seed(7)))
        for dtype in (torch.float32, torch.bfloat16):
            cases[f"reduced keys, {dtype}"] = {"score": score, "projection": maps, "dtype": dtype}
    _check_on_random_steps(score_random_step, cases)
    yield "declares whether it rotates"
    # Compressors are fitted, and a stored KV cache is found again, by what `rotates` says.
    near, far = (score.scores(make_step(score=score, distance=n)) for n in (8, 4096))
    _require(score.rotates or torch.equal(near, far), "rotates is False, but scores change")


def check_compressor(compressor: parts.Compressor) -> Checks:
    """Checks the projections of a compressor that is fitted to random queries and keys (n, 32)."""

    def make_random_matrix(row_count: int, seed: int) -> Tensor:
        return torch.randn(row_count, 32, generator=torch.Generator().manual_seed(seed))

    def fit_to_random_tokens(max_tokens: int) -> Any:
        moments, twin = parts.Moments(), parts.Moments()
        if count := min(compressor.fit_tokens, max_tokens):
            for each in (moments, twin):
                each.add_tokens(make_random_matrix(count, 0), make_random_matrix(count, 1))
        projection = compressor.fit(0, moments)
        for name, before in vars(twin).items():
            now = getattr(moments, name)
            same = torch.equal(now, before) if isinstance(before, Tensor) else now == before
            _require(same, "fit changed its argument `moments`")
        return projection

    yield "declares fit_tokens"
    _require_type_and_minimum("fit_tokens", compressor.fit_tokens, int)
    yield "valid projections"
    for limit in (5, 4096):
        with _prefix_failures_with_case(f"fitted on at most {limit} tokens"):
            first, again = fit_to_random_tokens(limit), fit_to_random_tokens(limit)
            if first is None and again is None:  # a compressor may leave the keys whole
                continue
            for rows in ((1, 1), (8, 100), (40, 3)):
                for dtype in (torch.float32, torch.bfloat16):
                    q, k = (make_random_matrix(n, n).to(dtype) for n in rows)
                    _check_projection_results(first, again, q, k)


def _check_projection_results(projection: Any, equal_projection: Any, q: Tensor, k: Tensor) -> None:
    """Fails if a projection is invalid, differs from an equal one, or mixes the keys of tokens."""
    given = q.clone(), k.clone()
    queries, keys = projection.queries(given[0]), projection.keys(given[1])
    untouched = torch.equal(given[0], q) and torch.equal(given[1], k)
    _require(untouched, "the projection changed its arguments")
    _require_tensor("queries", queries, len(q), keys.shape[-1])
    _require_tensor("keys", keys, len(k), queries.shape[-1])
    # A step's queries are float32, and meet the reduced keys.
    wanted = torch.float32 if q.dtype == torch.float32 else keys.dtype
    alike = keys.is_floating_point() and queries.dtype == keys.dtype == wanted
    _require(alike, f"{q.dtype} inputs gave {queries.dtype} queries and {keys.dtype} keys")
    twin = equal_projection.queries(q.clone()), equal_projection.keys(k.clone())
    for x, fitted in zip((queries, keys), twin, strict=True):
        _require(torch.equal(x, fitted), "two equal fits project equal queries or keys differently")
    for at in {0, len(k) // 2, len(k) - 1}:
        alone = projection.keys(k[at : at + 1].clone()).float()
        apart = float((alone - keys[at : at + 1].float()).abs().max())
        same = apart <= 0.02 * float(alone.abs().max()) + 1e-5
        _require(same, f"key {at} of {len(k)} is projected {apart:.3g} apart from when it is alone")


PLACES = {
    "usual": (16, 8, 200, 40), "no far token": (16, 8, 200, 0), "L = 0": (0, 8, 200, 40),
    "C = 1": (16, 1, 200, 40), "C = 40": (16, 40, 200, 40), "the first chunk": (0, 8, 0, 0),
    "all is local": (100, 8, 100, 0), "a long document": (1024, 512, 1_000_000, 1024),
}  # fmt: skip
"""Test cases of a position encoding: L, C, the first current token, and n far tokens."""


def check_position_encoding(encoding: parts.PositionEncoding) -> Checks:
    """Checks that a plugin's position encoding gives valid positions and rotation frequencies."""
    yield "declares its members"
    _require_type_and_minimum("distance", encoding.distance, int)
    if encoding.max_distance is not None:
        _require_type_and_minimum("max_distance", encoding.max_distance, int, 1)
    yield "positions of near and far tokens"
    for case, arguments in PLACES.items():
        with _prefix_failures_with_case(case):
            _check_encoded_positions(encoding, *arguments)
    yield "query_scale (C,)"
    for start, count in ((0, 8), (200, 1), (1_000_000, 40)):
        at = torch.arange(start, start + count)
        factors, alone = (encoding.query_scale(places) for places in (at, at[-1:]))
        if factors is not None or alone is not None:
            with _prefix_failures_with_case(f"{count} queries from {start}"):
                _require_tensor("factors", factors, count, smallest=1e-30)
                _require_tensor("the last factor alone", alone, 1, smallest=1e-30)
                same = factors is not None and alone is not None and factors[-1:].allclose(alone)
                _require(same, "the last factor is different when alone")
    yield "frequencies (D / 2,)"
    for dim, base, length in ((8, 1e4, 1), (128, 5e5, 10_000_000), (64, 1e4, 30_000)):
        inverse = base ** (-torch.arange(0, dim, 2) / dim)
        given = inverse.clone()
        first: Any = encoding.frequencies(given, 1.0, length)
        again: Any = encoding.frequencies(inverse.clone(), 1.0, length)
        _require(torch.equal(given, inverse), "the encoding changed its argument `inverse`")
        if first is not None or again is not None:
            with _prefix_failures_with_case(f"D = {dim}, {length} tokens"):
                _require_tensor("frequencies", first[0], dim // 2, smallest=0)
                is_factor = isinstance(first[1], int | float) and 0 < first[1] < torch.inf
                _require(is_factor, f"the factor is {first[1]!r}, not a number above 0")
                _require(torch.equal(first[0], again[0]), "frequencies differ the second time")


def _check_encoded_positions(
    encoding: parts.PositionEncoding, local_tokens: int, chunk_tokens: int, chunk_start: int,
    far_tokens: int,
) -> None:  # fmt: skip
    """Fails if a position encoding gives invalid positions for near or far tokens."""
    last, half = chunk_start - local_tokens, far_tokens // 2
    sizes = local_tokens, chunk_tokens, chunk_start
    # Half of the far tokens are the first tokens, and half are right before the local tokens.
    at = torch.cat((torch.arange(half), torch.arange(last - far_tokens + half, last)))
    given = at.clone()
    first, again = (
        (encoding.near(*sizes, far_tokens), encoding.far(given, *sizes)) for _ in range(2)
    )
    _require(torch.equal(given, at), "the encoding changed its argument `at`")
    names = ("near", local_tokens + chunk_tokens), ("far", far_tokens)
    for (name, keys), out, other in zip(names, first, again, strict=True):
        is_valid = isinstance(out, Positions)
        _require(is_valid, f"{name} returns a {type(out).__name__}, not Positions")
        _require_tensor(f"{name} queries", out.query, chunk_tokens, smallest=0)
        _require_tensor(f"{name} keys", out.key, keys, smallest=0)
        same = torch.equal(out.query, other.query) and torch.equal(out.key, other.key)
        _require(same, f"the {name} positions are different the second time")
    query, key = first[1].query, first[1].key
    if far_tokens:
        _require(query.min() >= key.max(), f"a far query is before a far key at {key.max().item()}")


SUITES: dict[str, tuple[type, Callable[..., Checks]]] = {
    "selector": (parts.Selector, check_selector),
    "score": (parts.Score, check_score),
    "compressor": (parts.Compressor, check_compressor),
    "position": (parts.PositionEncoding, check_position_encoding),
}
KINDS = (*SUITES, registry.RECIPES.kind)
CASES: dict[str, tuple[int, tuple[int, int, int, int], int]] = {
    "usual": (8192, (64, 1024, 1024, 512), 100_000),
    "a small window": (512, (4, 64, 64, 32), 100_000),
    "I = 0": (512, (0, 64, 64, 32), 100_000), "k = 0": (512, (4, 0, 64, 32), 100_000),
    "L = 0": (512, (4, 64, 0, 32), 100_000),
    "a short document": (8192, (64, 1024, 1024, 512), 100),
    "an unknown length": (8192, (64, 1024, 1024, 512), 0),
}  # fmt: skip
"""Test cases of a method: the model's trained window; I, k, L and C; the document's tokens."""


def check_method_settings(name: str) -> Checks:
    """Checks that a method has valid settings for several presets, and always the same settings."""
    yield "valid settings"
    for case, (context, sizes, length) in CASES.items():
        with _prefix_failures_with_case(case):
            settings: dict[str, Any] = {"context": context, "window": Window(*sizes)}
            settings["position"] = {"name": "esa", "distance": context // 2}
            base = Preset(name="base", model="any", **settings)
            first, again = (resolved_preset.replace_method(name, base, length) for _ in range(2))
            resolved_preset.resolve_preset(first)
            _require(first == again, "the settings are different the second time")


Observe = Callable[[Step], None]
PLAIN = LogitSum()


def make_step(
    *, middle: int = 100, chunk: int = 8, initial: int = 4, local: int = 16, heads: int = 6,
    groups: int = 2, dim: int = 16, dtype: torch.dtype = torch.float32, deviation: float = 1.0,
    equal_keys: bool = False, distance: int = 64, layer: int = 0, decoding: bool = False, score:
    parts.Score = PLAIN, projection: Projection | None = None, observe: Observe | None = None,
    has_text: bool = True,
) -> Step:  # fmt: skip
    """Makes a `Step` with random queries, keys and values, which are equal for equal arguments.
    `observe`, a selector's method, is called for every chunk before the step's chunk."""
    start = initial + middle + local
    store = MemoryKVStore(groups, dim, dtype, torch.device("cpu"))
    random = torch.Generator().manual_seed(0)
    queries, keys, values = (
        (torch.randn(h, start + chunk, dim, generator=random) * deviation).to(dtype)
        for h in (heads, groups, groups)
    )
    if equal_keys:
        keys = keys[:, :1].expand_as(keys)
    text = QuestionAndText(
        "Where are word3 and word7?", lambda: [f" word{n % 50}." for n in range(start)]
    )
    rope = Rope(FixedFrequencyRotaryModule(10000.0 ** (-torch.arange(0, dim, 2) / dim), 1.0))
    step = Step(
        layer, start, queries[:, start:], store, initial, initial + middle, local, distance,
        dim**-0.5, rope, score, projection=projection, decoding=decoding,
        query=QueryState(text=text if has_text else None),
    )  # fmt: skip
    for low in range(0, start, 256):
        high = min(low + 256, start)
        store.append(keys[:, low:high], values[:, low:high])
        if observe is not None:
            observe(make_step_for_observe(_make_step_for_chunk(step, low, queries[:, low:high])))
    store.append(keys[:, start:], values[:, start:])
    _append_reduced_keys(step)
    return step


def advance(step: Step, new_tokens: int = 8, *, removed_tokens: int = 0) -> Step:
    """Makes a `Step` for random tokens that follow the tokens of an earlier step."""
    store = step.store
    if removed_tokens:
        store.crop(-removed_tokens)
        for state in step.states.values():
            state.crop(len(store))
        step = replace(step, query=QueryState(text=step.text))
    random = torch.Generator().manual_seed(1)
    queries, keys, values = (
        torch.randn(rows, new_tokens, store.dim, generator=random).to(step.queries)
        for rows in (step.queries.shape[0], store.heads, store.heads)
    )
    step = _make_step_for_chunk(step, len(store), queries)
    store.append(keys, values)
    _append_reduced_keys(step)
    return step


def make_step_for_observe(step: Step) -> Step:
    """Returns a copy of a step as a selector's method `observe` gets it, with the log-sum-exp."""
    chunk, rope = step.queries.shape[1], step.rope
    places = torch.arange(step.local + chunk)
    keys, values = step.store.span(step.start - step.local, step.start + chunk)
    queries = rope.rotate(step.queries, places[step.local :])
    near = compute_reference_attention(queries, rope.rotate(keys, places), values, True, step.scale)
    keys, values = step.store.span(0, step.low)
    far = compute_reference_attention(step.rotated(True), keys, values, False, step.scale)
    return replace(step, low=0, projection=None, lse=fuse_attention([near, far])[1])


def _make_step_for_chunk(step: Step, chunk_start: int, queries: Tensor) -> Step:
    local = min(step.local, chunk_start)
    high = chunk_start - local
    step = replace(step, low=min(step.low, high), high=high, local=local)
    return replace(step, start=chunk_start, queries=queries, decoding=False)


def _append_reduced_keys(step: Step) -> None:
    if step.projection is not None:
        for _, keys in step.store.key_blocks(step.store.reduced_key_count, step.high):
            step.store.append_reduced_keys(step.projection.keys(concat_key_heads(keys)))
