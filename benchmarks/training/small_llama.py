"""A forward pass of small Llama models for training, which adds LoRA matrices to the weights once a
step in place of a product of each layer with each input, and compiles the layers on a GPU.

Letters: B sequences, T tokens, H the hidden size, L layers, r the rank of the LoRA matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from esa_cli.errors import ModelError
from esa_cli.models.text_passes.text_forward import (
    LoraAdapter,
    get_head_dimension,
    normalise_hidden_states,
)

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
MATRICES = (*(f"self_attn.{name}" for name in ATTENTION), *(f"mlp.{name}" for name in MLP))
"""The names of a layer's matrices."""


class LayerWeights(NamedTuple):
    """The weights of a layer, with the projections that have one input in one matrix."""

    before_attention: Tensor
    query_key_value: Tensor
    output: Tensor
    before_mlp: Tensor
    gate_up: Tensor
    down: Tensor


class LayerSizes(NamedTuple):
    """The numbers of query heads and of key heads, their dimension, and the norms' epsilon."""

    heads: int
    groups: int
    dim: int
    eps: float


def compute_layer(
    x: Tensor, weights: LayerWeights, sizes: LayerSizes, rope: tuple[Tensor, Tensor],
    mask: Tensor | None,
) -> Tensor:  # fmt: skip
    """Returns the hidden states (B, T, H) after a layer.

    Args:
        rope: cosines and sines, (1, 1, T, D).
        mask: (B, 1, 1, T), whether a token is attended to by all others; None: attention is causal.
    """
    batch, count, hidden = x.shape
    heads, groups, dim, eps = sizes
    wide = rms_norm(x, (hidden,), weights.before_attention, eps)
    products = linear(wide, weights.query_key_value).view(batch, count, heads + 2 * groups, dim)
    products = products.transpose(1, 2)
    turn, half = products[:, : heads + groups], dim // 2
    turn = turn * rope[0] + torch.cat((-turn[..., half:], turn[..., :half]), -1) * rope[1]

    def repeat(one: Tensor) -> Tensor:
        shape = (batch, groups, heads // groups, count, dim)
        return one[:, :, None].expand(shape).reshape(batch, heads, count, dim)

    query, key, value = turn[:, :heads], repeat(turn[:, heads:]), repeat(products[:, -groups:])
    if mask is not None and x.device.type == "cpu":
        # The gradient of torch's own attention in bfloat16 takes two to three times as long here.
        bias = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, -torch.inf)
        scores = ((query * dim**-0.5) @ key.transpose(-1, -2)).add_(bias)
        output = scores.softmax(-1) @ value
    else:
        output = scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
    x = x + linear(output.transpose(1, 2).reshape(batch, count, heads * dim), weights.output)
    wide = rms_norm(x, (hidden,), weights.before_mlp, eps)
    gate, up = linear(wide, weights.gate_up).chunk(2, -1)
    return x + linear(silu(gate) * up, weights.down)


class SmallLlama(nn.Module):
    """The first layers of a Llama model with fixed weights, a LoRA adapter and a head to train.

    Args:
        model: of transformers. layers: how many of its first layers run.
        adapter: the untrained adapter of all matrices of these layers.
        head: the other tensors to train, by name.
        compiled: whether the layers are compiled, which pays on a GPU.

    Raises ModelError: the model has another architecture.
    """

    def __init__(
        self, model: Any, layers: int, adapter: LoraAdapter, head: Mapping[str, Tensor],
        compiled: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        config, first = model.config, model.base_model.layers[:layers]
        if config.model_type != "llama" or config.attention_bias or config.mlp_bias:
            raise ModelError(
                f"the model to train must be a Llama without biases, got {config.model_type}",
                "use the default model",
            )
        self.device: torch.device = model.device
        self.compiled = compiled
        self._compute_layer = compute_layer
        if compiled:
            self._compute_layer = torch.compile(compute_layer, dynamic=False)
        self._sizes = LayerSizes(
            config.num_attention_heads, config.num_key_value_heads, get_head_dimension(config),
            config.rms_norm_eps,
        )  # fmt: skip
        # In a tuple, so that the model's weights are not among those to train.
        self._model = (model,)
        self._scale = adapter.scale
        self._norms = [
            (one.input_layernorm.weight.detach(), one.post_attention_layernorm.weight.detach())
            for one in first
        ]
        self._weights: dict[str, Tensor] = {}
        self.a, self.b, self.head = nn.ParameterDict(), nn.ParameterDict(), nn.ParameterDict()
        for name in MATRICES:
            own = torch.stack([one.get_submodule(name).weight.detach() for one in first])
            pairs = [adapter.matrices[self._name(n, name)] for n in range(layers)]
            key = name.rpartition(".")[2]
            self._weights[key] = own
            for part, half in ((self.a, 0), (self.b, 1)):
                stack = torch.stack([pair[half].detach() for pair in pairs])
                part[key] = nn.Parameter(stack.to(self.device, torch.float32))
        for name, one in head.items():
            start = one.detach().to(self.device, torch.float32, copy=True)
            self.head[name] = nn.Parameter(start)

    def merge_weights(self) -> list[LayerWeights]:
        """Returns the weights of the layers with the LoRA matrices added."""
        full = {}
        for key, own in self._weights.items():
            low_rank = torch.bmm((self._scale * self.b[key]).to(own), self.a[key].to(own))
            full[key] = own + low_rank
        # The gradient of `unbind` is one tensor; that of an index is a sum of one a layer.
        wide = torch.cat([full[name] for name in ATTENTION[:3]], 1).unbind()
        gate_up = torch.cat([full[name] for name in MLP[:2]], 1).unbind()
        output, down = full["o_proj"].unbind(), full["down_proj"].unbind()
        return [
            LayerWeights(before, wide[n], output[n], after, gate_up[n], down[n])
            for n, (before, after) in enumerate(self._norms)
        ]

    def compute_states(
        self, weights: list[LayerWeights], ids: Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        """Returns the hidden states (B, T, H) of token ids (B, T) after the last of the layers, as
        float32 and divided by their root mean square.

        Args:
            lengths: (B,), tokens of each sequence, all of which see each other; None: tokens see
                those before them.
        """
        base = self._model[0].base_model
        x, places = embedding(ids, base.embed_tokens.weight), torch.arange(ids.shape[1])
        places = places.to(self.device)
        cos, sin = base.rotary_emb(x, places[None])
        mask = None
        if lengths is not None:
            # An empty sequence sees its first token: attention to nothing is no number.
            mask = ((places < lengths[:, None]) | (places == 0))[:, None, None]
        for layer in weights:
            x = self._compute_layer(x, layer, self._sizes, (cos[:, None], sin[:, None]), mask)
        return normalise_hidden_states(x)

    def make_adapter(self) -> LoraAdapter:
        """Returns the trained adapter of the model."""
        matrices = {
            self._name(n, name): (self.a[key].detach()[n], self.b[key].detach()[n])
            for name in MATRICES
            for key in [name.rpartition(".")[2]]
            for n in range(len(self._norms))
        }
        return LoraAdapter(self._model[0], matrices, self._scale)

    @staticmethod
    def _name(layer: int, matrix: str) -> str:
        return f"model.layers.{layer}.{matrix}"
