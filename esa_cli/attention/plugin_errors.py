"""Errors of a method's parts name the plugin that they come from.

Errors of built-in parts, `EsaError`s and out-of-memory errors pass unchanged.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from esa_cli.attention.interfaces import Selection
from esa_cli.attention.parts import Compressor, PositionEncoding, Score, Selector
from esa_cli.attention.query_state import SurveyComplete
from esa_cli.attention.step import Step
from esa_cli.errors import EsaError, PluginError
from esa_cli.system.machine import memory_ran_out

HINT = "`esa plugins check FILE` shows more"


def is_builtin(part: object) -> bool:
    """Whether a part's class is of this package, and not a plugin's, which may derive from one."""
    return type(part).__module__.startswith("esa_cli.")


def check_offsets(offsets: Selection, step: Step, budget: int) -> None:
    """Raises ValueError for a selection outside M, which would read unused memory, or beyond the
    budget, which would make comparisons worthless."""
    rows, most = [offsets] if isinstance(offsets, Tensor) else offsets, min(budget, step.middle)
    for row in rows:
        inside = not row.numel() or (int(row[0]) >= 0 and int(row[-1]) < step.middle)
        if row.shape[0] > most or not inside or bool((row.diff() <= 0).any()):
            raise ValueError(f"must select ascending offsets below {step.middle}, at most {most}")


@contextmanager
def blame_plugins(parts: Mapping[str, object]) -> Iterator[None]:
    """Turns an exception into a PluginError that names the plugin in whose code it was raised, or
    all plugins among `parts` where it was raised elsewhere, as by a result of a wrong shape.

    Args:
        parts: by kind; what is no part is ignored.
    """
    try:
        yield
    except (EsaError, SurveyComplete):
        raise
    except Exception as error:
        bases = (Selector, Score, Compressor, PositionEncoding)
        plugins = {
            f"{kind} {type(part).__name__}": type(part).__module__
            for kind, part in parts.items()
            if isinstance(part, bases) and not is_builtin(part)
        }
        if not plugins or memory_ran_out(error):
            raise
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        modules = {frame.f_globals.get("__name__") for frame in frames}
        names = [name for name, module in plugins.items() if module in modules] or [*plugins]
        reason = (str(error).splitlines() or [""])[0]
        raise PluginError(
            f"{' or '.join(names)} fails: {type(error).__name__}: {reason}", HINT
        ) from error
