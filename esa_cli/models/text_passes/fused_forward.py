"""A decoder's forward pass over fused weights: the fast path of reading for answers from text.

Queries, keys and values of a layer are one matrix product, and a LoRA adapter is added to the
weights. Nothing of the model that the weights are of is changed or called, so nothing is attached
here: this is plain causal attention at true positions, for finding and for reading passages again.
The reference is transformers' own forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from esa_cli.models.inspection import is_plain
from esa_cli.models.text_passes.causal_attention import causal_attention
from esa_cli.models.text_passes.layer_calls import call_before_layer
from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.models.text_passes.text_past import KeysValues, KeyValuePast

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of `model_type` whose layers are computed here."""
OTHER_RULES = ("sliding_window", "attention_chunk_size")
"""Settings of models whose attention is not plain causal attention."""
MOST_BYTES = 1 << 30
"""Of the layers' weights: with larger ones the copy costs more memory than it is worth in time."""


@dataclass(frozen=True)
class FusedLayer:
    """Weights of one layer. With H heads and G key-value heads of size D, `projection` is
    ((H + 2 G) D, hidden)."""

    before_attention: Tensor
    projection: Tensor
    projection_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    before_mlp: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class FusedForward:
    """The forward pass of a model's first layers, with an adapter added to their weights.

    Takes as much memory as these layers' weights. Weights that change later are not seen.

    Args:
        model: of transformers, for which `can_be_fused` holds. layers: how many; None: all.
        adapter: of this model.
    """

    @torch.inference_mode()
    def __init__(
        self, model: Any, layers: int | None = None, adapter: LoraAdapter | None = None
    ) -> None:
        base, config = model.base_model, model.config
        self._model, self._embedding, self._norm = model, base.embed_tokens, base.norm
        self._rotary = base.rotary_emb
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.eps = config.rms_norm_eps
        added = {} if adapter is None else adapter.products()
        self.layers = [_fused(layer, added) for layer in base.layers[:layers]]
        self.size = self.layers[0].output.shape[1] // self.heads

    @property
    def pads(self) -> bool:
        """All layers keep the keys and values of all tokens."""
        return True

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        device: torch.device = self._embedding.weight.device
        return device

    @torch.inference_mode()
    def states(self, ids: Tensor, past: KeyValuePast | None = None) -> tuple[Tensor, KeyValuePast]:
        """Hidden states (B, T, hidden) behind the last of the layers, before the model's norm, and
        the layers' keys and values, those of `past` before the new ones.

        Args:
            ids: (B, T); shorter sequences are padded at their ends, which their tokens do not see.
            past: of the tokens before.
        """
        start = past.pairs[0][0].shape[2] if past else 0
        x = self._embedding(ids)
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
        cos, sin = (one[:, :, None] for one in self._rotary(x, positions))
        kept: list[KeysValues] = []
        for number, layer in enumerate(self.layers):
            call_before_layer(self._model)
            found, pair = self._attention(
                layer, rms_norm(x, x.shape[-1:], layer.before_attention, self.eps), cos, sin,
                past.pairs[number] if past else None,
            )  # fmt: skip
            kept.append(pair)
            x += found
            wide = rms_norm(x, x.shape[-1:], layer.before_mlp, self.eps)
            inner = silu(linear(wide, layer.gate), inplace=True)
            x += linear(inner.mul_(linear(wide, layer.up)), layer.down)
        return x, KeyValuePast(kept)

    def logits(self, states: Tensor) -> Tensor:
        """Logits (..., vocabulary), float32, of hidden states behind all layers."""
        logits: Tensor = self._model.lm_head(self._norm(states))
        return logits.float()

    def _attention(
        self, layer: FusedLayer, x: Tensor, cos: Tensor, sin: Tensor, past: KeysValues | None
    ) -> tuple[Tensor, KeysValues]:
        batch, count, _ = x.shape
        heads, groups = self.heads, self.groups
        every = linear(x, layer.projection, layer.projection_bias)
        every = every.view(batch, count, heads + 2 * groups, self.size)
        rotated = every[:, :, : heads + groups]
        if layer.query_norm is not None and layer.key_norm is not None:
            rotated = torch.cat((
                rms_norm(rotated[:, :, :heads], (self.size,), layer.query_norm, self.eps),
                rms_norm(rotated[:, :, heads:], (self.size,), layer.key_norm, self.eps),
            ), 2)  # fmt: skip
        half = self.size // 2
        turned = torch.cat((-rotated[..., half:], rotated[..., :half]), -1)
        rotated = (rotated * cos + turned * sin).transpose(1, 2)
        query, key = rotated[:, :heads], rotated[:, heads:]
        value = every[:, :, heads + groups :].transpose(1, 2)
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        found = _attended(query, key, value).reshape(batch, count, -1)
        return linear(found, layer.output, layer.output_bias), (key, value)


