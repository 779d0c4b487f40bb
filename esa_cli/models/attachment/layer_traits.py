"""The traits that distinguish each layer's attention, according to the model family, the
configuration and the torch modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from esa_cli.attention.rope import FixedFrequencyRotaryModule, NormWeightedRope, NoRope, Rope
from esa_cli.errors import ModelError
from esa_cli.models.files import families
from esa_cli.models.files.families import (
    ModelFamily,
    get_model_family,
    list_layer_types,
    map_key_sources,
)
from esa_cli.models.text_passes.text_forward import is_unquantised_weight

if TYPE_CHECKING:
    from esa_cli.attention.layer import Temperature

_ATTENTION = ("self_attn", "mixer", "attention")
"""The possible names of a layer's attention module."""


def list_attention_modules(model: Any) -> list[Any | None]:
    """Returns the attention module of each layer of a model, or None for a layer without one."""
    name, modules = get_model_family(model.config).projections[-1], list[Any | None]()
    readers = map_key_sources(model.config)
    for layer in model.base_model.layers:
        own = next((getattr(layer, one) for one in _ATTENTION if hasattr(layer, one)), None)
        for module in own if isinstance(own, nn.ModuleList) else [own]:
            attends = hasattr(module, name) or len(modules) in readers
            modules.append(module if attends else None)
    return modules


def list_kv_layers(model: Any) -> list[int]:
    """Returns the indices of the layers that store keys and values."""
    readers, modules = map_key_sources(model.config), enumerate(list_attention_modules(model))
    return [i for i, module in modules if module is not None and i not in readers]


def list_qkv_projections(model: Any) -> list[list[Any]]:
    """Returns each key-storing layer's modules that compute queries, keys and values."""
    names, modules = get_model_family(model.config).projections, list_attention_modules(model)
    layers = [[getattr(modules[i], name, None) for name in names] for i in list_kv_layers(model)]
    return [[part for part in parts if part is not None] for parts in layers]


def get_unquantised_weight(module: Any) -> Tensor | None:
    """Returns a module's weight if the weight is an unquantised tensor, else None."""
    weight = getattr(module, "weight", None)
    return weight.detach() if isinstance(weight, Tensor) and is_unquantised_weight(weight) else None


def get_kv_dtype(model: Any) -> torch.dtype:
    """Returns the number type of a model's keys and values, which is the type of the value
    projections, or of the model if they are quantised. Raises ModelError: layers differ in type."""
    weights = [get_unquantised_weight(part[-1]) for part in list_qkv_projections(model)]
    types = {model.dtype if weight is None else weight.dtype for weight in weights}
    if len(types) > 1:
        kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in types))
        raise ModelError(
            f"the layers of this model compute in different number types ({kinds})",
            "load the model in one type by `dtype`, or ask without a library",
        )
    return types.pop()


@dataclass(frozen=True)
class LayerTraits:
    """The traits of one layer's attention; layers with equal traits share one attention function.

    Args:
        rope: the rotary embedding. scale: the factor of the logits q . k. cap: the soft cap of the
            logits. window: the number of last tokens to which the layer attends, or None if it runs
            the method. temperature: a function from positions (n,) to factors (n,) of the queries.
    """

    rope: Rope
    scale: float
    window: int | None = None
    cap: float = 0.0
    temperature: Temperature | None = None


def make_layer_traits(
    config: Any, rotary_module: nn.Module | None, modules: Sequence[Any | None]
) -> list[LayerTraits | None]:
    """Returns the attention traits of each layer, or None for a layer without attention."""
    family, types = get_model_family(config), list_layer_types(config)
    cap = float(getattr(config, family.attention_cap or "", None) or 0.0)
    unrotated, temperature = NoRope(), _make_query_temperature(config)
    attending = {*types} & {*families.ATTENTION_TYPES} if rotary_module is not None else ()
    ropes = {kind: _make_rope(config, family, rotary_module, kind) for kind in attending}
    traits = list[LayerTraits | None]()
    windows, rotating = families.list_window_sizes(config), _find_rotating_layers(config, family)
    for module, kind, window, rotates in zip(modules, types, windows, rotating, strict=True):
        rope = ropes.get(kind, unrotated) if rotates else unrotated
        if module is not None and rotates and family.norms_after is not None:
            query, key = (getattr(module, name).weight for name in family.norms_after)
            rope = NormWeightedRope(rope, query, key)
        traits.append(module and LayerTraits(rope, float(module.scaling), window, cap, temperature))
    return traits


