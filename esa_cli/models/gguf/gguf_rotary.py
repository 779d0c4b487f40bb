"""The settings of a rotary embedding, from the metadata and tensors of a GGUF file."""

from __future__ import annotations

import math
from typing import Any

from esa_cli.errors import ModelError
from esa_cli.models.gguf.gguf_file import GgufFile

_FREQUENCIES, _LONG, _SHORT = "rope_freqs", "rope_factors_long", "rope_factors_short"
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Of all models so far; the file has only what follows from them."""


class GgufRotary:
    """The rotary embedding of one file.

    Args:
        head: numbers of a head. longest: tokens that the model was made for.
        tenths: the multiplier of YaRN's logarithm is stored as a tenth, as of latent attention.
    """

    def __init__(self, file: GgufFile, head: int, longest: int, tenths: bool = False) -> None:
        self._file, self._head, self._longest = file, head, longest
        self._tenths = tenths

    def parameters(self, partial: bool) -> dict[str, Any]:
        """As config.json has them; with `partial` the part of a head that rotates is always there.
        Raises ModelError: a scaling that transformers does not have."""
        theta = float(self._get("rope.freq_base", 10000.0))
        part = self._get("rope.dimension_count", self._head) / self._head
        rope: dict[str, Any] = {"rope_theta": theta}
        if part != 1 or partial:
            rope["partial_rotary_factor"] = part
        return rope | self._scaling(theta, int(part * self._head))

    def _get(self, name: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"{self._file.architecture}.{name}", default)

    def _scaling(self, theta: float, dims: int) -> dict[str, Any]:
        """How the rotary embedding of `dims` dimensions is scaled."""
        tensors = {name.removesuffix(".weight"): name for name in self._file.tensors}
        kind = self._get("rope.scaling.type", "none")
        factor = float(self._get("rope.scaling.factor") or self._get("rope.scale_linear") or 1)
        if _LONG in tensors:
            return self._longrope(tensors)
        if _FREQUENCIES in tensors:
            return self._llama3(self._file.read(tensors[_FREQUENCIES]).tolist(), theta, dims)
        if factor == 1 or kind == "none":
            return {"rope_type": "default"}
        attention = self._get("rope.scaling.attn_factor", 1.0)
        original = self._get("rope.scaling.original_context_length")
        if kind == "linear" and attention == 1:
            return {"rope_type": "linear", "factor": factor}
        if kind == "yarn" and attention == 1 and original:
            return self._yarn(factor, original)
        raise refused(self._file, "a rotary embedding", f"scaled by {kind}")

    def _yarn(self, factor: float, original: int) -> dict[str, Any]:
        found: dict[str, Any] = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
        names = {
            "rope.scaling.yarn_beta_fast": "beta_fast",
            "rope.scaling.yarn_beta_slow": "beta_slow",
            "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
            "attention.temperature_scale": "llama_4_scaling_beta",
        }
        found |= {
            name: value for key, name in names.items() if (value := self._get(key)) is not None
        }
        if "mscale_all_dim" in found:
            if self._tenths:
                found["mscale_all_dim"] = round(10 * found["mscale_all_dim"], 6)
            found["mscale"] = found["mscale_all_dim"]
        return found

    def _longrope(self, tensors: dict[str, str]) -> dict[str, Any]:
        if _SHORT not in tensors:
            raise refused(self._file, "a rotary embedding", "without factors for short texts")
        scaling = {
            "rope_type": "longrope",
            "long_factor": self._file.read(tensors[_LONG]).tolist(),
            "short_factor": self._file.read(tensors[_SHORT]).tolist(),
            "original_max_position_embeddings": self._get(
                "rope.scaling.original_context_length", self._longest
            ),
        }
        if (attention := self._get("rope.scaling.attn_factor")) is not None:
            scaling["attention_factor"] = attention
        return scaling

    def _llama3(self, stored: list[float], theta: float, dims: int) -> dict[str, Any]:
        """The rule of Llama 3.1, if it gives the factors that are stored."""
        factor = max(stored)
        lengths = [2 * math.pi * theta ** (2 * i / dims) for i in range(dims // 2)]
        wanted = [_llama3_factor(length, factor) for length in lengths]
        if len(stored) != len(wanted) or any(
            abs(a - b) > 1e-3 * b for a, b in zip(stored, wanted, strict=True)
        ):
            raise refused(
                self._file, "a rotary embedding", "with frequencies of no rule that is known"
            )
        if factor == 1:
            return {"rope_type": "default"}
        return {"rope_type": "llama3", "factor": round(factor, 4), **_LLAMA3}


def refused(file: GgufFile, what: str, got: Any) -> ModelError:
    """What to say of something that a file has and esa does not know."""
    return ModelError(
        f"{file.path.name} has {what} that esa does not know from GGUF: {got}"[:300],
        "use the model's safetensors files",
    )


def _llama3_factor(length: float, factor: float) -> float:
    """What a wave of `length` positions is slowed by, as Llama 3.1 does."""
    original, low, high = 8192, _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    if length < original / high:
        return 1.0
    if length > original / low:
        return factor
    smooth = (original / length - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)
