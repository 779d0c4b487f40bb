"""A fast path for finding and reading passages: the weights and the forward pass of a small
decoder.

`PlainDecoder` holds the weights on the CPU, in modules named as in transformers, but without
importing transformers, which takes longer than answering a question. `FusedForward` computes with
these weights, or with those of a transformers model, whose own forward pass is the reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from esa_cli.attention.rope import FixedRotaryModule
from esa_cli.models.files.checkpoint_files import weight_files
from esa_cli.models.text_passes.text_forward import (
    KeysValues,
    KeyValuePast,
    LoraAdapter,
    call_layer_hooks,
)

BLOCK = 128
"""The number of queries in a block: fewer mask less, but give smaller matrix products."""
SMALL_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""The values of `model_type` whose layers `FusedForward` computes."""
MOST_BYTES = 1 << 30
"""The most bytes of weights that are copied: beyond it, the copy is not worth its memory."""


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Returns the attention outputs (B, T, H, D) of queries (B, H, T, D) over keys and values (B,
    G, N, D), for B sequences with T new of N tokens, and H query and G key heads of dimension D.
    Query t attends to the keys up to N - T + t."""
    batch, heads, count, size = query.shape
    groups, length = key.shape[1], key.shape[2]
    shared, earlier = heads // groups, length - count
    queries = (query * size**-0.5).reshape(batch, groups, shared, count, size)
    keys = key.reshape(batch * groups, length, size).transpose(1, 2)
    values = value.reshape(batch * groups, length, size)
    out = []
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        rows, seen = stop - start, earlier + stop
        block = queries[:, :, :, start:stop].reshape(batch * groups, shared * rows, size)
        scores = torch.bmm(block, keys[:, :, :seen]).view(-1, shared, rows, seen)
        if rows > 1:
            later = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu(1)
            scores[..., seen - rows :].masked_fill_(later, -torch.inf)
        weights = scores.softmax(-1).view(batch * groups, shared * rows, seen)
        output = torch.bmm(weights, values[:, :seen])
        out.append(output.view(batch, heads, rows, size).transpose(1, 2))
    return torch.cat(out, 1) if len(out) > 1 else out[0]


def _compute_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Computes attention by torch or, for bfloat16 on CPUs, by the faster `causal_attention`."""
    if query.dtype == torch.bfloat16:
        return causal_attention(query, key, value)
    count, length = query.shape[2], key.shape[2]
    mask = None
    if 1 < count < length:
        mask = torch.ones(count, length, dtype=torch.bool).tril(length - count)
    output = scaled_dot_product_attention(
        query, key, value, mask, is_causal=count == length > 1, enable_gqa=True
    )
    return output.transpose(1, 2)


class FusedForward:
    """The forward pass of a model's first layers, with an adapter's products added to copies of
    their weights. It implements `TextForward`.

    Args:
        model: a model of transformers for which `can_be_fused` is true. layers: the number of
            layers, or None for all. adapter: an adapter of this model, or None."""

    accepts_padding = True

    @torch.inference_mode()
    def __init__(
        self, model: Any, layers: int | None = None, adapter: LoraAdapter | None = None
    ) -> None:
        self._model, self._base = model, model.base_model
        self.device: torch.device = model.base_model.embed_tokens.weight.device
        self.heads, self.groups = model.config.num_attention_heads, model.config.num_key_value_heads
        self.size, self.eps = _head_size(model.config), model.config.rms_norm_eps
        products = {} if adapter is None else adapter.lora_products()
        self.layers = [_fuse_layer_weights(layer, products) for layer in self._base.layers[:layers]]

    @torch.inference_mode()
    def states(self, ids: Tensor, past: KeyValuePast | None = None) -> tuple[Tensor, KeyValuePast]:
        """Returns the hidden states (B, T, hidden) of token ids (B, T) after the last layer and
        before the model's final norm, and the KV cache of `past` extended by these tokens."""
        start = past.pairs[0][0].shape[2] if past else 0
        x = self._base.embed_tokens(ids)
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
        cos, sin = (one[:, :, None] for one in self._base.rotary_emb(x, positions))
        pairs: list[KeysValues] = []
        for number, layer in enumerate(self.layers):
            call_layer_hooks(self._base.layers[number])
            before = rms_norm(x, x.shape[-1:], layer.before_attention, self.eps)
            pair = past.pairs[number] if past else None
            attended, pair = self._compute_layer_attention(layer, before, cos, sin, pair)
            pairs.append(pair)
            x += attended
            wide = rms_norm(x, x.shape[-1:], layer.before_mlp, self.eps)
            inner = silu(linear(wide, layer.gate), inplace=True)
            x += linear(inner.mul_(linear(wide, layer.up)), layer.down)
        return x, KeyValuePast(pairs)

    def logits(self, states: Tensor) -> Tensor:
        """Returns the logits (..., vocabulary), float32, of hidden states after all layers."""
        logits: Tensor = self._model.lm_head(self._base.norm(states))
        return logits.float()

    def _compute_layer_attention(
        self, layer: Any, x: Tensor, cos: Tensor, sin: Tensor, past: KeysValues | None
    ) -> tuple[Tensor, KeysValues]:
        """Returns the output (B, T, hidden) of a layer's attention, and its keys and values."""
        batch, count, _ = x.shape
        heads, groups = self.heads, self.groups
        projected = linear(x, layer.projection, layer.projection_bias)
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
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        output = _compute_attention(query, key, value).reshape(batch, count, -1)
        return linear(output, layer.output, layer.output_bias), (key, value)