def can_be_fused(model: Any) -> bool:
    """Whether `FusedForward` computes what this model does: it is of one of `FAMILIES`, in plain
    weights on the processor, has the same attention in all layers, and is not too large."""
    config = model.config
    if config.model_type not in FAMILIES:
        return False
    layers, weight = model.base_model.layers, next(model.parameters())
    return (
        weight.device.type == "cpu"
        and sum(one.nbytes for one in layers.parameters()) <= MOST_BYTES
        and all(getattr(config, name, None) is None for name in OTHER_RULES)
        and getattr(config, "hidden_act", "silu") == "silu"
        and not getattr(config, "mlp_bias", False)
        and all(_is_plain(layer, weight.dtype) for layer in layers)
    )


def _is_plain(layer: nn.Module, dtype: torch.dtype) -> bool:
    """Whether all weights are of one type on the processor, in layers of torch itself; what is
    quantised, or moved there when it is called, is not."""
    linears = [one for name, one in layer.named_modules() if name.endswith("_proj")]
    return all(type(one) is nn.Linear for one in linears) and all(
        is_plain(one) and one.dtype == dtype and one.device.type == "cpu"
        for one in layer.parameters()
    )


def _fused(layer: Any, added: dict[nn.Module, tuple[Tensor, Tensor]]) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    three = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [one.bias for one in three]

    def weights(*parts: Any) -> Tensor:
        if len(parts) == 1 and parts[0] not in added:
            alone: Tensor = parts[0].weight.detach()
            return alone
        sizes = [part.weight.shape[0] for part in parts]
        out: Tensor = parts[0].weight.new_empty(sum(sizes), parts[0].weight.shape[1])
        for part, rows in zip(parts, torch.split(out, sizes), strict=True):
            if part in added:
                a, b = (matrix.to(part.weight) for matrix in added[part])
                torch.addmm(part.weight, b, a, out=rows)
            else:
                rows.copy_(part.weight)
        return out

    return FusedLayer(
        before_attention=layer.input_layernorm.weight,
        projection=weights(*three),
        projection_bias=None if biases[0] is None else torch.cat(biases),
        query_norm=getattr(getattr(attention, "q_norm", None), "weight", None),
        key_norm=getattr(getattr(attention, "k_norm", None), "weight", None),
        output=weights(attention.o_proj),
        output_bias=attention.o_proj.bias,
        before_mlp=layer.post_attention_layernorm.weight,
        gate=weights(mlp.gate_proj),
        up=weights(mlp.up_proj),
        down=weights(mlp.down_proj),
    )


def _attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(B, T, H, D) of queries (B, H, T, D) at the end of the keys and values (B, G, N, D)."""
    if query.dtype == torch.bfloat16:
        return causal_attention(query, key, value)
    count, length = query.shape[2], key.shape[2]
    mask = None
    if 1 < count < length:
        mask = torch.ones(count, length, dtype=torch.bool).tril(length - count)
    found = scaled_dot_product_attention(
        query, key, value, mask, is_causal=count == length > 1, enable_gqa=True
    )
    return found.transpose(1, 2)
