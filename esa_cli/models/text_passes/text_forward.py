"""Runs models on plain text to find and read passages, without an attached attention method: first
layers, LoRA adapters, and `FusedForward`, a fast forward pass of small decoders on the CPU."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import convert_read_errors

# -- The first layers of a model


@contextmanager
def call_before_each_layer(model: Any, callback: Callable[[], None]) -> Iterator[None]:
    """Calls `callback` before each decoder layer in each forward pass of a model until the block
    ends, or once before each pass if the model's layers are unknown."""
    layers = getattr(model.base_model, "layers", [model.base_model])
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(layer.register_forward_pre_hook(lambda *_: callback()))
        yield


def call_layer_hooks(layer: nn.Module) -> None:
    """Calls the forward pre-hooks of a layer's module without running the module."""
    for hook in [*layer._forward_pre_hooks.values()]:
        hook(layer, ())


def share_layer_hooks(model: Any, other_model: Any) -> None:
    """Makes each layer of `other_model` call the forward pre-hooks of the same layer of `model`."""
    for layer, later in zip(model.base_model.layers, other_model.base_model.layers, strict=True):
        later.register_forward_pre_hook(lambda *_, layer=layer: call_layer_hooks(layer))


class _LastLayerReached(Exception):
    """Raised to end a forward pass after the last layer that is needed."""


def compute_hidden_states(
    model: Any, token_ids: Tensor, layer_count: int, lengths: Tensor | None = None
) -> Tensor:
    """Returns the hidden states (B, T, H) of token ids (B, T) after the first `layer_count` layers
    of a model, without running later layers, as float32 and divided by their root mean square. With
    the number of tokens of each sequence that are not padding, `lengths` (B,), each token attends
    to all tokens of its sequence; without them, to itself and earlier ones."""
    states = list[Tensor]()

    def stop_after_layer(module: nn.Module, inputs: Any, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)
        raise _LastLayerReached

    options = {}
    if lengths is not None:
        count = token_ids.shape[1]
        padding = torch.arange(count, device=lengths.device) >= lengths[:, None]
        mask = torch.zeros(len(lengths), 1, count, count, dtype=model.dtype, device=lengths.device)
        mask.masked_fill_(padding[:, None, None], torch.finfo(model.dtype).min)
        options["attention_mask"] = mask.to(model.device)
    last = model.base_model.layers[layer_count - 1]
    with last.register_forward_hook(stop_after_layer), suppress(_LastLayerReached):
        model.base_model(input_ids=token_ids.to(model.device), use_cache=False, **options)
    return normalise_hidden_states(states[0])


def normalise_hidden_states(states: Tensor) -> Tensor:
    """Returns hidden states (..., H) as float32, each divided by its root mean square."""
    return nn.functional.rms_norm(states.float(), states.shape[-1:], eps=1e-6)


# -- The fast forward pass, which tests compare with transformers

QUERY_BLOCK = 128
"""The number of queries in one matrix product; fewer queries mask less, but compute slower."""
SMALL_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""The values of `model_type` whose layers `FusedForward` computes."""
MOST_BYTES = 1 << 30
"""The most bytes of weights that `FusedForward` copies; a larger copy is not worth its memory."""


def compute_causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Returns the causal attention outputs (B, T, H, D) of queries (B, H, T, D) over keys and
    values (B, G, T, D), for B sequences, H query heads and G key heads of dimension D."""
    batch, heads, count, size = query.shape
    groups = key.shape[1]
    shared = heads // groups
    queries = (query * size**-0.5).reshape(batch, groups, shared, count, size)
    keys = key.reshape(batch * groups, count, size).transpose(1, 2)
    values = value.reshape(batch * groups, count, size)
    out = []
    for start in range(0, count, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, count)
        rows = stop - start
        block = queries[:, :, :, start:stop].reshape(batch * groups, shared * rows, size)
        scores = torch.bmm(block, keys[:, :, :stop]).view(-1, shared, rows, stop)
        if rows > 1:
            later = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu(1)
            scores[..., start:].masked_fill_(later, -torch.inf)
        weights = scores.softmax(-1).view(batch * groups, shared * rows, stop)
        output = torch.bmm(weights, values[:, :stop])
        out.append(output.view(batch, heads, rows, size).transpose(1, 2))
    return torch.cat(out, 1) if len(out) > 1 else out[0]


