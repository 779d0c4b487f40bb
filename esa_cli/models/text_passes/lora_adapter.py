"""Low-rank adapters (LoRA, arXiv 2106.09685) for a model's linear layers.

An adapter adds `scale * B A x` to the output of each linear layer that it lists. An adapter's
folder has the format of the peft library: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import reading
from esa_cli.system.files import replacing

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""The prefix that peft adds to a module's name in the causal language model."""


class LoraAdapter:
    """A LoRA adapter: the matrices A (r, in) and B (out, r) for some linear layers of one model.
    `matrices` maps each layer's name in `model` to the pair (A, B); `scale` is the factor of `B A`,
    alpha / r in the paper. Raises ModelError: the model lacks a layer, or a layer has another size.
    """

    def __init__(
        self, model: nn.Module, matrices: Mapping[str, tuple[Tensor, Tensor]], scale: float
    ) -> None:
        self.matrices, self.scale = dict(matrices), scale
        layers, self._layers = dict(model.named_modules()), dict[str, nn.Linear]()
        for name, (a, b) in self.matrices.items():
            layer, sizes = layers.get(name), (b.shape[0], a.shape[1])
            # A quantised weight is flat: the sizes are the layer's own.
            if not isinstance(layer, nn.Linear) or sizes != (
                layer.out_features, layer.in_features
            ):  # fmt: skip
                raise ModelError(
                    f"the adapter belongs to another model: it has matrices for {name}",
                    "use an adapter that was trained for this model, or --set answer.adapter=null",
                )
            self._layers[name] = layer

    @classmethod
    def new(cls, model: Any, rank: int, alpha: float, seed: int = 0) -> LoraAdapter:
        """Creates an untrained adapter, without effect, for all linear layers but the output."""
        generator = torch.Generator().manual_seed(seed)
        matrices = {}
        output = model.get_output_embeddings()
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear) and layer is not output:
                a = torch.rand(rank, layer.in_features, generator=generator) * 2 - 1
                first = nn.Parameter(a / math.sqrt(layer.in_features))
                matrices[name] = first, nn.Parameter(torch.zeros(layer.out_features, rank))
        return cls(model, matrices, alpha / rank)

    @classmethod
    def load(cls, folder: Path, model: nn.Module) -> LoraAdapter:
        """Loads an adapter from its folder. Raises ModelError: the adapter is missing, damaged, of
        an unsupported kind (bias, DoRA, rank patterns) or of another model, or has numbers that are
        not finite."""
        with reading(f"the adapter {folder}", "use --set answer.adapter=null"):
            config = json.loads((folder / CONFIG).read_text("utf-8"))
            tensors = load_file(folder / WEIGHTS)
            others = ("use_dora", "rank_pattern", "alpha_pattern")
            plain = config["peft_type"] == "LORA" and config.get("bias", "none") == "none"
            if not plain or any(config.get(name) for name in others):
                raise ValueError(
                    "only plain LoRA is supported, without bias, DoRA or rank patterns"
                )
            rank, alpha = int(config["r"]), float(config["lora_alpha"])
            scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
            matrices = {}
            for name in [one for one in tensors if one.endswith(".lora_A.weight")]:
                a, b = tensors[name], tensors[name.replace("lora_A", "lora_B")]
                if a.dim() != 2 or b.dim() != 2 or (a.shape[0], b.shape[1]) != (rank, rank):
                    raise ValueError(f"{name} must have the rank r = {rank}")
                if not (a.isfinite().all() and (b.float() * scale).isfinite().all()):
                    raise ValueError(f"{name} must have finite numbers")
                matrices[name.removeprefix(PREFIX).removesuffix(".lora_A.weight")] = a, b
            if 2 * len(matrices) != len(tensors):
                raise ValueError("the adapter must change linear layers only")
        return cls(model, matrices, scale)

    @property
    def rank(self) -> int:
        """The rank r of the adapter, which is the smaller size of its matrices."""
        return int(next(iter(self.matrices.values()))[0].shape[0])

    def save(self, folder: Path, base_model: str) -> None:
        """Saves the adapter in peft's format; `base_model` is the name of its model."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base_model,
            "r": self.rank, "lora_alpha": self.scale * self.rank, "bias": "none", "use_dora": False,
            "target_modules": sorted({name.rsplit(".", 1)[-1] for name in self.matrices}),
        }  # fmt: skip
        tensors = {
            f"{PREFIX}{name}.lora_{half}.weight": matrix.detach().to(torch.bfloat16).contiguous()
            for name, pair in self.matrices.items()
            for half, matrix in zip("AB", pair, strict=True)
        }
        with replacing(folder / WEIGHTS) as path:
            save_file(tensors, path, metadata={"format": "pt"})
        with replacing(folder / CONFIG) as path:
            path.write_text(json.dumps(config, indent=1) + "\n", "utf-8")

    def parameters(self) -> list[Tensor]:
        """Returns all matrices of the adapter, for training."""
        return [matrix for pair in self.matrices.values() for matrix in pair]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Adds the adapter to the outputs of the model's linear layers until the block ends."""

        def make_hook(name: str) -> Any:
            def add_output(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                (a, b), x = self.matrices[name], inputs[0]
                return output + (x @ a.to(x).T) @ (b.to(x) * self.scale).T

            return add_output

        with ExitStack() as stack:
            for name, layer in self._layers.items():
                stack.callback(layer.register_forward_hook(make_hook(name)).remove)
            yield

    def lora_products(self) -> dict[nn.Module, tuple[Tensor, Tensor]]:
        """Returns A and `scale * B` for each linear layer, to whose weight B A is added."""
        return {
            self._layers[name]: (a.detach(), b.detach() * self.scale)
            for name, (a, b) in self.matrices.items()
        }

    def to(self, target: Tensor) -> LoraAdapter:
        """Moves the adapter's matrices to the device and number type of a tensor."""
        for name, (a, b) in self.matrices.items():
            self.matrices[name] = a.to(target), b.to(target)
        return self
