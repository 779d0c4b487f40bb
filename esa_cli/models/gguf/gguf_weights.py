"""The weights of a model of transformers, from the tensors of a GGUF file.

`LAYOUTS` has the weights that GGUF files store in other pieces, another order or another form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.errors import ModelError
from esa_cli.models.gguf.gguf_file import GgufFile
from esa_cli.models.gguf.gguf_settings import SAFETENSORS, GgufFamily
from esa_cli.system.progress import StageProgress

SHARD_BYTES = 4 << 30
"""After so many bytes of weights another file begins."""
_READ_AS_SETTINGS = re.compile(r"rope_(freqs|factors_long|factors_short)(\.weight)?")
_SHORT = {torch.bfloat16: ("BF16", "MXFP4"), torch.float16: ("F16",)}
"""Types of GGUF whose numbers 16 bits hold; gpt-oss has MXFP4."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
_OLD = "it may be converted by an old llama.cpp; use the model's safetensors files"


class WeightLayout(NamedTuple):
    """How weights of layers are made.

    Args:
        end: of their names. sources: tensors of the layer, without `blk.N.`.
        make: from these -> the weight; on tensors without memory (`meta`), too.
    """

    end: str
    sources: tuple[str, ...]
    make: Callable[[Sequence[Tensor]], Tensor]


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Tensors (..., n, m), one above the other."""
    return torch.cat(tuple(parts), -2) if len(parts) > 1 else parts[0]


def _interleaved(parts: Sequence[Tensor]) -> Tensor:
    """Gates and values of gpt-oss' experts in turns: weights 2 x (experts, inner, hidden) ->
    (experts, hidden, 2 inner); biases 2 x (experts, inner) -> (experts, 2 inner)."""
    turns = torch.stack(tuple(parts), 2).flatten(1, 2)
    return turns.transpose(1, 2) if turns.dim() > 2 else turns


_GATE_UP = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
LAYOUTS = (
    WeightLayout("experts.gate_up_proj", _GATE_UP, _stacked),
    WeightLayout("experts.down_proj", ("ffn_down_exps.weight",), _stacked),
)
"""Of any architecture but gpt-oss."""
GPT_OSS = (
    WeightLayout("sinks", ("attn_sinks.weight",), _stacked),
    WeightLayout("experts.gate_up_proj", _GATE_UP, _interleaved),
    WeightLayout(
        "experts.gate_up_proj_bias", ("ffn_gate_exps.bias", "ffn_up_exps.bias"), _interleaved
    ),
    WeightLayout("experts.down_proj", ("ffn_down_exps.weight",), lambda parts: parts[0].mT),
    WeightLayout("experts.down_proj_bias", ("ffn_down_exps.bias",), _stacked),
)


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
        self._weights = {
            name: (self._layout(name), tuple(weight.shape))
            for name, weight in model.state_dict().items()
            if name != "lm_head.weight" or not config.tie_word_embeddings
        }
        self._check()

    def write(self, folder: Path, report: StageProgress) -> None:
        """Writes safetensors files; one at a time is in memory. Reports the stage "convert" in
        bytes, and "save" before a file is written. Raises OSError."""
        from safetensors.torch import save_file

        shards: list[list[str]] = [[]]
        sizes = {name: 4 * math.prod(shape) for name, (_, shape) in self._weights.items()}
        for name, size in sizes.items():
            if shards[-1] and sum(map(sizes.__getitem__, shards[-1])) + size > SHARD_BYTES:
                shards.append([])
            shards[-1].append(name)
        places, done, one = dict[str, str](), 0, len(shards) == 1
        for number, names in enumerate(shards, 1):
            part = "" if one else f"-{number:05d}-of-{len(shards):05d}"
            file, weights = f"model{part}.safetensors", dict[str, Tensor]()
            for name in names:
                weights[name] = self._weight(name)
                done += sizes[name]
                report("convert", done, sum(sizes.values()))
            report("save", 0, None)
            save_file(weights, folder / file, metadata={"format": "pt"})
            places |= dict.fromkeys(names, file)
        if not one:
            index = {"metadata": {}, "weight_map": places}
            path = folder / "model.safetensors.index.json"
            path.write_text(json.dumps(index, indent=2) + "\n", "utf-8")

    def _layout(self, name: str) -> WeightLayout:
        """The tensors of the file that a weight is made of, with whole names."""
        if match := _LAYER.fullmatch(name):
            for layout in GPT_OSS if self._config.model_type == "gpt_oss" else LAYOUTS:
                if match[2].endswith(layout.end):
                    sources = tuple(f"blk.{match[1]}.{source}" for source in layout.sources)
                    return WeightLayout(name, sources, layout.make)
        base, _, suffix = name.rpartition(".")
        return WeightLayout(name, (f"{self._names.get_name(base) or base}.{suffix}",), _stacked)

    def _check(self) -> None:
        file, kind, stored = self._file.path.name, self._config.model_type, self._file.tensors
        for layout, shape in self._weights.values():
            for source in layout.sources:
                if source not in stored:
                    raise ModelError(f"{file} lacks the weights {source} of a {kind} model", _OLD)
            parts = [torch.empty(self._file.shape(one), device="meta") for one in layout.sources]
            try:
                size = tuple(layout.make(parts).shape)
            except (RuntimeError, IndexError, ValueError):
                size = tuple(parts[0].shape)
            if size != shape:
                source = layout.sources[0]
                raise ModelError(f"{source} of {file} must be of size {shape}, got {size}", _OLD)
        used = {source for layout, _ in self._weights.values() for source in layout.sources}
        for name in stored.keys() - used:
            if not _READ_AS_SETTINGS.fullmatch(name):
                raise ModelError(
                    f"{file} has the weights {name}, which a {kind} model of transformers has not",
                    SAFETENSORS,
                )

    def _weight(self, name: str) -> Tensor:
        layout, _ = self._weights[name]
        parts = [torch.from_numpy(self._file.read(source).copy()) for source in layout.sources]
        weight = layout.make(parts)
        if self._family.pairs and re.search(r"\.self_attn\.[qk]_proj\.", name):
            heads = self._config.num_attention_heads
            if ".k_proj." in name:
                heads = self._config.num_key_value_heads
            rows = weight.reshape(heads, -1, 2, *weight.shape[1:])
            weight = rows.transpose(1, 2).reshape(weight.shape)
        if self._family.raised and name.endswith("norm.weight"):
            weight = weight - 1
        return self._in_fewest_bytes(weight, layout).contiguous()

    def _in_fewest_bytes(self, weight: Tensor, layout: WeightLayout) -> Tensor:
        """In 16 bits where these hold the very numbers of the file."""
        kinds = {self._file.tensors[source].tensor_type.name for source in layout.sources}
        for dtype, names in _SHORT.items():
            if kinds <= {*names} and torch.equal(weight.to(dtype).float(), weight):
                return weight.to(dtype)
        return weight
