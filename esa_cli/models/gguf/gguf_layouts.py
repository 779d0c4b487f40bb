"""Weights that GGUF files have in other pieces, another order or another form than transformers.

The functions run on tensors without memory (`meta`), too, by which sizes are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class WeightLayout:
    """How weights of layers are made.

    Args:
        end: of their names. sources: tensors of the layer, without `blk.N.`.
        make: from these and the model's configuration -> the weight.
    """

    end: str
    sources: tuple[str, ...]
    make: Callable[[Sequence[Tensor], Any], Tensor]


def alone(parts: Sequence[Tensor], config: Any) -> Tensor:
    """The tensor as it is."""
    return parts[0]


def stacked(parts: Sequence[Tensor], config: Any) -> Tensor:
    """Tensors (..., n, m), one above the other."""
    return torch.cat(tuple(parts), -2)


def one_row(parts: Sequence[Tensor], config: Any) -> Tensor:
    """A vector (n,), which llama.cpp makes of a matrix, as (1, n)."""
    return parts[0].reshape(1, -1)


def flat(parts: Sequence[Tensor], config: Any) -> Tensor:
    """As a vector: llama.cpp divides some by heads or groups."""
    return parts[0].reshape(-1)


def channels(parts: Sequence[Tensor], config: Any) -> Tensor:
    """A convolution of each channel (n, width) as (n, 1, width)."""
    return parts[0].unsqueeze(1)


def logarithm(parts: Sequence[Tensor], config: Any) -> Tensor:
    """`A_log` (heads,), of which llama.cpp keeps -exp."""
    return torch.log(-parts[0].reshape(-1))


def between(parts: Sequence[Tensor], config: Any) -> Tensor:
    """Gates and values of gpt-oss' experts side by side, in turns: weights 2 x (experts, inner,
    hidden) -> (experts, hidden, 2 inner); biases 2 x (experts, inner) -> (experts, 2 inner)."""
    turns = torch.stack(tuple(parts), 2).flatten(1, 2)
    return turns.transpose(1, 2) if turns.dim() > 2 else turns


def turned(parts: Sequence[Tensor], config: Any) -> Tensor:
    """Experts (experts, n, m) as (experts, m, n)."""
    return parts[0].transpose(1, 2)


def by_heads(parts: Sequence[Tensor], config: Any) -> Tensor:
    """Rows of queries, keys, values and gates that Qwen3-Next has together for each key head; the
    file has those of all heads of a kind together, the gates by themselves."""
    heads = config.linear_num_key_heads
    keys = heads * config.linear_key_head_dim
    joined, gates = parts
    each = (joined[:keys], joined[keys : 2 * keys], joined[2 * keys :], gates)
    rows = [one.reshape(heads, -1, one.shape[-1]) for one in each]
    return torch.cat(rows, 1).flatten(0, 1)


def _grouped(part: Tensor, config: Any) -> Tensor:
    """Rows of all value heads in transformers' order, in which those of a key head are neighbours;
    llama.cpp has the first of each key head, then the second."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    rows = part.reshape(values // keys, keys, -1, *part.shape[1:])
    return rows.transpose(0, 1).reshape(part.shape)


def value_heads(parts: Sequence[Tensor], config: Any) -> Tensor:
    """Qwen3.5's rows of values, gates and steps."""
    return _grouped(parts[0], config)


def value_columns(parts: Sequence[Tensor], config: Any) -> Tensor:
    """Qwen3.5's matrix behind the value heads."""
    return _grouped(parts[0].T, config).T


def values_behind(parts: Sequence[Tensor], config: Any) -> Tensor:
    """Qwen3.5's queries, keys and values, of which the last are in another order."""
    keys = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    return torch.cat((parts[0][:keys], _grouped(parts[0][keys:], config)))


def convolved_values(parts: Sequence[Tensor], config: Any) -> Tensor:
    """The convolution over `values_behind`."""
    return values_behind(parts, config).unsqueeze(1)


def value_logarithm(parts: Sequence[Tensor], config: Any) -> Tensor:
    """`A_log` of Qwen3.5's value heads."""
    return _grouped(logarithm(parts, config), config)


def keys_and_values(parts: Sequence[Tensor], config: Any) -> Tensor:
    """What makes keys and values of latents, row by row of each head: (heads, latent, keys) and
    (heads, values, latent) as (heads x (keys + values), latent)."""
    return torch.cat((parts[0].transpose(1, 2), parts[1]), 1).flatten(0, 1)


def of_each_head(parts: Sequence[Tensor], config: Any) -> Tensor:
    """Rows of queries, keys and values that GPT-NeoX has together for each head; the file has those
    of all heads of a kind together."""
    heads = parts[0].reshape(3, config.num_attention_heads, -1, *parts[0].shape[1:])
    return heads.transpose(0, 1).reshape(parts[0].shape)


