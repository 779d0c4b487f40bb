"""What distinguishes each layer's attention, by its family, configuration and torch modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from esa_cli.attention.rope import Angles, NoRope, Rope, WeightedRope
from esa_cli.errors import ModelError
from esa_cli.models.files import families
from esa_cli.models.files.families import Family, family_of, layer_types, source_layers
from esa_cli.models.text_passes.small_decoder import is_plain

if TYPE_CHECKING:
    from esa_cli.attention.layer import Temperature

_ATTENTION = ("self_attn", "mixer", "attention")
"""What layers name their attention."""


def attention_modules(model: Any) -> list[Any | None]:
    """The attention modules in the order in which they run; None: a layer has none."""
    name, modules = family_of(model.config).projections[-1], list[Any | None]()
    readers = source_layers(model.config)
    for layer in model.base_model.layers:
        own = next((getattr(layer, one) for one in _ATTENTION if hasattr(layer, one)), None)
        for module in own if isinstance(own, nn.ModuleList) else [own]:
            attends = hasattr(module, name) or len(modules) in readers
            modules.append(module if attends else None)
    return modules


def row_layers(model: Any) -> list[int]:
    """Indices of the layers that keep keys and values."""
    readers, modules = source_layers(model.config), enumerate(attention_modules(model))
    return [i for i, module in modules if module is not None and i not in readers]


def projections(model: Any) -> list[list[Any]]:
    """The modules that make queries, keys and values, of each layer that keeps keys."""
    names, modules = family_of(model.config).projections, attention_modules(model)
    layers = [[getattr(modules[i], name, None) for name in names] for i in row_layers(model)]
    return [[part for part in parts if part is not None] for parts in layers]


def plain_weight(module: Any) -> Tensor | None:
    """A module's weight if it is a plain floating-point tensor, else None."""
    weight = getattr(module, "weight", None)
    return weight.detach() if isinstance(weight, Tensor) and is_plain(weight) else None


def kv_dtype(model: Any) -> torch.dtype:
    """The type of keys and values: that of the value projections, or the model's where these are
    quantised. Raises ModelError: it is not the same in all layers."""
    weights = [plain_weight(part[-1]) for part in projections(model)]
    types = {model.dtype if weight is None else weight.dtype for weight in weights}
    if len(types) > 1:
        kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in types))
        raise ModelError(
            f"the layers of this model compute in different types ({kinds})",
            "load it in one with `dtype`, or ask without a library",
        )
    return types.pop()


@dataclass(frozen=True)
class LayerTraits:
    """What one layer's attention computes; equal layers share the embedding.

    Args:
        rope: its rotary embedding. scale: its factor of q . k. cap: its soft cap of logits.
        window: W of a layer that attends to the last W tokens; None: it runs the method.
        temperature: factors (n,) by which the model multiplies queries at positions (n,).
    """

    rope: Rope
    scale: float
    window: int | None = None
    cap: float = 0.0
    temperature: Temperature | None = None


def layer_traits(
    config: Any, rotary: nn.Module | None, modules: Sequence[Any | None]
) -> list[LayerTraits | None]:
    """The traits of each layer; None where it has no attention module."""
    family, types = family_of(config), layer_types(config)
    cap = float(getattr(config, family.attention_cap or "", None) or 0.0)
    unrotated, temperature = NoRope(), _temperature(config)
    attending = {*types} & {*families.ATTENTION_TYPES} if rotary is not None else ()
    ropes = {kind: _rope(config, family, rotary, kind) for kind in attending}
    traits = list[LayerTraits | None]()
    windows, rotating = families.layer_windows(config), _rotating(config, family)
    for module, kind, window, rotates in zip(modules, types, windows, rotating, strict=True):
        rope = ropes.get(kind, unrotated) if rotates else unrotated
        if module is not None and rotates and family.norms_after is not None:
            query, key = (getattr(module, name).weight for name in family.norms_after)
            rope = WeightedRope(rope, query, key)
        traits.append(module and LayerTraits(rope, float(module.scaling), window, cap, temperature))
    return traits


