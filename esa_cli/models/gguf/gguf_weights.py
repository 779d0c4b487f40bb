"""The weights of a model of transformers, from the tensors of a GGUF file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esa_cli.errors import ModelError
from esa_cli.models.gguf.gguf_families import GgufFamily
from esa_cli.models.gguf.gguf_file import GgufFile
from esa_cli.models.gguf.gguf_layouts import COMMON, LAYOUTS, WeightLayout, alone
from esa_cli.system.progress import StageProgress

SHARD_BYTES = 4 << 30
"""After so many bytes of weights another file is begun."""
_READ_AS_SETTINGS = re.compile(r"rope_(freqs|factors_long|factors_short)(\.weight)?")
_SHORT = {torch.bfloat16: ("BF16", "MXFP4"), torch.float16: ("F16",)}
"""Types of GGUF whose numbers 16 bits hold; gpt-oss has MXFP4."""
_ROWS = re.compile(r"model\.layers\.(\d+)\.self_attn\.([qk])_layernorm\.norms\.(\d+)\.weight")
_LAYER = re.compile(r"(?:model|gpt_neox)\.layers\.(\d+)\.(.*)")
_ACTIVATION = re.compile(r"model\.layers\.(\d+)\.mlp\.act_fn\.(\w+)")
"""Numbers of Apertus' activation functions, which are metadata: a list of all layers'."""
_BLOCK = re.compile(r"blk\.(\d+)\.")
_RAISED = re.compile(r"(?<!linear_attn\.)norm\.weight$")
"""Norms that may be stored with one added; those of linear attention are not."""


class GgufWeights:
    """The weights that a model's configuration asks for, found in a file.

    Raises:
        ModelError: one is missing, of another size, or there are some that the model has not.
    """

    def __init__(self, file: GgufFile, family: GgufFamily, config: Any) -> None:
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
        from transformers import AutoModelForCausalLM

        self._file, self._family, self._config = file, family, config
        self._layouts = (*LAYOUTS.get(config.model_type, ()), *COMMON)
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

    def write(self, folder: Path, report: StageProgress) -> None:
        """Writes safetensors files; one at a time is in memory. Raises OSError.

        Args:
            report: called with the stage "convert" and the bytes of the weights converted so far,
                and with "save" before a file is written.
        """
        from safetensors.torch import save_file

        shards: list[list[str]] = [[]]
        sizes = {name: 4 * torch.Size(shape).numel() for name, shape in self._shapes.items()}
        held = done = 0
        for name, size in sizes.items():
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
            weights = dict[str, Tensor]()
            for name in names:
                weights[name] = self._weight(name)
                done += sizes[name]
                report("convert", done, sum(sizes.values()))
            report("save", 0, None)
            save_file(weights, folder / file, metadata={"format": "pt"})
            places |= dict.fromkeys(names, file)
        if len(shards) > 1:
            index = {"metadata": {}, "weight_map": places}
            path = folder / "model.safetensors.index.json"
            path.write_text(json.dumps(index, indent=2) + "\n", "utf-8")

    def _layout(self, name: str) -> WeightLayout:
        """The tensors of the file that a weight is made of, and how."""
        if match := _ROWS.fullmatch(name):
            row = int(match[3])
            source = f"blk.{match[1]}.attn_{match[2]}_norm.weight"
            return WeightLayout(name, (source,), lambda parts, config: parts[0][row])
        if match := _LAYER.fullmatch(name):
            found = [one for one in self._layouts if match[2].endswith(one.end)]
            placed = [self._placed(one, match[1]) for one in found]
            whole = [one for one in placed if self._file.tensors.keys() >= {*one.sources}]
            if placed:
                return (whole or placed)[0]
        base, _, suffix = name.rpartition(".")
        # Nemotron-H's weights were below `backbone` once, and are so in the package's table.
        older = base.replace("model.layers.", "backbone.layers.", 1)
        tensor = self._names.get_name(base) or self._names.get_name(older) or base
        return WeightLayout(name, (f"{tensor}.{suffix}",), alone)

    @staticmethod
    def _placed(layout: WeightLayout, layer: str) -> WeightLayout:
        return replace(layout, sources=tuple(f"blk.{layer}.{one}" for one in layout.sources))

    def _check(self) -> None:
        wanted: set[str] = set()
        for name, shape in self._shapes.items():
            if self._listed(name) is not None:
                continue
            sources = self._layout(name).sources
            if lacking := [one for one in sources if one not in self._file.tensors]:
                raise ModelError(
                    f"{self._file.path.name} lacks the weights {lacking[0]} of a "
                    f"{self._config.model_type} model",
                    "it may be of another kind than it says, or be converted by an old llama.cpp",
                )
            wanted.update(sources)
            found = self._shape(name)
            if found != shape:
                raise ModelError(
                    f"{sources[0]} of {self._file.path.name} must be of size {shape}, got {found}",
                    "it may be converted by an old llama.cpp; use the model's safetensors files",
                )
        for name in self._file.tensors:
            if name not in wanted and not self._needless(name):
                raise ModelError(
                    f"{self._file.path.name} has the weights {name}, which a "
                    f"{self._config.model_type} model of transformers has not",
                    "use the model's safetensors files",
                )

    def _listed(self, name: str) -> float | None:
        """A weight that is a number of the metadata."""
        if not (match := _ACTIVATION.fullmatch(name)):
            return None
        listed, layer = self._file.metadata.get(f"xielu.{match[2]}"), int(match[1])
        return listed[layer] if isinstance(listed, list) and layer < len(listed) else None

    def _needless(self, name: str) -> bool:
        """Whether a tensor says something about the rotary embedding, or is of a layer that drafts
        tokens, behind the model's own."""
        if _READ_AS_SETTINGS.fullmatch(name):
            return True
        match = _BLOCK.match(name)
        drafts = self._file.metadata.get(f"{self._file.architecture}.nextn_predict_layers")
        return bool(drafts and match and int(match[1]) >= self._config.num_hidden_layers)

    def _shape(self, name: str) -> tuple[int, ...]:
        """What a weight's size would be; that of its first tensor where they do not fit."""
        layout = self._layout(name)
        parts = [
            torch.empty(self._file.tensors[one].shape, device="meta") for one in layout.sources
        ]
        try:
            return tuple(layout.make(parts, self._config).shape)
        except (RuntimeError, IndexError, ValueError):
            return tuple(parts[0].shape)

    def _weight(self, name: str) -> Tensor:
        if (number := self._listed(name)) is not None:
            return torch.full(self._shapes[name], number)
        layout = self._layout(name)
        parts = [torch.from_numpy(self._file.read(one).copy()) for one in layout.sources]
        found = layout.make(parts, self._config)
        if self._family.pairs and re.search(r"\.self_attn\.[qk]_proj\.", name):
            heads = self._config.num_attention_heads
            if ".k_proj." in name:
                heads = self._config.num_key_value_heads
            rows = found.reshape(heads, -1, 2, *found.shape[1:])
            found = rows.transpose(1, 2).reshape(found.shape)
        if self._family.raised and _RAISED.search(name):
            found = found - 1
        return self._in_fewest_bytes(found, layout).contiguous()

    def _in_fewest_bytes(self, found: Tensor, layout: WeightLayout) -> Tensor:
        """In 16 bits where these hold the very numbers of the file."""
        from gguf import GGMLQuantizationType

        kinds = {self._file.tensors[one].kind for one in layout.sources}
        for dtype, names in _SHORT.items():
            if kinds <= {GGMLQuantizationType[name] for name in names}:
                short = found.to(dtype)
                return short if torch.equal(short.float(), found) else found
        return found