def _fuse_layer_weights(
    layer: Any, products: dict[nn.Module, tuple[Tensor, Tensor]]
) -> SimpleNamespace:
    """Returns a layer's weights, with queries, keys and values fused in `projection`."""
    attention, mlp = layer.self_attn, layer.mlp
    three = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [one.bias for one in three]

    def fuse_weights(*parts: Any) -> Tensor:
        if len(parts) == 1 and parts[0] not in products:
            alone: Tensor = parts[0].weight.detach()
            return alone
        sizes = [part.weight.shape[0] for part in parts]
        out: Tensor = parts[0].weight.new_empty(sum(sizes), parts[0].weight.shape[1])
        for part, rows in zip(parts, torch.split(out, sizes), strict=True):
            if part in products:
                a, b = (matrix.to(part.weight) for matrix in products[part])
                torch.addmm(part.weight, b, a, out=rows)
            else:
                rows.copy_(part.weight)
        return out

    return SimpleNamespace(
        before_attention=layer.input_layernorm.weight,
        projection=fuse_weights(*three),
        projection_bias=None if biases[0] is None else torch.cat(biases),
        query_norm=getattr(getattr(attention, "q_norm", None), "weight", None),
        key_norm=getattr(getattr(attention, "k_norm", None), "weight", None),
        output=fuse_weights(attention.o_proj),
        output_bias=attention.o_proj.bias,
        before_mlp=layer.post_attention_layernorm.weight,
        gate=fuse_weights(mlp.gate_proj),
        up=fuse_weights(mlp.up_proj),
        down=fuse_weights(mlp.down_proj),
    )


def is_plain_weight(weight: Tensor) -> bool:
    """Whether a weight is a plain tensor of floating-point numbers with more than 8 bits."""
    plain = type(weight) in (Tensor, nn.Parameter)
    return plain and weight.is_floating_point() and weight.dtype.itemsize > 1


def can_be_fused(model: Any) -> bool:
    """Whether `FusedForward` can compute a model: it must be small, of one of the `SMALL_FAMILIES`,
    and on the CPU, with plain weights of one type in torch's own linear layers."""
    if not _has_plain_layers(model.config):
        return False
    layers, dtype = model.base_model.layers, next(model.parameters()).dtype
    weights = list(layers.parameters())
    linears = [one for name, one in layers.named_modules() if name.endswith("_proj")]
    return (
        sum(one.nbytes for one in weights) <= MOST_BYTES
        and all(type(one) is nn.Linear for one in linears)
        and all(is_plain_weight(one) and one.dtype == dtype for one in weights)
        and all(one.device.type == "cpu" for one in weights)
    )


def _has_plain_layers(config: object) -> bool:
    """Whether `FusedForward` computes layers of this configuration."""
    others = ("sliding_window", "attention_chunk_size")  # attention that is not plain
    return (
        getattr(config, "model_type", None) in SMALL_FAMILIES
        and getattr(config, "hidden_act", "silu") == "silu"
        and not getattr(config, "mlp_bias", False)
        and all(getattr(config, name, None) is None for name in others)
    )


class PlainConfig(SimpleNamespace):
    """The settings of a config.json, as transformers completes them."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the model's settings by name."""
        return dict(vars(self))


