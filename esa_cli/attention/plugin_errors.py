"""Calls of a method's parts in which an error names the plugin it comes from.

Errors of built-in parts, `EsaError`s and out-of-memory errors pass unchanged. A plugin that ends
the program or closes its output fails, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from esa_cli.attention.interfaces import Positions, Selection
from esa_cli.attention.parts import PositionEncoding, Score
from esa_cli.attention.step import Step
from esa_cli.errors import NOT_BLAMED, EsaError, PluginError
from esa_cli.system.machine import memory_ran_out

HINT = "`esa plugins check FILE` shows more"


def is_builtin(part: object) -> bool:
    """Whether a part's class is of this package, and not a plugin's, which may derive from one."""
    return type(part).__module__.startswith("esa_cli.")


@contextmanager
def blame_plugin(kind: str, part: object) -> Iterator[None]:
    """Turns an exception of a plugin's part into a PluginError that names the part."""
    if is_builtin(part):
        yield
        return
    who = f"{kind} {type(part).__name__}"
    try:
        yield
    except (EsaError, *NOT_BLAMED):
        raise
    except BaseException as error:
        if isinstance(error, Exception) and memory_ran_out(error):
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise PluginError(f"{who} fails: {type(error).__name__}: {reason}", HINT) from error
    refuse_closed_streams(who)


def refuse_closed_streams(who: str) -> None:
    """Raises PluginError where standard output or standard error is closed."""
    for name in ("stdout", "stderr"):
        if getattr(getattr(sys, name), "closed", False):
            raise PluginError(f"{who} must leave sys.{name} open, and has closed it", HINT)


def has_values(found: Tensor) -> bool:
    """False on torch's meta device, which has shapes alone."""
    return not found.is_meta


def checked_scores(score: Score, step: Step) -> Tensor:
    """(M,) of a score. Raises PluginError when it fails or returns something else."""
    with blame_plugin("score", score):
        found = score.scores(step)
        shape = str(tuple(found.shape)) if isinstance(found, Tensor) else type(found).__name__
        if isinstance(found, Tensor) and found.shape == (step.middle,):
            shape = _wrong_numbers(score, found)
            if not shape:
                return found
        raise PluginError(
            f"score {type(score).__name__} must return ({step.middle},) numbers, got {shape}", HINT
        )


def _wrong_numbers(score: Score, found: Tensor) -> str:
    """What scores have in place of numbers that can be ordered; empty: nothing. NaN is looked for
    in those of plugins."""
    if not has_values(found):
        return "a tensor on the meta device"
    if not found.is_floating_point():
        return str(found.dtype).removeprefix("torch.")
    return "NaN" if not is_builtin(score) and bool(found.isnan().any()) else ""


def near_positions(
    position: PositionEncoding, local: int, chunk: int, start: int, far: int
) -> Positions:
    """`position.near`. Raises PluginError when it fails or returns something else."""
    with blame_plugin("position", position):
        return _checked(position, position.near(local, chunk, start, far))


def far_positions(
    position: PositionEncoding, far: Selection, local: int, chunk: int, start: int
) -> Sequence[Positions]:
    """`position.far` for the far tokens (n,), or for those of each query head.

    Raises:
        PluginError: it fails, or returns something else.
    """
    rows = [far] if isinstance(far, Tensor) else far
    with blame_plugin("position", position):
        return [
            _checked(position, position.far(at, local, chunk, start))
            if at.shape[0]
            else Positions(at, at)
            for at in rows
        ]


def _checked(position: PositionEncoding, given: Positions) -> Positions:
    if isinstance(given, Positions):
        if all(not isinstance(one, Tensor) or has_values(one) for one in given):
            return given
        raise PluginError(
            f"position {type(position).__name__} must return numbers, got the meta device", HINT
        )
    raise PluginError(
        f"position {type(position).__name__} must return Positions, got {type(given).__name__}",
        HINT,
    )