def compute_bidirectional_attention(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor
) -> Tensor:
    """Returns the attention outputs (B, T, H, D), as `compute_causal_attention`, of queries that
    attend to all of the first `lengths` (B,) tokens of their sequence."""
    batch, heads, count, size = query.shape
    groups = key.shape[1]
    queries = (query * size**-0.5).reshape(batch * groups, -1, size)
    scores = torch.bmm(queries, key.reshape(batch * groups, count, size).transpose(1, 2))
    padding = torch.arange(count, device=query.device) >= lengths[:, None]
    scores.view(batch, -1, count).masked_fill_(padding[:, None], -torch.inf)
    output = torch.bmm(scores.softmax(-1), value.reshape(batch * groups, count, size))
    return output.view(batch, heads, count, size).transpose(1, 2)


class FusedForward:
    """A fast forward pass of the first `depth` layers, or all, of a small decoder on the CPU (a
    `PlainDecoder`, or a transformers model for which `can_fuse_model` is true), with fused copies
    of the weights, to which a LoRA adapter of the model may be added."""

    @torch.inference_mode()
    def __init__(
        self, model: Any, depth: int | None = None, adapter: LoraAdapter | None = None
    ) -> None:
        self._base = model.base_model
        self.heads, self.groups = model.config.num_attention_heads, model.config.num_key_value_heads
        self.size, self.eps = get_head_dimension(model.config), model.config.rms_norm_eps
        products = {} if adapter is None else adapter.get_scaled_matrices_by_layer()
        self.layers = [_fuse_layer_weights(layer, products) for layer in self._base.layers[:depth]]

    @torch.inference_mode()
    def compute_states(self, token_ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Returns hidden states as `compute_hidden_states` does."""
        x = self._base.embed_tokens(token_ids)
        positions = torch.arange(token_ids.shape[1], device=token_ids.device)[None]
        cos, sin = (one[:, :, None] for one in self._base.rotary_emb(x, positions))
        for number, layer in enumerate(self.layers):
            call_layer_hooks(self._base.layers[number])
            before = rms_norm(x, x.shape[-1:], layer.before_attention, self.eps)
            x += self._compute_layer_attention(layer, before, cos, sin, lengths)
            wide = rms_norm(x, x.shape[-1:], layer.before_mlp, self.eps)
            inner = silu(linear(wide, layer.gate), inplace=True)
            x += linear(inner.mul_(linear(wide, layer.up)), layer.down)
        return normalise_hidden_states(x)

    def _compute_layer_attention(
        self, layer: Any, hidden_states: Tensor, cos: Tensor, sin: Tensor, lengths: Tensor | None
    ) -> Tensor:
        """Returns a layer's attention output (B, T, hidden)."""
        batch, count, _ = hidden_states.shape
        heads, groups = self.heads, self.groups
        projected = linear(hidden_states, layer.projection, layer.projection_bias)
        projected = projected.view(batch, count, heads + 2 * groups, self.size)
        rotated = projected[:, :, : heads + groups]
        if layer.query_norm is not None:
            rotated = torch.cat((
                rms_norm(rotated[:, :, :heads], (self.size,), layer.query_norm, self.eps),
                rms_norm(rotated[:, :, heads:], (self.size,), layer.key_norm, self.eps),
            ), 2)  # fmt: skip
        half = self.size // 2
        turned = torch.cat((-rotated[..., half:], rotated[..., :half]), -1)
        rotated = (rotated * cos + turned * sin).transpose(1, 2)
        query, key = rotated[:, :heads], rotated[:, heads:]
        value = projected[:, :, heads + groups :].transpose(1, 2)
        if lengths is not None:
            output = compute_bidirectional_attention(query, key, value, lengths)
        elif query.dtype == torch.bfloat16:  # torch is slower for this type
            output = compute_causal_attention(query, key, value)
        else:
            output = scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            ).transpose(1, 2)
        return linear(output.reshape(batch, count, -1), layer.output, layer.output_bias)


