"""What a method leaves of a document in the library: the layout of its rows, and its compressor.

Knows nothing about which document, and nothing about files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .compressors import Linear, Moments
from .errors import UsageError
from .library import SEGMENT, Layout
from .method import Method
from .protocols import Projection


def storable(method: Method) -> bool:
    """Whether a reading can be stored: not where a selector keeps side data of what it saw."""
    return not hasattr(method.selector, "observe")


def layout(method: Method, shape: Mapping[str, Any], dtype: str, rows: str) -> Layout:
    """How rows are stored.

    Args:
        shape: the model's, with the names of `calibrate.fingerprint.Fingerprint`.
        dtype: of keys and values, as "float32". rows: `int8` or `native`.
    """
    ranks = _ranks(method, shape["layers"], shape["groups"] * shape["dim"])
    return Layout(
        layers=shape["layers"],
        heads=shape["groups"],
        dim=shape["dim"],
        dtype=dtype,
        kind=rows,  # type: ignore[arg-type]
        reduced=ranks,
        fit=min(SEGMENT, method.compressor.fit_tokens) if any(ranks) else 0,
        segment=SEGMENT,
    )


def maps(projections: Sequence[Projection | None]) -> list[Linear | None]:
    """Projections as the library can keep them. Raises UsageError where it cannot."""
    out: list[Linear | None] = []
    for one in projections:
        if one is not None and not isinstance(one, Linear):
            raise UsageError(
                f"a compressor that makes {type(one).__name__} cannot be kept in the library",
                "ask without keeping the document, or use one that makes `compressors.Linear`",
            )
        out.append(one)
    return out


def _ranks(method: Method, layers: int, folded: int) -> tuple[int, ...]:
    """R of each layer; 0 where no reduced keys are kept."""
    compressor: Any = method.compressor
    if not method.score.features:
        return ()
    if compressor.fit_tokens:
        return (min(int(getattr(compressor, "rank", folded)), folded),) * layers
    found = maps([compressor.fit(i, Moments()) for i in range(layers)])
    return tuple(0 if one is None else one.key_map.shape[1] for one in found)