def can_be_plain(settings: Mapping[str, Any]) -> bool:
    """Whether a model with these completed settings can be a `PlainDecoder`."""
    rope = settings.get("rope_parameters") or {}
    return (
        _has_plain_layers(PlainConfig(**settings))
        and settings.get("quantization_config") is None
        and set(settings.get("layer_types") or ["full_attention"]) == {"full_attention"}
        and set(rope) == {"rope_type", "rope_theta"}
        and rope["rope_type"] == "default"
    )


class PlainDecoder(nn.Module):
    """The modules of a causal language model, with their parameters in the same order as in
    transformers. `can_be_plain` must be true for `config`; until `load`, the weights are on the
    device `meta`."""

    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        self.config, self.device, self.dtype = config, torch.device("cpu"), torch.float32
        size, words = config.hidden_size, config.vocab_size
        theta = config.rope_parameters["rope_theta"]
        numbers = torch.arange(0, _head_size(config), 2, dtype=torch.float)
        self.model = nn.ModuleDict({
            # The class itself would draw numbers, by code of torch that takes a second to import.
            "embed_tokens": nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
                torch.empty(words, size, device="meta")
            ),
            "layers": nn.ModuleList(_make_layer(config) for _ in range(config.num_hidden_layers)),
            "norm": RmsNorm(size, config.rms_norm_eps),
            "rotary_emb": FixedRotaryModule(1.0 / theta ** (numbers / _head_size(config)), 1.0),
        })  # fmt: skip
        self.lm_head = nn.Linear(size, words, bias=False, device="meta")
        self.requires_grad_(False)
        self._tie_embeddings()

    def _tie_embeddings(self) -> None:
        """Uses the embeddings as the output matrix if the configuration says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.base_model.embed_tokens.weight

    @classmethod
    def load(
        cls, folder: Path, settings: Mapping[str, Any], dtype: torch.dtype
    ) -> PlainDecoder | None:
        """Loads a decoder with the weights in a folder. Returns None if the decoder is too large to
        be fused, or if the files do not contain exactly its weights."""
        model = cls(PlainConfig(**settings))
        numbers = sum(one.numel() for one in model.base_model.layers.parameters())
        if numbers * dtype.itemsize > MOST_BYTES:
            return None
        weights: dict[str, Tensor] = {}
        try:
            for path in weight_files(folder):
                with safe_open(path, "pt") as file:
                    for name in file.keys():  # noqa: SIM118
                        weights[name] = file.get_tensor(name).to(dtype)
        except (OSError, SafetensorError):
            return None
        wanted = {name: one.shape for name, one in model.named_parameters()}
        if wanted != {name: one.shape for name, one in weights.items()}:
            return None
        model.load_state_dict(weights, strict=False, assign=True)
        model.dtype = dtype
        model._tie_embeddings()
        return model.eval()

    @property
    def base_model(self) -> Any:
        """The decoder's modules without the output head."""
        return self.model


class RmsNorm(nn.Module):
    """The RMS norm of hidden states (..., hidden), computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(size, device="meta")), eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalises `x`, rounding as transformers does before the weight is multiplied."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def _head_size(config: Any) -> int:
    """Returns the head dimension D."""
    return int(getattr(config, "head_dim", 0) or config.hidden_size // config.num_attention_heads)


def _make_layer(config: Any) -> nn.Module:
    """Returns the modules of one layer; the model family decides which projections have a bias."""
    size, wide, head = config.hidden_size, config.intermediate_size, _head_size(config)
    heads, groups = config.num_attention_heads * head, config.num_key_value_heads * head
    bias = config.model_type in ("llama", "qwen3") and config.attention_bias
    inner = bias or config.model_type == "qwen2"

    def make_linears(**sizes: tuple[int, int, bool]) -> dict[str, nn.Module]:
        return {
            f"{name}_proj": nn.Linear(first, last, bias=biased, device="meta")
            for name, (first, last, biased) in sizes.items()
        }

    attention = make_linears(
        q=(size, heads, inner), k=(size, groups, inner), v=(size, groups, inner),
        o=(heads, size, bias),
    )  # fmt: skip
    if config.model_type == "qwen3":
        attention |= {name: RmsNorm(head, config.rms_norm_eps) for name in ("q_norm", "k_norm")}
    mlp = make_linears(gate=(size, wide, False), up=(size, wide, False), down=(wide, size, False))
    return nn.ModuleDict({
        "self_attn": nn.ModuleDict(attention),
        "mlp": nn.ModuleDict(mlp),
        "input_layernorm": RmsNorm(size, config.rms_norm_eps),
        "post_attention_layernorm": RmsNorm(size, config.rms_norm_eps),
    })  # fmt: skip
