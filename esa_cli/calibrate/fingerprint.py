"""Tells one model from another, so that maps are not used with a model they were not made for.

A fingerprint holds the model's numbers of layers and heads, and a sha256 over the signs of the
query and key weights of its first and last layer. Signs, because they outlive every rounding: the
same model in float32, bfloat16 and float16 has one fingerprint. It does not notice a change that
turns no sign there; a model that was trained on has thousands of weights near zero that do turn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..errors import PresetError

KEY = "fingerprint"
"""The metadata entry of a compressor file that holds the fingerprint of its model."""


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
    """The fingerprint of a causal language model of transformers."""
    config = model.config
    layers = model.base_model.layers
    digest = hashlib.sha256()
    for attention in (layers[0].self_attn, layers[-1].self_attn):
        for projection in (attention.q_proj, attention.k_proj):
            signs = torch.signbit(projection.weight.detach()).to(torch.uint8).cpu()
            digest.update(signs.numpy().tobytes())
    heads = int(config.num_attention_heads)
    return Fingerprint(
        kind=str(config.model_type),
        layers=len(layers),
        heads=heads,
        groups=int(getattr(config, "num_key_value_heads", None) or heads),
        dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        weights=digest.hexdigest(),
    )


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


def check(compressor: Any, model: Any) -> None:
    """Refuses a compressor whose file was made for another model; others pass.

    Args:
        compressor: any; looked at when it has `metadata`, as `compressors.Learned` has.

    Raises:
        PresetError: it names both models.
    """
    wanted = of_file(getattr(compressor, "metadata", None) or {})
    if wanted is None:
        return
    found = fingerprint(model)
    if wanted != found:
        raise PresetError(
            f"{getattr(compressor, 'file', 'the compressor file')} was made for a {wanted}; "
            f"this is a {found}",
            "make one for this model with `esa calibrate`, or use compressor.name=closed-form",
        )
