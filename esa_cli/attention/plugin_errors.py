"""Calls into a method's parts: what fails in a plugin is said to be the plugin's, and where.

What fails in a part of our own is a bug of ours and passes through as it is, as do errors that are
meant for a person and memory that ran out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from esa_cli.attention.interfaces import PositionEncoding, Positions
from esa_cli.attention.step import Heard, Step
from esa_cli.errors import EsaError, PluginError
from esa_cli.system.machine import memory_ran_out

HINT = "`esa plugins check FILE` shows more"


@contextmanager
def plugged(kind: str, part: object) -> Iterator[None]:
    """Names the part in what is raised inside.

    Raises:
        PluginError: a plugin's part failed.
    """
    try:
        yield
    except (EsaError, Heard):
        raise
    except Exception as error:
        own = type(part).__module__.startswith("esa_cli.")
        if own or memory_ran_out(error):
            raise
        said = (str(error).splitlines() or [""])[0]
        raise PluginError(
            f"{kind} {type(part).__name__} fails: {type(error).__name__}: {said}", HINT
        ) from error


def scored(step: Step) -> Tensor:
    """(M,) of the step's score, on the queries' device.

    Raises:
        PluginError: it fails, or gives something else.
    """
    with plugged("score", step.score):
        found = step.score.scores(step)
        if isinstance(found, Tensor) and found.shape == (step.middle,):
            return found
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise PluginError(
            f"score {type(step.score).__name__} gives {shape}, not {step.middle} numbers", HINT
        )


def near(position: PositionEncoding, local: int, chunk: int, start: int, far: int) -> Positions:
    """`position.near`, for a chunk at `start`; see `protocols.PositionEncoding`.

    Raises:
        PluginError: it fails, or gives something else.
    """
    with plugged("position", position):
        return _checked(position, position.near(local, chunk, start, far))


def far(position: PositionEncoding, at: Tensor, local: int, chunk: int, start: int) -> Positions:
    """`position.far`; as `near`."""
    with plugged("position", position):
        return _checked(position, position.far(at, local, chunk, start))


def _checked(position: PositionEncoding, given: Positions) -> Positions:
    if isinstance(given, Positions):
        return given
    raise PluginError(
        f"position {type(position).__name__} gives a {type(given).__name__}, not Positions", HINT
    )
