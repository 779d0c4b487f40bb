"""What the layers of a model are, where they are not all alike, from a GGUF file's metadata."""

from __future__ import annotations

from typing import Any

from esa_cli.models.gguf.gguf_families import GgufFamily
from esa_cli.models.gguf.gguf_file import GgufFile


class GgufLayers:
    """The layers of one file."""

    def __init__(self, file: GgufFile, family: GgufFamily) -> None:
        self._file, self._family = file, family

    def settings(self, default: Any, found: dict[str, Any]) -> dict[str, Any]:
        """What config.json says of them, and what follows from it.

        Args:
            default: a configuration of the same `model_type`. found: settings known so far.
        """
        count, family = found["num_hidden_layers"], self._family
        more: dict[str, Any] = {}
        if family.rotates:
            more[family.rotates] = "rope" if self._get("rope.scaling.finetuned", True) else "nope"
        if family.states:
            heads = self._get("attention.head_count_kv")
            each = heads if isinstance(heads, list) else [heads] * count
            kinds = ["full_attention" if one else family.states for one in each[:count]]
            more["layer_types"] = self._alone(kinds) if family.alone else kinds
        if every := self._get("full_attention_interval"):
            kinds = ["linear_attention"] * (every - 1) + ["full_attention"]
            more["layer_types"] = [kinds[layer % every] for layer in range(count)]
        if family.windows and self._get("attention.sliding_window"):
            more |= self._windows(default, found)
        if hasattr(default, "shared_intermediate_size") and "shared_intermediate_size" not in found:
            more["shared_intermediate_size"] = found["intermediate_size"]
        return more

    def _alone(self, kinds: list[str]) -> list[str]:
        """The layers where those without attention or states have experts or an MLP."""
        found = []
        for layer, kind in enumerate(kinds):
            tensors = {"moe": "ffn_gate_inp", "mlp": "ffn_up"}
            here = [
                name
                for name, tensor in tensors.items()
                if f"blk.{layer}.{tensor}.weight" in self._file.tensors
            ]
            found.append(here[0] if here else kind)
        return found

    def _windows(self, default: Any, found: dict[str, Any]) -> dict[str, Any]:
        """Of families whose layers attend to a window, but for the last of each few."""
        count, listed = found["num_hidden_layers"], self._get("attention.sliding_window_pattern")
        # A list may go on with layers that draft tokens; one number is that of the few.
        every = listed if isinstance(listed, int) and listed > 0 else self._family.windows
        slides = (
            listed[:count]
            if isinstance(listed, list)
            else [layer % every for layer in range(1, count + 1)]
        )
        kinds = ["sliding_attention" if one else "full_attention" for one in slides]
        if "full_attention" not in default.rope_parameters:
            return {"layer_types": kinds}
        rope = found["rope_parameters"]
        local = self._family.local_theta or rope["rope_theta"]
        local = float(self._get("rope.freq_base_swa", local))
        both = {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        }
        return {"layer_types": kinds, "rope_parameters": both}

    def _get(self, name: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"{self._file.architecture}.{name}", default)
