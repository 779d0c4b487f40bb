"""Finds how attention differs between a model's layers, such as in rotary embedding and window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from esa_cli.attention.rope import FixedFrequencyRotaryModule, NormWeightedRope, NoRope, Rope
from esa_cli.errors import ModelError
from esa_cli.models.files import families
from esa_cli.models.files.families import ModelFamily
from esa_cli.models.text_passes.text_forward import is_unquantised_weight

if TYPE_CHECKING:
    from esa_cli.attention.layer import Temperature

_ATTENTION = ("self_attn", "mixer", "attention")
"""The possible names of a layer's attention module."""


def list_attention_modules(model: Any) -> list[Any | None]:
    """Returns each layer's attention module, or None for a layer without attention."""
    name, modules = families.get_model_family(model.config).projections[-1], list[Any | None]()
    readers = families.map_key_source_layers(model.config)
    for layer in model.base_model.layers:
        own = next((getattr(layer, one) for one in _ATTENTION if hasattr(layer, one)), None)
        for module in own if isinstance(own, nn.ModuleList) else [own]:
            attends = hasattr(module, name) or len(modules) in readers
            modules.append(module if attends else None)
    return modules


def list_kv_layers(model: Any) -> list[int]:
    """Returns the indices of the layers of a model that store keys and values."""
    readers = families.map_key_source_layers(model.config)
    modules = enumerate(list_attention_modules(model))
    return [i for i, module in modules if module is not None and i not in readers]


def list_qkv_projections(model: Any) -> list[list[Any]]:
    """Returns the query, key and value projections of each layer that stores keys."""
    names = families.get_model_family(model.config).projections
    modules = list_attention_modules(model)
    layers = [[getattr(modules[i], name, None) for name in names] for i in list_kv_layers(model)]
    return [[part for part in parts if part is not None] for parts in layers]


def get_unquantised_weight(module: Any) -> Tensor | None:
    """Returns the weight of a torch module, or None if the weight is quantised or missing."""
    weight = getattr(module, "weight", None)
    return weight.detach() if isinstance(weight, Tensor) and is_unquantised_weight(weight) else None


def get_kv_dtype(model: Any) -> torch.dtype:
    """Returns the number type of a model's keys and values: the type of the value projections, or
    the model's type if these are quantised. Raises ModelError: layers differ in type."""
    weights = [get_unquantised_weight(part[-1]) for part in list_qkv_projections(model)]
    types = {model.dtype if weight is None else weight.dtype for weight in weights}
    if len(types) > 1:
        kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in types))
        raise ModelError(
            f"the layers of this model compute in different number types ({kinds})",
            "load all layers in one dtype, or ask without storing KV caches in a library",
        )
    return types.pop()


@dataclass(frozen=True)
class AttentionTraits:
    """What distinguishes one layer's attention, such as the rotary embedding and the window."""

    rope: Rope
    scale: float  # the factor of the attention logits q · k
    window: int | None = None  # the number of last tokens to which the layer attends; None: all
    cap: float = 0.0  # the soft cap of the attention logits, or 0 for none
    temperature: Temperature | None = None  # from positions (n,) to factors (n,) of the queries


def make_attention_traits(
    config: Any, rotary_module: nn.Module | None, attention_modules: Sequence[Any | None]
) -> list[AttentionTraits | None]:
    """Returns each layer's attention traits, or None for a layer without attention."""
    family, types = families.get_model_family(config), families.list_layer_types(config)
    cap = float(getattr(config, family.attention_cap or "", None) or 0.0)
    unrotated, temperature = NoRope(), _make_query_scaling_function(config)
    attending = {*types} & {*families.ATTENTION_TYPES} if rotary_module is not None else ()
    ropes = {kind: _make_rope(config, family, rotary_module, kind) for kind in attending}
    traits = list[AttentionTraits | None]()
    windows, rotating = families.list_sliding_windows(config), _find_rotating_layers(config, family)
    each = zip(attention_modules, types, windows, rotating, strict=True)
    for module, kind, window, rotates in each:
        rope = ropes.get(kind, unrotated) if rotates else unrotated
        if module is not None and rotates and family.norms_after is not None:
            query, key = (getattr(module, name).weight for name in family.norms_after)
            rope = NormWeightedRope(rope, query, key)
        scale = float(module.scaling) if module else 1.0
        traits.append(module and AttentionTraits(rope, scale, window, cap, temperature))
    return traits


