"""The rows of a method in the library: whether they can be stored there and joined, their layout,
and the fitted projections beside them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from esa_cli.errors import UsageError
from esa_cli.methods.registry import without_file
from esa_cli.qa.planning.costs import reduced_widths
from esa_cli.storage.library import SEGMENT, Layout

if TYPE_CHECKING:
    from esa_cli.attention.compression import Linear
    from esa_cli.attention.method import Method
    from esa_cli.attention.step import Projection
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset


def check_joins(kind: str, stateful: bool) -> None:
    """Raises UsageError where the rows of several documents cannot be joined: layers of the model
    (`kind` is its `model_type`) keep a state beside rows."""
    if stateful:
        raise UsageError(
            f"layers of this {kind} model keep a state, which is one document's: states of several "
            "cannot be joined",
            "ask about one document, or with answer.from=text, about passages of all",
        )


def check_asked_together(resolved: ResolvedPreset, kind: str, stateful: bool) -> None:
    """Raises UsageError where several documents cannot be asked at once; see `check_joins`."""
    if not resolved.preset.answer.needs_rows:
        return
    check_joins(kind, stateful)
    if resolved.method.selector.observes:
        raise UsageError(
            f"selector {resolved.preset.selector['name']} gathers what it sees while it reads, of "
            "one document at a time",
            "ask about one document, or with another selector",
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
    from esa_cli.attention.parts import Moments

    folded, compressor = shape["groups"] * shape["dim"], method.compressor
    if method.score.features and not compressor.fit_tokens:
        maps([compressor.fit(0, Moments())])  # refused before the document is read
    ranks = reduced_widths(compressor, shape["layers"], folded, method.score.features)
    ranks = tuple(rank if layer in selecting else 0 for layer, rank in enumerate(ranks))
    return Layout(
        layers=shape["layers"],
        heads=shape["groups"],
        dim=shape["dim"],
        dtype=dtype,
        kind=rows,  # type: ignore[arg-type]
        reduced=ranks,
        fit=compressor.fit_tokens if any(ranks) else 0,
        segment=SEGMENT,
        shared=latent_block > 0,
        block=latent_block,
        states=states,
        shapes=tuple(shapes),
    )


def maps(projections: Sequence[Projection | None]) -> list[Linear | None]:
    """Projections that the library can store. Raises UsageError for others."""
    from esa_cli.attention.compression import Linear

    out: list[Linear | None] = []
    for projection in projections:
        if projection is not None and not isinstance(projection, Linear):
            raise UsageError(
                f"the library cannot store what the compressor makes: {type(projection).__name__}",
                "ask without keeping the document, or use one that makes `esa_cli.methods.Linear`",
            )
        out.append(projection)
    return out