def _fuse_layer_weights(
    layer: Any, adapter_matrices: dict[nn.Module, tuple[Tensor, Tensor]]
) -> SimpleNamespace:
    """Returns a layer's weights with the LoRA matrices added, and one projection of all three."""
    attention, mlp = layer.self_attn, layer.mlp
    three = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [one.bias for one in three]

    def fuse_linear_weights(*linears: Any) -> Tensor:
        if len(linears) == 1 and linears[0] not in adapter_matrices:
            alone: Tensor = linears[0].weight.detach()
            return alone
        sizes = [part.weight.shape[0] for part in linears]
        out: Tensor = linears[0].weight.new_empty(sum(sizes), linears[0].weight.shape[1])
        for part, rows in zip(linears, torch.split(out, sizes), strict=True):
            if part in adapter_matrices:
                a, b = (matrix.to(part.weight) for matrix in adapter_matrices[part])
                torch.addmm(part.weight, b, a, out=rows)
            else:
                rows.copy_(part.weight)
        return out

    return SimpleNamespace(
        before_attention=layer.input_layernorm.weight,
        projection=fuse_linear_weights(*three),
        projection_bias=None if biases[0] is None else torch.cat(biases),
        query_norm=getattr(getattr(attention, "q_norm", None), "weight", None),
        key_norm=getattr(getattr(attention, "k_norm", None), "weight", None),
        output=fuse_linear_weights(attention.o_proj),
        output_bias=attention.o_proj.bias,
        before_mlp=layer.post_attention_layernorm.weight,
        gate=fuse_linear_weights(mlp.gate_proj),
        up=fuse_linear_weights(mlp.up_proj),
        down=fuse_linear_weights(mlp.down_proj),
    )


def is_unquantised_weight(weight: Tensor) -> bool:
    """Whether a weight is a plain torch tensor of floating-point numbers of more than 8 bits."""
    plain = type(weight) in (Tensor, nn.Parameter)
    return plain and weight.is_floating_point() and weight.dtype.itemsize > 1


def can_fuse_model(model: Any) -> bool:
    """Whether `FusedForward` can compute a model, which must be a small unquantised decoder on the
    CPU, of one of the `SMALL_FAMILIES`, with weights of one number type."""
    if not can_fuse_layers(model.config):
        return False
    layers, dtype = model.base_model.layers, next(model.parameters()).dtype
    weights = list(layers.parameters())
    linears = [one for name, one in layers.named_modules() if name.endswith("_proj")]
    return (
        sum(one.nbytes for one in weights) <= MOST_BYTES
        and all(type(one) is nn.Linear for one in linears)
        and all(is_unquantised_weight(one) and one.dtype == dtype for one in weights)
        and all(one.device.type == "cpu" for one in weights)
    )


def can_fuse_layers(config: object) -> bool:
    others = ("sliding_window", "attention_chunk_size")  # attention that is not plain
    return (
        getattr(config, "model_type", None) in SMALL_FAMILIES
        and getattr(config, "hidden_act", "silu") == "silu"
        and not getattr(config, "mlp_bias", False)
        and all(getattr(config, name, None) is None for name in others)
    )


