"""Calls of a method's parts in which an error names the plugin it comes from.

Errors of built-in parts, `EsaError`s and out-of-memory errors pass unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from esa_cli.attention.interfaces import Positions, Selection
from esa_cli.attention.parts import PositionEncoding, Score
from esa_cli.attention.step import Step
from esa_cli.errors import EsaError, PluginError
from esa_cli.system.machine import memory_ran_out

HINT = "`esa plugins check FILE` shows more"


@contextmanager
def blame_plugin(kind: str, part: object) -> Iterator[None]:
    """Turns an exception of a plugin's part into a PluginError that names the part."""
    try:
        yield
    except EsaError:
        raise
    except Exception as error:
        builtin = type(part).__module__.startswith("esa_cli.")
        if builtin or memory_ran_out(error):
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise PluginError(
            f"{kind} {type(part).__name__} fails: {type(error).__name__}: {reason}", HINT
        ) from error


def checked_scores(score: Score, step: Step) -> Tensor:
    """(M,) of a score. Raises PluginError when it fails or returns something else."""
    with blame_plugin("score", score):
        found = score.scores(step)
        if isinstance(found, Tensor) and found.shape == (step.middle,):
            return found
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise PluginError(
            f"score {type(score).__name__} must return ({step.middle},) numbers, got {shape}", HINT
        )


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
        return given
    raise PluginError(
        f"position {type(position).__name__} must return Positions, got {type(given).__name__}",
        HINT,
    )
