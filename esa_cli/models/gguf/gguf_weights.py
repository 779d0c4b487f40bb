"""The weights of a model of transformers, from the tensors of a GGUF file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esa_cli.errors import ModelError
from esa_cli.models.gguf.gguf_families import GgufFamily
from esa_cli.models.gguf.gguf_file import GgufFile

SHARD_BYTES = 4 << 30
"""After so many bytes of weights another file is begun."""
_READ_AS_SETTINGS = re.compile(r"rope_(freqs|factors_long|factors_short)(\.weight)?")
_JOINED = {
    # weights of transformers that are two of GGUF's, one above the other
    "experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "shared_mlp.input_linear.weight": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
}
_RENAMED = {
    "experts.down_proj": "ffn_down_exps.weight",
    "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
}
"""Weights of layers whose names the package gguf does not have."""
_ROWS = re.compile(r"model\.layers\.(\d+)\.self_attn\.([qk])_layernorm\.norms\.(\d+)\.weight")
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")


class GgufWeights:
    """The weights that a model's configuration asks for, found in a file.

    Raises:
        ModelError: one is missing, of another size, or there are some that the model has not.
    """

    def __init__(self, file: GgufFile, family: GgufFamily, config: Any) -> None:
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
        from transformers import AutoModelForCausalLM

        self._file, self._family, self._config = file, family, config
        known = {name: key for key, name in MODEL_ARCH_NAMES.items()}
        if file.architecture not in known:
            raise ModelError(
                f"the installed gguf does not know the architecture '{file.architecture}'",
                "upgrade it: pip install -U gguf",
            )
        self._names = get_tensor_name_map(known[file.architecture], config.num_hidden_layers)
        automatic: Any = AutoModelForCausalLM
        with torch.device("meta"):
            model = automatic.from_config(config)
        model.tie_weights()
        self.architecture = type(model).__name__
        self._shapes = {name: tuple(one.shape) for name, one in model.state_dict().items()}
        if config.tie_word_embeddings:
            self._shapes.pop("lm_head.weight", None)
        self._check()

    def write(self, folder: Path) -> None:
        """Writes safetensors files; one at a time is in memory. Raises OSError."""
        from safetensors.torch import save_file

        shards: list[list[str]] = [[]]
        held = 0
        for name, shape in self._shapes.items():
            size = 4 * torch.Size(shape).numel()
            if held and held + size > SHARD_BYTES:
                shards.append([])
                held = 0
            shards[-1].append(name)
            held += size
        places: dict[str, str] = {}
        for number, names in enumerate(shards, 1):
            single = len(shards) == 1
            file = "model.safetensors" if single else (
                f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            )  # fmt: skip
            weights = {name: self._weight(name) for name in names}
            save_file(weights, folder / file, metadata={"format": "pt"})
            places |= dict.fromkeys(names, file)
        if len(shards) > 1:
            index = {"metadata": {}, "weight_map": places}
            path = folder / "model.safetensors.index.json"
            path.write_text(json.dumps(index, indent=2) + "\n", "utf-8")

    def _sources(self, name: str) -> tuple[str, ...]:
        """The tensors of the file, one above the other, that a weight is made of."""
        if match := _ROWS.fullmatch(name):
            return (f"blk.{match[1]}.attn_{match[2]}_norm.weight",)
        if match := _LAYER.fullmatch(name):
            for end, parts in _JOINED.items():
                if match[2].endswith(end):
                    return tuple(f"blk.{match[1]}.{part}" for part in parts)
            for end, part in _RENAMED.items():
                if match[2].endswith(end):
                    return (f"blk.{match[1]}.{part}",)
        base, _, suffix = name.rpartition(".")
        return (f"{self._names.get_name(base) or base}.{suffix}",)

    def _check(self) -> None:
        wanted: set[str] = set()
        for name, shape in self._shapes.items():
            sources = self._sources(name)
            if lacking := [one for one in sources if one not in self._file.tensors]:
                raise ModelError(
                    f"{self._file.path.name} lacks the weights {lacking[0]} of a "
                    f"{self._config.model_type} model",
                    "it may be of another kind than it says, or be converted by an old llama.cpp",
                )
            wanted.update(sources)
            found = self._shape(name, sources)
            if found != shape:
                raise ModelError(
                    f"{sources[0]} of {self._file.path.name} must be of size {shape}, got {found}",
                    "it may be converted by an old llama.cpp; use the model's safetensors files",
                )
        for name in self._file.tensors:
            if name not in wanted and not _READ_AS_SETTINGS.fullmatch(name):
                raise ModelError(
                    f"{self._file.path.name} has the weights {name}, which a "
                    f"{self._config.model_type} model of transformers has not",
                    "use the model's safetensors files",
                )

    def _shape(self, name: str, sources: tuple[str, ...]) -> tuple[int, ...]:
        shapes = [self._file.tensors[one].shape for one in sources]
        if _ROWS.fullmatch(name):
            return shapes[0][1:]
        if len(shapes) > 1:
            return (*shapes[0][:-2], shapes[0][-2] + shapes[1][-2], shapes[0][-1])
        wanted = self._shapes[name]
        if wanted[:1] == (1,) and wanted[1:] == shapes[0]:
            return wanted  # llama.cpp drops the first dimension of a gate
        return shapes[0]

    def _weight(self, name: str) -> Tensor:
        sources = self._sources(name)
        parts = [torch.from_numpy(self._file.read(one).copy()) for one in sources]
        if match := _ROWS.fullmatch(name):
            return parts[0][int(match[3])].clone()
        found = parts[0] if len(parts) == 1 else torch.cat(parts, -2)
        if self._family.pairs and re.search(r"\.self_attn\.[qk]_proj\.", name):
            heads = self._config.num_attention_heads
            if ".k_proj." in name:
                heads = self._config.num_key_value_heads
            rows = found.reshape(heads, -1, 2, *found.shape[1:])
            found = rows.transpose(1, 2).reshape(found.shape)
        if self._family.raised and name.endswith("norm.weight"):
            found = found - 1
        return found.reshape(self._shapes[name]).contiguous()
