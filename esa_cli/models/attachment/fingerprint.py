"""Fingerprints of models, and the check that learned maps fit the model and the method's queries.

A fingerprint is a model's numbers of layers and heads, and a sha256 over the signs of the query
and key weights of its first and last layer. Signs survive every rounding: the same model in
float32, bfloat16 and float16 has one fingerprint. A change that turns no sign there is not noticed;
training turns thousands, since many weights are near zero. Quantised weights show no signs: all
their bytes count, so each quantisation of a model has another fingerprint.

A file of maps also says whether the score rotated its queries, and to which distance: maps used on
other queries than they were fitted to have a larger error than the file says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Compressor, blame_plugins
from esa_cli.errors import ModelError, PresetError
from esa_cli.models.attachment.inspection import (
    LOADED_PLAIN,
    plain_weight,
    projections,
    state_tensors,
    weight_errors,
)
from esa_cli.models.files.families import key_shape

KEY = "fingerprint"
"""Metadata entry of a file of maps: the fingerprint of its model."""
ROTATE, DISTANCE = "rotate", "distance"
"""Metadata entries: whether the queries were rotated, and to which distance."""


@dataclass(frozen=True)
class Fingerprint:
    """Sizes of a model, and a hash of some of its weights."""

    kind: str
    layers: int
    heads: int
    groups: int
    dim: int
    weights: str

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.layers} layers with {self.heads} query and {self.groups} key "
            f"heads of {self.dim} (weights {self.weights[:8]})"
        )

    def as_text(self) -> str:
        """JSON, for a file's metadata."""
        return json.dumps(asdict(self), sort_keys=True)


def fingerprint(model: Any) -> Fingerprint:
    """The fingerprint of a causal language model of transformers. Raises ModelError: its weights
    are not in memory, or are quantised in a way that shows none."""
    if any(weight.is_meta for weight in model.parameters()):
        raise ModelError(
            "some of this model's weights are not in memory, and esa cannot tell which model it is",
            "load it whole, or use a smaller one",
        )
    config = model.config
    layers, digest = projections(model), hashlib.sha256()
    for projection in (*layers[0][:2], *layers[-1][:2]):
        for numbers in _numbers(projection):
            digest.update(numbers.cpu().numpy().tobytes())
    groups, dim = key_shape(config)
    return Fingerprint(
        kind=str(config.model_type),
        layers=len(layers),
        heads=int(config.num_attention_heads),
        groups=groups,
        dim=dim,
        weights=digest.hexdigest(),
    )


def _numbers(projection: Any) -> list[Tensor]:
    """Signs of a projection's weight; of quantised weights all bytes, with their scales."""
    with weight_errors("a projection"):
        if (weight := plain_weight(projection)) is not None:
            return [torch.signbit(weight).to(torch.uint8)]
        tensors = [tensor.reshape(-1).contiguous() for _, tensor in state_tensors(projection)]
        if not tensors:
            raise ModelError(
                "a projection of this model has no weights that can be read", LOADED_PLAIN
            )
        return [tensor.view(torch.uint8) for tensor in tensors]


def fingerprint_in(metadata: Mapping[str, str]) -> Fingerprint | None:
    """The fingerprint in a file's metadata; None when it has none. Raises PresetError: it cannot be
    read."""
    try:
        return Fingerprint(**json.loads(metadata[KEY])) if KEY in metadata else None
    except (ValueError, TypeError) as error:
        message = "the compressor file's fingerprint of its model cannot be read"
        raise PresetError(message, "make the file again with `esa calibrate`") from error


def query_rotation(method: Method) -> dict[str, str]:
    """The rotation of queries before the maps reduce them, as metadata entries."""
    if not method.score.rotates:
        return {ROTATE: "false"}
    return {ROTATE: "true", DISTANCE: str(method.position.distance)}


def check_maps(compressor: Compressor, model: Any, method: Method | None = None) -> None:
    """Refuses learned maps that were made for another model or other queries.

    Args:
        compressor: any; only one with `metadata`, such as `Learned`, can be refused.
        method: the method that uses the compressor; None leaves its queries unchecked.

    Raises:
        PresetError: it names both models, or both kinds of queries.
    """
    with blame_plugins({"compressor": compressor}):
        metadata = compressor.metadata
    file = next(iter(compressor.files), "the compressor file")
    wanted = fingerprint_in(metadata)
    if wanted is not None and wanted != (own := fingerprint(model)):
        raise PresetError(
            f"{file} was made for a {wanted}; this is a {own}",
            "make one for this model with `esa calibrate`, or use compressor.name=closed-form",
        )
    if method is None or not method.score.features or ROTATE not in metadata:
        return
    fitted = {key: metadata[key] for key in (ROTATE, DISTANCE) if key in metadata}
    if fitted != (used := query_rotation(method)):
        raise PresetError(
            f"{file} was made for the query rotation {fitted}; this method uses {used}",
            "set score.rotate and position.distance as then, or make a file for this method with "
            "`esa calibrate --for`",
        )
