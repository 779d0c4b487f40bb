"""KV caches in the library: which can be stored and joined, their layout, and projections."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from esa_cli.errors import PresetError, UsageError
from esa_cli.methods.registry import without_file
from esa_cli.storage.library import SEGMENT, Layout

if TYPE_CHECKING:
    from esa_cli.attention.compression import Linear
    from esa_cli.attention.method import Method
    from esa_cli.attention.parts import Compressor
    from esa_cli.attention.step import Projection
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset


def check_joins(kind: str, stateful: bool) -> None:
    """Raises UsageError where layers of the model (`kind` is its `model_type`) keep a state: those
    of several documents cannot be joined."""
    if stateful:
        raise UsageError(
            f"layers of this {kind} model keep a state, and states of several documents cannot be "
            "joined",
            "ask about one document, or use the setting answer.from=text",
        )


def check_asked_together(resolved: ResolvedPreset, kind: str, stateful: bool) -> None:
    """Raises UsageError where several documents cannot be asked at once; see `check_joins`."""
    if not resolved.preset.answer.needs_rows:
        return
    check_joins(kind, stateful)
    if resolved.method.selector.observes:
        raise UsageError(
            f"selector {resolved.preset.selector['name']} observes the prefill of one document",
            "ask about one document, or use another selector",
        )


def hindrance(method: Method) -> str:
    """The reason why a prefilled document cannot be stored; empty where it can. The first segment
    is stored with the projections that were fitted on it."""
    if method.selector.observes:
        return "its selector gathers data during the prefill, which is not stored"
    if kind := without_file(method):
        return f"its {kind} must be defined in a file, by which it is recognised"
    tokens = method.compressor.fit_tokens if method.score.features else 0
    if tokens > SEGMENT:
        return f"its compressor fits on {tokens:,} tokens; the library allows {SEGMENT:,}"
    return ""


def reduced_widths(
    compressor: Compressor, layers: int, folded: int, scored: bool = True
) -> Sequence[int]:
    """R of each layer with keys of G D = `folded` numbers; nothing where the score reads no reduced
    keys. Raises PresetError: the compressor is not for a model of this shape."""
    from esa_cli.attention.parts import Moments

    if not scored:
        return ()
    if compressor.fit_tokens:
        return (compressor.stored_rank(folded),) * layers
    fits = [compressor.fit(layer, Moments()) for layer in range(layers)]
    try:
        return tuple(
            0 if fit is None else fit.keys(torch.zeros(1, folded)).shape[1] for fit in fits
        )
    except RuntimeError as error:
        raise PresetError(
            f"the compressor does not fit this model: folded keys have {folded} dimensions",
            "use a compressor that was made for this model",
        ) from error


def layout(
    method: Method, shape: Mapping[str, Any], dtype: str, rows: str, selecting: Container[int],
    latent_block: int = 0, states: int = 0, shapes: Sequence[tuple[int, int]] = (),
) -> Layout:  # fmt: skip
    """The layout of a stored KV cache.

    Args:
        shape: the model's, with the names of `fingerprint.Fingerprint`.
        dtype: of keys and values, as "float32". rows: `int8` or `native`.
        selecting: which of the layers with keys and values run the method; the others have no
            reduced keys.
        latent_block: of `latent_block`. states: the model's layers that keep one.
        shapes: of `key_shapes`.
    """
    from esa_cli.attention.parts import Moments

    folded, compressor = shape["groups"] * shape["dim"], method.compressor
    if method.score.features and not compressor.fit_tokens:
        maps([compressor.fit(0, Moments())])  # refused before the document is read
    ranks = reduced_widths(compressor, shape["layers"], folded, method.score.features)
    ranks = tuple(rank if layer in selecting else 0 for layer, rank in enumerate(ranks))
    return Layout(
        layers=shape["layers"], heads=shape["groups"], dim=shape["dim"], dtype=dtype,
        kind=rows,  # type: ignore[arg-type]
        reduced=ranks, fit=compressor.fit_tokens if any(ranks) else 0, segment=SEGMENT,
        shared=latent_block > 0, block=latent_block, states=states, shapes=tuple(shapes),
    )  # fmt: skip


def maps(projections: Sequence[Projection | None]) -> list[Linear | None]:
    """Projections that the library can store. Raises UsageError for others."""
    from esa_cli.attention.compression import Linear

    for projection in projections:
        if projection is not None and not isinstance(projection, Linear):
            raise UsageError(
                f"the library cannot store projections of class {type(projection).__name__}",
                "ask without keeping the document, or use one that makes `esa_cli.methods.Linear`",
            )
    return list(projections)  # type: ignore[arg-type]