COMMON = (
    WeightLayout("experts.gate_up_proj", ("ffn_gate_exps.weight", "ffn_up_exps.weight"), stacked),
    WeightLayout("experts.down_proj", ("ffn_down_exps.weight",), alone),
    WeightLayout("block_sparse_moe.router.weight", ("ffn_gate_inp.weight",), alone),
    WeightLayout("shared_expert_gate.weight", ("ffn_gate_inp_shexp.weight",), one_row),
    WeightLayout(
        "shared_mlp.input_linear.weight", ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), stacked
    ),
    WeightLayout("expert_bias", ("exp_probs_b.bias",), alone),
    WeightLayout("e_score_correction_bias", ("exp_probs_b.bias",), alone),
    WeightLayout("conv.conv.weight", ("shortconv.conv.weight",), channels),
    WeightLayout("conv1d.weight", ("ssm_conv1d.weight",), channels),
    WeightLayout("dt_bias", ("ssm_dt.bias",), alone),
    WeightLayout("A_log", ("ssm_a",), logarithm),
    WeightLayout("kv_b_proj.weight", ("attn_k_b.weight", "attn_v_b.weight"), keys_and_values),
    WeightLayout("kv_b_proj.weight", ("attn_kv_b.weight",), alone),  # before they were divided
)
"""Of any architecture."""
_QWEN3_5 = (
    WeightLayout("in_proj_qkv.weight", ("attn_qkv.weight",), values_behind),
    WeightLayout("in_proj_z.weight", ("attn_gate.weight",), value_heads),
    WeightLayout("in_proj_b.weight", ("ssm_beta.weight",), value_heads),
    WeightLayout("in_proj_a.weight", ("ssm_alpha.weight",), value_heads),
    WeightLayout("dt_bias", ("ssm_dt.bias",), value_heads),
    WeightLayout("A_log", ("ssm_a",), value_logarithm),
    WeightLayout("conv1d.weight", ("ssm_conv1d.weight",), convolved_values),
    WeightLayout("linear_attn.out_proj.weight", ("ssm_out.weight",), value_columns),
)
LAYOUTS: dict[str, tuple[WeightLayout, ...]] = {
    "gpt_oss": (
        WeightLayout("sinks", ("attn_sinks.weight",), alone),
        WeightLayout(
            "experts.gate_up_proj", ("ffn_gate_exps.weight", "ffn_up_exps.weight"), between
        ),
        WeightLayout(
            "experts.gate_up_proj_bias", ("ffn_gate_exps.bias", "ffn_up_exps.bias"), between
        ),
        WeightLayout("experts.down_proj", ("ffn_down_exps.weight",), turned),
        WeightLayout("experts.down_proj_bias", ("ffn_down_exps.bias",), alone),
    ),
    "qwen3_next": (
        WeightLayout("in_proj_qkvz.weight", ("attn_qkv.weight", "attn_gate.weight"), by_heads),
    ),
    "ernie4_5_moe": (WeightLayout("e_score_correction_bias", ("exp_probs_b.bias",), one_row),),
    "gpt_neox": (
        WeightLayout("query_key_value.weight", ("attn_qkv.weight",), of_each_head),
        WeightLayout("query_key_value.bias", ("attn_qkv.bias",), of_each_head),
    ),
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": _QWEN3_5,
    "falcon_h1": (
        WeightLayout("mamba.D", ("ssm_d",), flat),
        WeightLayout("mamba.norm.weight", ("ssm_norm.weight",), flat),
        WeightLayout("pre_ff_layernorm.weight", ("ffn_norm",), alone),
    ),
    "nemotron_h": (
        WeightLayout("mixer.D", ("ssm_d",), flat),
        WeightLayout("mixer.norm.weight", ("ssm_norm.weight",), flat),
        WeightLayout("experts.up_proj", ("ffn_up_exps.weight",), alone),
    ),
    "granitemoehybrid": (
        WeightLayout("mamba.D", ("ssm_d",), flat),
        WeightLayout("mamba.norm.weight", ("ssm_norm.weight",), flat),
        # Without experts the shared one is the only MLP.
        WeightLayout(
            "shared_mlp.input_linear.weight", ("ffn_gate.weight", "ffn_up.weight"), stacked
        ),
        WeightLayout("shared_mlp.output_linear.weight", ("ffn_down.weight",), alone),
        WeightLayout(
            "shared_mlp.input_linear.weight",
            ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
            stacked,
        ),
        WeightLayout("shared_mlp.output_linear.weight", ("ffn_down_shexp.weight",), alone),
    ),
}
"""Of one `model_type`, before those of any."""
