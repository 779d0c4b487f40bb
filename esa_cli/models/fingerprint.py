"""Tells whether maps are used with the model, and with queries as, they were made for.

A fingerprint holds the model's numbers of layers and heads, and a sha256 over the signs of the
query and key weights of its first and last layer. Signs, because they outlive every rounding: the
same model in float32, bfloat16 and float16 has one fingerprint. It does not notice a change that
turns no sign there; a model that was trained on has thousands of weights near zero that do turn.
Quantised weights have no signs to see: all their bytes count, and in another quantisation the same
model has another fingerprint.

The aim of maps is whether the score rotates its queries, and to which distance: maps that were
fitted on other queries lose more than they say.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from esa_cli.errors import ModelError, PresetError
from esa_cli.models.inspection import PLAIN, check_in_memory, looking_at, plain_weight, state

if TYPE_CHECKING:
    from esa_cli.attention.method import Method

KEY = "fingerprint"
"""The metadata entry of a compressor file that holds the fingerprint of its model."""
ROTATE, DISTANCE = "rotate", "distance"
"""Those of its aim."""


@dataclass(frozen=True)
class Fingerprint:
    """Sizes of a model (see `protocols` for the letters), and a hash of some of its weights."""

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
        """For a file's metadata, which holds nothing but texts."""
        return json.dumps(asdict(self), sort_keys=True)


def fingerprint(model: Any) -> Fingerprint:
    """The fingerprint of a causal language model of transformers.

    Raises:
        ModelError: its weights are not in memory, or are packed in a way that shows none.
    """
    check_in_memory(model)
    config = model.config
    layers = model.base_model.layers
    digest = hashlib.sha256()
    for attention in (layers[0].self_attn, layers[-1].self_attn):
        for projection in (attention.q_proj, attention.k_proj):
            for numbers in _numbers(projection):
                digest.update(numbers.cpu().numpy().tobytes())
    heads = int(config.num_attention_heads)
    return Fingerprint(
        kind=str(config.model_type),
        layers=len(layers),
        heads=heads,
        groups=int(getattr(config, "num_key_value_heads", None) or heads),
        dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        weights=digest.hexdigest(),
    )


def _numbers(projection: Any) -> list[Tensor]:
    """Signs of a projection's weight; of packed weights all bytes, with what unpacks them."""
    with looking_at("a projection"):
        if (weight := plain_weight(projection)) is not None:
            return [torch.signbit(weight).to(torch.uint8)]
        found = [tensor.reshape(-1).contiguous() for _, tensor in state(projection)]
        if not found:
            raise ModelError("a projection of this model shows no weights", PLAIN)
        return [tensor.view(torch.uint8) for tensor in found]


def of_file(metadata: Mapping[str, str]) -> Fingerprint | None:
    """The fingerprint in a file's metadata; None when it carries none.

    Raises:
        PresetError: it carries one that cannot be read.
    """
    if KEY not in metadata:
        return None
    try:
        return Fingerprint(**json.loads(metadata[KEY]))
    except (ValueError, TypeError) as error:
        raise PresetError(
            "the compressor file does not say legibly which model it is for",
            "make it again with `esa calibrate`",
        ) from error


def aim(method: Method) -> dict[str, str]:
    """What becomes of a query before the maps see it, as entries of a file's metadata."""
    if not getattr(method.score, "rotate", False):
        return {ROTATE: "false"}
    return {ROTATE: "true", DISTANCE: str(method.position.distance)}


def _in_words(entries: Mapping[str, str]) -> str:
    if entries.get(ROTATE) != "true":
        return "not rotated"
    return f"rotated to distance {entries.get(DISTANCE)}"


def check(compressor: Any, model: Any, method: Method | None = None) -> None:
    """Refuses a compressor whose file was made for another model or other queries; others pass.

    Args:
        compressor: any; looked at when it has `metadata`, as `compressors.Learned` has.
        method: what the compressor is used by; None: its queries are not looked at.

    Raises:
        PresetError: it names both models, or both kinds of queries.
    """
    metadata = getattr(compressor, "metadata", None) or {}
    file = getattr(compressor, "file", "the compressor file")
    wanted = of_file(metadata)
    if wanted is not None and wanted != (found := fingerprint(model)):
        raise PresetError(
            f"{file} was made for a {wanted}; this is a {found}",
            "make one for this model with `esa calibrate`, or use compressor.name=closed-form",
        )
    if method is None or not method.score.features or ROTATE not in metadata:
        return
    aimed = {key: metadata[key] for key in (ROTATE, DISTANCE) if key in metadata}
    if aimed != aim(method):
        raise PresetError(
            f"{file} was made for queries that are {_in_words(aimed)}; this method's are "
            f"{_in_words(aim(method))}",
            "set score.rotate and position.distance as then, or make a file for this method with "
            "`esa calibrate --for`",
        )