def _find_rotating_layers(config: Any, family: ModelFamily) -> list[bool]:
    """Returns, for each layer, whether the layer rotates queries and keys."""
    types = list_layer_types(config)
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


def _make_query_temperature(config: Any) -> Temperature | None:
    """Returns a function from positions to factors of the queries, for models whose queries grow
    with the logarithm of their position (Ministral 3), or None for other models."""
    parameters = getattr(config, "rope_parameters", None) or {}
    beta = parameters.get("llama_4_scaling_beta")
    if beta is None:
        return None
    original = parameters["original_max_position_embeddings"]
    return lambda at: 1 + beta * torch.log1p(torch.floor(at / original))


def _make_rope(config: Any, family: ModelFamily, rotary_module: Any, layer_type: str) -> Rope:
    """Returns the rotary embedding of the layers of type `layer_type`, for texts of any length."""
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
    """The projections of one attention module between heads and latents (multi-head latent
    attention, MLA, as in DeepSeek), by which attention is computed over the latents themselves.

    All heads share one vector for each token: R rotary dimensions of the key, followed by its
    latent c. With a head's projections A (N, L) to the rest of its key and B (V, L) to its value,

        q · k          =  q_rotary · row_rotary + (A^T q_rest) · c
        sum_i a_i v_i  =  B sum_i a_i c_i

    so methods select and attend as if the shared vectors were one key head and also its values.
    Raises ModelError: the projections have a bias.

    Args:
        module: an attention module with `kv_b_proj`, the projection from a latent to all heads'
            keys and values. Of a quantised `kv_b_proj`, the dequantised weight is stored."""

    def __init__(self, module: Any) -> None:
        self._projection: nn.Module = module.kv_b_proj
        self._heads, self._latent = int(module.num_heads), int(module.kv_lora_rank)
        self._rest, self._rotary = int(module.qk_nope_head_dim), int(module.qk_rope_head_dim)
        self._dequantised: Tensor | None = None
        if getattr(self._projection, "bias", None) is not None:
            raise ModelError(
                "the projection of latents to keys must have no bias",
                "use a model of another family",
            )

    def project_queries(self, queries: Tensor) -> Tensor:
        """Converts queries (H, C, N + R), with the R rotary dimensions last, to queries (H, C, R +
        L) that are multiplied with the vectors that all heads share."""
        rest, rotary = torch.split(queries, [self._rest, self._rotary], dim=-1)
        absorbed = rest @ self._get_projections(queries)[:, : self._rest]
        return torch.cat((rotary, absorbed), dim=-1)

    def expand_to_values(self, weighted_sums: Tensor) -> Tensor:
        """Converts weighted sums of shared vectors (H, C, R + L) to weighted sums of values
        (H, C, V)."""
        latents = weighted_sums[..., self._rotary :]
        return latents @ self._get_projections(weighted_sums)[:, self._rest :].transpose(1, 2)

    def _get_projections(self, type_example: Tensor) -> Tensor:
        """Returns the projections A and B of each head, concatenated to (H, N + V, L)."""
        projection, weight = self._projection, self._dequantised
        adapted = bool(projection._forward_hooks)  # an adapter's output is not there for good
        if type(projection) is nn.Linear and not adapted:
            weight = get_unquantised_weight(projection)
        if weight is None or weight.is_meta or adapted:
            unit = torch.eye(self._latent, dtype=type_example.dtype, device=type_example.device)
            weight = projection(unit).T.contiguous()
            self._dequantised = self._dequantised if adapted else weight
        return weight.view(self._heads, -1, self._latent)