def _find_rotating_layers(config: Any, family: ModelFamily) -> list[bool]:
    types = families.list_layer_types(config)
    sliding, rule = [kind == "sliding_attention" for kind in types], family.rotating
    if rule == "hybrid":
        rule = "sliding" if config.sliding_window is not None else ""
    if rule == "sliding":
        return sliding
    if rule == "prefix":
        dense = config.prefix_dense_sliding_window_pattern == 1
        each = zip(sliding, config.mlp_layer_types, strict=True)
        return [slides or (dense and mlp == "dense") for slides, mlp in each]
    return [bool(one) for one in getattr(config, rule)] if rule else [True] * len(types)


def _make_query_scaling_function(config: Any) -> Temperature | None:
    """Returns the `temperature` of models whose queries grow with the position, as Ministral 3."""
    parameters = getattr(config, "rope_parameters", None) or {}
    beta = parameters.get("llama_4_scaling_beta")
    if beta is None:
        return None
    original = parameters["original_max_position_embeddings"]
    return lambda positions: 1 + beta * torch.log1p(torch.floor(positions / original))


def _make_rope(config: Any, family: ModelFamily, rotary_module: Any, layer_type: str) -> Rope:
    if hasattr(rotary_module, f"{layer_type}_inv_freq"):
        names = (f"{layer_type}_inv_freq", f"{layer_type}_attention_scaling")
        inverse, factor = (getattr(rotary_module, name) for name in names)
    elif "longrope" in families.list_rope_types(config):
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        # Of the two sets between which transformers switches at the original length, the one for
        # long texts: cached keys are rotated by one set alone.
        original = config.rope_parameters["original_max_position_embeddings"]
        device = rotary_module.inv_freq.device
        inverse, factor = ROPE_INIT_FUNCTIONS["longrope"](config, device, seq_len=original + 1)
    elif family.pairs == "half" and not (family.half_table or family.complex_table):
        return Rope(rotary_module)
    else:  # some modules compute the angles of pairs side by side, or once
        inverse, factor = rotary_module.inv_freq, rotary_module.attention_scaling
    return Rope(FixedFrequencyRotaryModule(inverse, float(factor)), pairs=family.pairs)


class LatentProjections:
    """The projections between heads and latents in multi-head latent attention (MLA, as in
    DeepSeek), by which attention is computed over the latents instead of keys and values.

    All heads of an MLA layer share one vector for each token, which consists of R rotary dimensions
    of the key and a latent c (L,). A head's matrix A (N, L) projects c to the rest of the key, and
    B (V, L) projects c to the value, so attention over keys and values equals attention over the
    shared vectors, as if they were one key head and also its values:

        q · k          =  q_rotary · k_rotary + (A^T q_rest) · c
        sum_i a_i v_i  =  B sum_i a_i c_i

    `module` is an attention module with `kv_b_proj`. Raises ModelError: that has a bias."""

    def __init__(self, module: Any) -> None:
        self._projection: nn.Module = module.kv_b_proj
        self._heads, self._latent = int(module.num_heads), int(module.kv_lora_rank)
        self._rest, self._rotary = int(module.qk_nope_head_dim), int(module.qk_rope_head_dim)
        self._dequantised: Tensor | None = None
        if getattr(self._projection, "bias", None) is not None:
            hint = "use a model of another family without MLA"
            raise ModelError("the projection from MLA latents to keys must have no bias", hint)

    def project_queries(self, queries: Tensor) -> Tensor:
        """Converts queries (H, C, N + R) of H heads and C tokens, with R rotary dimensions at the
        end, to queries (H, C, R + L) over MLA latents of L dimensions."""
        rest, rotary = torch.split(queries, [self._rest, self._rotary], dim=-1)
        absorbed = rest @ self._get_kv_matrices(queries)[:, : self._rest]
        return torch.cat((rotary, absorbed), dim=-1)

    def project_sums_to_values(self, weighted_sums: Tensor) -> Tensor:
        """Converts weighted sums of latents (H, C, R + L) to weighted sums of values (H, C, V)."""
        latents = weighted_sums[..., self._rotary :]
        return latents @ self._get_kv_matrices(weighted_sums)[:, self._rest :].transpose(1, 2)

    def _get_kv_matrices(self, dtype_example: Tensor) -> Tensor:
        """Returns matrices (H, N + V, L) from latents to each head's unrotated key and value."""
        projection, weight = self._projection, self._dequantised
        adapted = bool(projection._forward_hooks)  # an adapter's output is not there for good
        if type(projection) is nn.Linear and not adapted:
            weight = get_unquantised_weight(projection)
        if weight is None or weight.is_meta or adapted:
            unit = torch.eye(self._latent, dtype=dtype_example.dtype, device=dtype_example.device)
            weight = projection(unit).T.contiguous()
            self._dequantised = self._dequantised if adapted else weight
        return weight.view(self._heads, -1, self._latent)
