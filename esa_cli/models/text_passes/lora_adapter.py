"""Low-rank adapters (LoRA, arXiv 2106.09685) of a model's linear layers.

An adapter adds `scale * B A x` to the output of each linear layer that it names. Folders are those
that the peft library writes: `adapter_config.json` and `adapter_model.safetensors`.
"""

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
"""What peft writes before a module's name in the causal language model."""


class LoraAdapter:
    """The matrices A (r, in) and B (out, r) of some linear layers of one model.

    Args:
        model: a causal language model of transformers. matrices: (A, B) by the layer's name in
            `model`. scale: factor of `B A`, alpha / r in the paper.

    Raises:
        ModelError: the model has no such layer, or one of another size.
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
                    f"the adapter is of another model: it has matrices for {name}",
                    "use the adapter that was trained for this model, or --set answer.adapter=null",
                )
            self._layers[name] = layer

    @classmethod
    def new(cls, model: Any, rank: int, alpha: float, seed: int = 0) -> LoraAdapter:
        """Makes an adapter of all linear layers but the output, without effect until trained."""
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
        """Reads an adapter from its folder.

        Raises:
            ModelError: the folder has none, it is damaged, of a kind not supported (bias, DoRA,
                rank patterns), or of another model; or it has numbers that are not finite.
        """
        with reading(f"the adapter {folder}", "use --set answer.adapter=null"):
            config = json.loads((folder / CONFIG).read_text("utf-8"))
            tensors = load_file(folder / WEIGHTS)
            others = ("use_dora", "rank_pattern", "alpha_pattern")
            plain = config["peft_type"] == "LORA" and config.get("bias", "none") == "none"
            if not plain or any(config.get(name) for name in others):
                raise ValueError("it is not plain LoRA without bias, DoRA and patterns of ranks")
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
                raise ValueError("it changes more than linear layers")
        return cls(model, matrices, scale)

    @property
    def rank(self) -> int:
        """r, the smaller size of the matrices."""
        return int(next(iter(self.matrices.values()))[0].shape[0])

    def save(self, folder: Path, base: str) -> None:
        """Writes the adapter as peft does. base: what names the model in its configuration."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base,
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
        """All matrices, to train."""
        return [matrix for pair in self.matrices.values() for matrix in pair]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Adds the adapter to the outputs of the model's linear layers until the block ends."""

        def hook(name: str) -> Any:
            def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                (a, b), x = self.matrices[name], inputs[0]
                return output + (x @ a.to(x).T) @ (b.to(x) * self.scale).T

            return add

        with ExitStack() as stack:
            for name, layer in self._layers.items():
                stack.callback(layer.register_forward_hook(hook(name)).remove)
            yield

    def products(self) -> dict[nn.Module, tuple[Tensor, Tensor]]:
        """A and `scale * B` by the linear layer to whose weights their product is added."""
        return {
            self._layers[name]: (a.detach(), b.detach() * self.scale)
            for name, (a, b) in self.matrices.items()
        }

    def to(self, like: Tensor) -> LoraAdapter:
        """Moves the matrices to a tensor's device and type, for running."""
        for name, (a, b) in self.matrices.items():
            self.matrices[name] = a.to(like.device, like.dtype), b.to(like.device, like.dtype)
        return self