def _rotating(config: Any, family: Family) -> list[bool]:
    """Whether each layer rotates queries and keys."""
    types = layer_types(config)
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


def _temperature(config: Any) -> Temperature | None:
    """Of a model whose queries grow with the logarithm of their position (Ministral 3)."""
    parameters = getattr(config, "rope_parameters", None) or {}
    beta = parameters.get("llama_4_scaling_beta")
    if beta is None:
        return None
    original = parameters["original_max_position_embeddings"]
    return lambda at: 1 + beta * torch.log1p(torch.floor(at / original))


def _rope(config: Any, family: Family, rotary: Any, kind: str) -> Rope:
    """The rotary embedding of a model's layers of one type, the same for every length."""
    if hasattr(rotary, f"{kind}_inv_freq"):
        names = (f"{kind}_inv_freq", f"{kind}_attention_scaling")
        inverse, factor = (getattr(rotary, name) for name in names)
    elif "longrope" in families.rope_types(config):
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        # Of the two sets between which transformers switches at the original length, the one for
        # long texts: cached keys are rotated by one set alone.
        original = config.rope_parameters["original_max_position_embeddings"]
        device = rotary.inv_freq.device
        inverse, factor = ROPE_INIT_FUNCTIONS["longrope"](config, device, seq_len=original + 1)
    elif family.pairs == "half" and not (family.half_table or family.complex_table):
        return Rope(rotary)
    else:  # some modules compute the angles of pairs side by side, or once
        inverse, factor = rotary.inv_freq, rotary.attention_scaling
    return Rope(Angles(inverse, float(factor)), pairs=family.pairs)


class LatentHeads:
    """Attention over latents (MLA: DeepSeek and its kin) in absorbed form: the projections A and
    B of one attention module's heads.

    All heads share a token's row: R dimensions of the key that rotate, then its latent c. With a
    head's projections A (N, L) to the rest of its key and B (V, L) to its value,

        q . k          =  q_rotary . row_rotary + (A^T q_rest) . c
        sum_i a_i v_i  =  B sum_i a_i c_i

    so methods select by rows and attend to rows, as with one key head that is the values, too.
    Raises ModelError: the projections have a bias.

    Args:
        module: with `kv_b_proj`, from a latent to all heads' keys and values. Where that is
            quantised, its dequantised weight is kept.
    """

    def __init__(self, module: Any) -> None:
        self._projection: nn.Module = module.kv_b_proj
        self._heads, self._latent = int(module.num_heads), int(module.kv_lora_rank)
        self._rest, self._rotary = int(module.qk_nope_head_dim), int(module.qk_rope_head_dim)
        self._dequantised: Tensor | None = None
        if getattr(self._projection, "bias", None) is not None:
            raise ModelError(
                "the projection of latents to keys must have no bias, got one",
                "use a model of another family",
            )

    def queries(self, q: Tensor) -> Tensor:
        """Queries (H, C, N + R), the rotary part last, as (H, C, R + L): for rows."""
        rest, rotary = torch.split(q, [self._rest, self._rotary], dim=-1)
        return torch.cat((rotary, rest @ self._projections(q)[:, : self._rest]), dim=-1)

    def outputs(self, rows: Tensor) -> Tensor:
        """Weighted sums of rows (H, C, R + L) as weighted sums of values (H, C, V)."""
        latents = rows[..., self._rotary :]
        return latents @ self._projections(rows)[:, self._rest :].transpose(1, 2)

    def _projections(self, like: Tensor) -> Tensor:
        """A above B of each head, (H, N + V, L)."""
        projection, weight = self._projection, self._dequantised
        adapted = bool(projection._forward_hooks)  # an adapter's output is not there for good
        if type(projection) is nn.Linear and not adapted:
            weight = plain_weight(projection)
        if weight is None or weight.is_meta or adapted:
            unit = torch.eye(self._latent, dtype=like.dtype, device=like.device)
            weight = projection(unit).T.contiguous()
            self._dequantised = self._dequantised if adapted else weight
        return weight.view(self._heads, -1, self._latent)
