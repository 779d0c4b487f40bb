"""Steps that scores and selectors are checked on; checks that these repeat and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.step import KVStore, Step
from esa_cli.evaluation.conformance.finding import Finding, attempt, each
from esa_cli.evaluation.conformance.random_steps import Observe, make_step

BUDGET = 16
STEPS: dict[str, dict[str, Any]] = {
    "usual": {},
    "k > M": {"middle": 7},
    "k = M": {"middle": BUDGET},
    "M = 1": {"middle": 1},
    "empty M": {"middle": 0},
    "C = 1": {"chunk": 1},
    "C = 40": {"chunk": 40},
    "an answer's token": {"chunk": 1, "decoding": True},
    "a late layer": {"layer": 30},
    "L = 0": {"local": 0},
    "H = G": {"heads": 4, "groups": 4},
    "H = 3 G": {"heads": 6, "groups": 2},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "ties": {"ties": True},
    "large logits": {"spread": 100.0},
    "more than one block of keys": {"middle": 9000},
    "no text": {"words": False},
}
"""Options of `make_step`, by the name of the case."""


@dataclass(frozen=True)
class TriedStep:
    """A part's result on a step, and an equal step that the part never had."""

    step: Step
    twin: Step
    budget: int
    out: Any


def one_dimension(tried: TriedStep) -> str:
    """Complains unless the result is a tensor of shape (n,)."""
    if not isinstance(tried.out, Tensor):
        return f"returned a {type(tried.out).__name__}"
    return "" if tried.out.ndim == 1 else f"has shape {tuple(tried.out.shape)}"


def right_device(tried: TriedStep) -> str:
    """Complains unless the result is where the queries are."""
    wanted = tried.step.queries.device
    return "" if tried.out.device == wanted else f"is on {tried.out.device}, not {wanted}"


def conduct(
    results: Mapping[str, TriedStep],
    cases: Mapping[str, Callable[[], TriedStep]],
    device: str,
    observe: Observe | None,
    call: Callable[[Step], Any],
) -> list[Finding]:
    """Checks that a part is deterministic and changes neither queries nor store.

    Args:
        results: of `cases`, the first time. call: gives a tensor, or a list of them.
    """
    make = partial(make_step, device=device, observe=observe)

    def repeats() -> str:
        return _deterministic(make, call) or _backwards(results, cases)

    return [
        attempt("deterministic", repeats),
        each("leaves the queries alone", results, _same_queries),
        each("leaves the store alone", results, _same_store),
    ]


def parts(out: Any) -> list[Tensor]:
    """The tensors of a result: itself, or those of a list."""
    return [out] if isinstance(out, Tensor) else list(out)


def _deterministic(make: Callable[[], Step], call: Callable[[Step], Any]) -> str:
    step = make()
    first, second, fresh = (
        [part.clone() for part in parts(call(given))] for given in (step, step, make())
    )
    again = _apart(first, second, "the same step again")
    return again or _apart(first, fresh, "an equal step")


def _backwards(
    results: Mapping[str, TriedStep], cases: Mapping[str, Callable[[], TriedStep]]
) -> str:
    """Runs every case again, in reverse order, to find state kept from other steps."""
    for case in reversed([*results]):
        first, out = parts(results[case].out), parts(cases[case]().out)
        detail = _apart(first, out, "an equal step, after others")
        if detail:
            return f"{case}: {detail}"
    return ""


def _apart(first: list[Tensor], out: list[Tensor], when: str) -> str:
    shapes, now = ([tuple(part.shape) for part in one] for one in (first, out))
    if shapes != now:
        return f"shape {_short(shapes)}, then {_short(now)} on {when}"
    pairs = list(zip(first, out, strict=True))
    changed = sum(int(((a != b) & ~(a.isnan() & b.isnan())).sum()) for a, b in pairs)
    return (
        f"{changed} of {sum(a.numel() for a in first)} numbers differ on {when}" if changed else ""
    )


def _short(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join(str(shape) for shape in shapes)


def _same_queries(tried: TriedStep) -> str:
    changed = int((tried.step.queries != tried.twin.queries).sum())
    return f"{changed} of {tried.step.queries.numel()} numbers changed" if changed else ""


def _same_store(tried: TriedStep) -> str:
    store, twin = tried.step.store, tried.twin.store
    if len(store) != len(twin) or store.reduced != twin.reduced:
        return (
            f"had {len(twin)} tokens and {twin.reduced} reduced keys, "
            f"now {len(store)} and {store.reduced}"
        )
    now, before = _rows(store), _rows(twin)
    for name, left, right in zip(("keys", "values", "reduced keys"), now, before, strict=True):
        changed = int((left != right).sum())
        if changed:
            return f"{changed} of {right.numel()} numbers in the {name} changed"
    return ""


def _rows(store: KVStore) -> list[Tensor]:
    """Keys and values (G, N, D) and reduced keys (n, R) of a store."""
    blocks = store.feature_blocks(0, store.reduced) if store.reduced else ()
    reduced = [block for _, block in blocks]
    return [*store.span(0, len(store)), torch.cat(reduced) if reduced else torch.empty(0)]
