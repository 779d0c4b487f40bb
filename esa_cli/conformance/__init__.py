"""The conformance suite: does a registered method keep the promises in `protocols`?

Anyone can run it on a method of their own: `esa plugins check FILE`, or `check` in a test. It says
nothing about quality; compare with a plain loop, as `tests/test_plugins.py` does, for that.
`make_step` and `advance` make the steps such a test needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .. import builtin as _builtin  # noqa: F401 - so that built-in methods can be checked
from .. import registry
from ..errors import PluginError
from .compressors import check_compressor, random_moments
from .findings import Finding, describe
from .positions import check_position
from .scores import check_score
from .selectors import check_selector
from .steps import Rotary, advance, make_step

__all__ = ["Finding", "Rotary", "advance", "check", "check_file", "make_step", "random_moments"]


def check(
    kind: str,
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
    folded: int = 32,
) -> list[Finding]:
    """Runs every check on the method registered as `kind: name`.

    Args:
        options: the method's settings; its defaults when None. A compressor that reads a file
            needs one. device: where the tensors are.
        folded: F = G * D, for a compressor made for one model.

    Raises:
        PluginError: there is no such kind. PresetError: there is no such method.
    """
    suites: dict[str, Callable[[Any, str], list[Finding]]] = {
        "selector": check_selector,
        "score": check_score,
        "compressor": partial(check_compressor, folded=folded),
        "position": check_position,
    }
    if kind not in suites:
        raise PluginError(f"no such kind {kind!r}", registry.nearest(kind, [*suites]))
    cls = registry.lookup(kind, name)
    frozen = cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    detail = "" if frozen else f"{cls.__name__} can be changed: use @dataclass(frozen=True)"
    findings = [Finding("frozen", frozen, detail)]
    try:
        method = registry.build(kind, {**(options or {}), "name": name})
    except Exception as error:
        return [*findings, Finding("builds", False, describe(error))]
    return [*findings, Finding("builds", True, ""), *suites[kind](method, device)]


def check_file(path: str | Path, *, device: str = "cpu") -> dict[tuple[str, str], list[Finding]]:
    """Loads a plugin file and checks everything it registers, with default settings.

    Raises:
        PluginError: the file is missing, does not run, or registers nothing.
    """
    return {pair: check(*pair, device=device) for pair in registry.load_file(path)}
