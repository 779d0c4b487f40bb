"""The conformance suite: checks a registered part or recipe against the interfaces.

For plugins: `esa plugins check FILE`, or `check` in a test. It does not measure quality, nor that
results are right; for that, compare with a plain loop on the random steps of `make_step` and
`advance`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from esa_cli.attention.parts import Compressor, PositionEncoding, Score, Selector
from esa_cli.errors import NOT_BLAMED, PluginError
from esa_cli.evaluation.conformance.checks import (
    Finding,
    check_compressor,
    check_position,
    check_recipe,
    check_score,
    check_selector,
    describe,
    random_moments,
)
from esa_cli.evaluation.conformance.random_steps import PlainRotary, advance, make_step
from esa_cli.methods import registry
from esa_cli.methods.plugin_loading import load_file, load_installed
from esa_cli.methods.registry import RECIPES
from esa_cli.system.registry import nearest

__all__ = [
    "Finding",
    "PlainRotary",
    "advance",
    "check",
    "check_file",
    "make_step",
    "random_moments",
]


def check(
    kind: str,
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
    folded: int = 32,
) -> list[Finding]:
    """Runs every check on the part registered as `kind: name`, or on the recipe `name`.

    Args:
        kind: selector, score, compressor, position, or method for a recipe. options: the part's
            settings; its defaults when None. A compressor that reads a file needs one.
        device: where the tensors are. folded: F = G * D, for a compressor made for one model.

    Raises:
        PluginError: there is no such kind. PresetError: there is no such method.
    """
    load_installed()
    suites: dict[str, tuple[type, Callable[[Any, str], list[Finding]]]] = {
        "selector": (Selector, check_selector),
        "score": (Score, check_score),
        "compressor": (Compressor, partial(check_compressor, folded=folded)),
        "position": (PositionEncoding, check_position),
    }
    if kind == RECIPES.kind:
        return check_recipe(name)
    if kind not in suites:
        raise PluginError(f"no such kind {kind!r}", nearest(kind, [*suites, "method"]))
    cls = registry.lookup(kind, name)
    frozen = cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    detail = "" if frozen else f"{cls.__name__} can be changed: use @dataclass(frozen=True)"
    findings = [Finding("frozen", frozen, detail)]
    try:
        method = registry.build(kind, {**(options or {}), "name": name})
    except NOT_BLAMED:
        raise
    except BaseException as error:
        how = f"; settings without a default: check({kind!r}, {name!r}, options) of {__name__}"
        return [*findings, Finding("builds", False, describe(error) + how)]
    findings.append(Finding("builds", True, ""))
    base, suite = suites[kind]
    if not isinstance(method, base):
        detail = f"class {cls.__name__} is not"
        return [*findings, Finding(f"derived from {base.__name__}", False, detail)]
    return [*findings, *suite(method, device)]


def check_file(path: str | Path, *, device: str = "cpu") -> dict[tuple[str, str], list[Finding]]:
    """Loads a plugin file and checks the parts, with default settings, and recipes it registers.
    Raises PluginError: the file is missing, does not run, or registers nothing of a method."""
    kinds = (*registry.KINDS, RECIPES.kind)
    pairs = [pair for pair in load_file(path) if pair[0] in kinds]
    if not pairs:
        raise PluginError(
            f"plugin {path} has only readers, and there are no checks of readers",
            "try one with `esa ask FILE QUESTION --plugin`",
        )
    return {pair: check(*pair, device=device) for pair in pairs}
