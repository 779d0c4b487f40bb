"""Checks that a method fits a model and a device, or documents that another method prefilled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from esa_cli.attention.kernels import choose
from esa_cli.attention.method import Method
from esa_cli.attention.parts import Moments
from esa_cli.errors import PresetError
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.families import FAMILIES, family_of, method_layers
from esa_cli.models.fingerprint import check_maps
from esa_cli.qa.planning.model_shape import shape_of
from esa_cli.storage.joined_store import PrefilledDocument

HEADS_HINT = "they are another model's: `esa heads` finds its own, or set score.heads=[]"


def check_same_fit(old: Method | None, new: Method) -> None:
    """Checks that a prefill by one method (None: not known) can be asked by another.

    Raises:
        PresetError: the new one needs reduced keys of another compressor.
    """
    if old is None or not new.score.features:
        return
    fits = new.compressor.fit_tokens > 0
    if new.fitting != old.fitting or (fits and not old.score.features):
        raise PresetError(
            "the document must be prefilled for this compressor", "read it again with this preset"
        )


def check_reduced_keys(document: PrefilledDocument, method: Method) -> None:
    """Checks that a prefilled document has the reduced keys that a method scores by.

    `check_same_fit` covers keys fitted during prefill. Those by maps from a file could be computed
    later, but the stores of a prefilled document are not written to.

    Raises:
        PresetError: it has none.
    """
    compressor = method.compressor
    if compressor.fit_tokens or not method.score.features or any(document.projections):
        return
    if compressor.fit(0, Moments()) is not None:
        raise PresetError(
            "the document was prefilled without reduced keys, by which this preset scores",
            "read it again with this preset",
        )


def check_fits_model(method: Method, model: Any) -> None:
    """Checks that a method with maps or heads of a model was made for this one.

    Raises:
        PresetError: its compressor or its heads were found for another model.
    """
    check_maps(method.compressor, model, method)
    last, layers = method.score.last_layer, model.config.num_hidden_layers
    if last is not None and last >= layers:
        raise PresetError(
            f"score.heads must name layers below the model's {layers}, got {last}",
            HEADS_HINT,
        )
    if isinstance(method.score, VoteScore) and model.config.model_type in FAMILIES:
        running = method_layers(model.config)
        others = [layer for layer, _ in method.score.heads if layer not in running]
        if others:
            raise PresetError(
                "score.heads must be in layers that attend to all tokens "
                f"({', '.join(map(str, running))}), got layer {others[0]}",
                HEADS_HINT,
            )


def check_runs_on(method: Method, config: dict[str, Any], device: str, dtype: torch.dtype) -> None:
    """Checks that the kernel which a method names runs where the model will be.

    Args:
        config: the model's config.json. device: of torch, or "balanced".

    Raises:
        UsageError: the kernel cannot run there, or computes no soft cap of the model's.
        ModelError: config.json lacks a size.
    """
    if method.kernel == "auto":
        return
    place = torch.device("cuda" if device == "balanced" else device)
    cap = config.get(family_of(SimpleNamespace(**config)).attention_cap) or 0.0
    choose(torch.empty(1, 1, shape_of(config).dim, dtype=dtype, device=place), method.kernel, cap)
