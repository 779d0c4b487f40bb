"""The rows of a method in the library: whether they can be stored there and joined, their layout,
and the fitted projections beside them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from esa_cli.attention.compression import Linear
from esa_cli.attention.method import Method
from esa_cli.attention.parts import Moments
from esa_cli.attention.step import Projection
from esa_cli.errors import UsageError
from esa_cli.methods.registry import without_file
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage.library import SEGMENT, Layout


def gathers(method: Method) -> bool:
    """True if the selector gathers data during the prefill, of one document at a time."""
    return method.selector.observes


def check_joins(kind: str, stateful: bool) -> None:
    """Raises UsageError where the rows of several documents cannot be joined.

    Args:
        kind: the model's `model_type`. stateful: its layers keep a state beside rows.
    """
    if stateful:
        raise UsageError(
            f"layers of this {kind} model keep a state, which is one document's: states of several "
            "cannot be joined",
            "ask about one document, or with answer.from=text, about passages of all",
        )


def check_asked_together(preset: Preset, method: Method, kind: str, stateful: bool) -> None:
    """Raises UsageError where several documents cannot be asked at once; see `check_joins`."""
    if not preset.answer.needs_rows:
        return
    check_joins(kind, stateful)
    if gathers(method):
        raise UsageError(
            f"selector {preset.selector['name']} gathers what it sees while it reads, of one "
            "document at a time",
            "ask about one document, or with another selector",
        )


def hindrance(method: Method) -> str:
    """The reason why a prefilled document cannot be stored; empty where it can.

    The first segment is stored with the projections that were fitted on it.
    """
    if gathers(method):
        return "its selector gathers data during the prefill, which is not stored"
    if kind := without_file(method):
        return f"its {kind} must be defined in a file, by which it is recognised"
    tokens = method.compressor.fit_tokens if method.score.features else 0
    if tokens > SEGMENT:
        return f"its compressor fits on {tokens:,} tokens; the library allows {SEGMENT:,}"
    return ""


def storable(method: Method) -> bool:
    """True if a prefilled document can be stored; `hindrance` says why not."""
    return not hindrance(method)


def layout(
    method: Method, shape: Mapping[str, Any], dtype: str, rows: str, selecting: Container[int],
    latent_block: int = 0, states: int = 0, shapes: Sequence[tuple[int, int]] = (),
) -> Layout:  # fmt: skip
    """The layout of stored rows.

    Args:
        shape: the model's, with the names of `calibrate.fingerprint.Fingerprint`.
        dtype: of keys and values, as "float32". rows: `int8` or `native`.
        selecting: which of the layers with rows run the method; the others have no reduced keys.
        latent_block: of `latent_block`. states: the model's layers that keep one.
        shapes: of `key_shapes`.
    """
    ranks = _ranks(method, shape["layers"], shape["groups"] * shape["dim"])
    ranks = tuple(rank if layer in selecting else 0 for layer, rank in enumerate(ranks))
    return Layout(
        layers=shape["layers"],
        heads=shape["groups"],
        dim=shape["dim"],
        dtype=dtype,
        kind=rows,  # type: ignore[arg-type]
        reduced=ranks,
        fit=method.compressor.fit_tokens if any(ranks) else 0,
        segment=SEGMENT,
        shared=latent_block > 0,
        block=latent_block,
        states=states,
        shapes=tuple(shapes),
    )


def maps(projections: Sequence[Projection | None]) -> list[Linear | None]:
    """Projections that the library can store. Raises UsageError for others."""
    out: list[Linear | None] = []
    for one in projections:
        if one is not None and not isinstance(one, Linear):
            raise UsageError(
                f"a compressor that makes {type(one).__name__} cannot be kept in the library",
                "ask without keeping the document, or use one that makes `esa_cli.methods.Linear`",
            )
        out.append(one)
    return out


def _ranks(method: Method, layers: int, folded: int) -> tuple[int, ...]:
    """R of each layer; 0 where no reduced keys are kept."""
    compressor = method.compressor
    if not method.score.features:
        return ()
    if compressor.fit_tokens:
        return (compressor.stored_rank(folded),) * layers
    found = maps([compressor.fit(i, Moments()) for i in range(layers)])
    return tuple(0 if one is None else one.key_map.shape[1] for one in found)