def get_head_dimension(config: Any) -> int:
    return int(getattr(config, "head_dim", 0) or config.hidden_size // config.num_attention_heads)


# -- Batches

GROUP = 8
"""The number of sequences, of similar lengths to avoid padding, in a forward call."""


def pad_sequences(sequences: Sequence[Sequence[int]]) -> Tensor:
    """Returns B sequences of token ids as a tensor (B, T), padded with zeros to T tokens each."""
    rows = [torch.tensor(list(ids), dtype=torch.long) for ids in sequences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def iterate_groups(indices: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(indices), GROUP):
        yield indices[at : at + GROUP]


def iterate_group_states(
    model: Any, adapter: LoraAdapter, fused: FusedForward | None,
    sequences: Sequence[Sequence[int]], depth: int, bidirectional: bool = False,
) -> Iterator[tuple[Sequence[int], Tensor]]:  # fmt: skip
    """Yields groups of token sequences, as numbers of sequences, with their hidden states (B, T, H)
    after the first `depth` layers of a model with an adapter, or of its `fused` form."""
    order = sorted(range(len(sequences)), key=lambda n: len(sequences[n]))
    with nullcontext() if fused else adapter.apply():
        for group in iterate_groups(order):
            ids = pad_sequences([sequences[n] for n in group])
            counts = torch.tensor([len(sequences[n]) for n in group], device=model.device)
            lengths = counts if bidirectional else None
            if fused:
                yield group, fused.compute_states(ids, lengths)
            else:
                yield group, compute_hidden_states(model, ids, depth, lengths)


# -- Adapters

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""The prefix that peft adds to a module's name in the causal language model."""


class LoraAdapter:
    """A LoRA adapter, which adds `scale * B A` to the weights of some linear layers of `model`,
    where `matrices` maps a layer's name to A (r, in) and B (out, r). Raises ModelError: the model
    lacks a layer of the adapter, or the layer has another size."""

    def __init__(
        self, model: nn.Module, matrices: Mapping[str, tuple[Tensor, Tensor]], scale: float
    ) -> None:
        self.matrices, self.scale = dict(matrices), scale
        layers, self._layers = dict(model.named_modules()), dict[str, nn.Module]()
        for name, (a, b) in self.matrices.items():
            layer: Any = layers.get(name)
            # A quantised weight is flat: the sizes are the layer's own.
            sizes = isinstance(layer, nn.Linear) and (layer.out_features, layer.in_features)
            if sizes != (b.shape[0], a.shape[1]):
                raise ModelError(
                    f"the LoRA adapter was made for another model: it does not fit {name}",
                    "choose an adapter that was made for this model, or --set answer.adapter=null",
                )
            self._layers[name] = layer

    @classmethod
    def load(cls, folder: Path, model: nn.Module) -> LoraAdapter:
        """Loads a LoRA adapter of a model. Raises ModelError: it is missing or unsuitable."""
        with convert_read_errors(f"the adapter {folder}", "use --set answer.adapter=null"):
            config = json.loads((folder / CONFIG).read_text("utf-8"))
            tensors = load_file(folder / WEIGHTS)
            others = ("use_dora", "rank_pattern", "alpha_pattern")
            plain = config["peft_type"] == "LORA" and config.get("bias", "none") == "none"
            if not plain or any(config.get(name) for name in others):
                message = "the adapter must be plain LoRA, without bias, DoRA or rank patterns"
                raise ValueError(message)
            rank, alpha = int(config["r"]), float(config["lora_alpha"])
            scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
            matrices = {}
            for name in [one for one in tensors if one.endswith(".lora_A.weight")]:
                a, b = tensors[name], tensors[name.replace("lora_A", "lora_B")]
                if a.dim() != 2 or b.dim() != 2 or (a.shape[0], b.shape[1]) != (rank, rank):
                    raise ValueError(f"the LoRA matrix {name} must have the rank r = {rank}")
                if not (a.isfinite().all() and (b.float() * scale).isfinite().all()):
                    raise ValueError(f"the LoRA matrix {name} must have finite numbers")
                matrices[name.removeprefix(PREFIX).removesuffix(".lora_A.weight")] = a, b
            if 2 * len(matrices) != len(tensors):
                raise ValueError("the LoRA adapter must change only linear layers")
        return cls(model, matrices, scale)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Makes the LoRA adapter change the outputs of the model's layers until the block ends."""

        def add_adapter_output(name: str, layer: nn.Module, inputs: Any, output: Tensor) -> Any:
            (a, b), x = self.matrices[name], inputs[0]
            return output + (x @ a.to(x).T) @ (b.to(x) * self.scale).T

        with ExitStack() as stack:
            for name, layer in self._layers.items():
                hook = partial(add_adapter_output, name)
                stack.callback(layer.register_forward_hook(hook).remove)
            yield

    def get_scaled_matrices_by_layer(self) -> dict[nn.Module, tuple[Tensor, Tensor]]:
        """Returns the LoRA matrices A and `scale * B` of each linear layer to be changed."""
        return {
            self._layers[name]: (a.detach(), b.detach() * self.scale)
            for name, (a, b) in self.matrices.items()
        }

    def match_device_and_dtype(self, tensor: Tensor) -> None:
        """Converts the LoRA matrices to the device and the number type of a tensor."""
        for name, (a, b) in self.matrices.items():
            self.matrices[name] = a.to(tensor), b.to(tensor)
