"""The model families ESA can be attached to; importing this costs nothing."""

from __future__ import annotations

from esa_cli.errors import ModelError

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type`s whose logits are tested against stock attention."""


def check_type(kind: object) -> None:
    """Raises ModelError when models of this `model_type` cannot be attached."""
    if kind not in SUPPORTED:
        raise ModelError(
            f"models of type {kind!r} are not supported", f"supported: {', '.join(SUPPORTED)}"
        )
