"""What distinguishes each layer's attention, from the family's entry and a model's configuration.

`attach` asks here for each layer's rotary embedding and factor, and for what each layer keeps.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from esa_cli.attention.layer import Temperature
from esa_cli.attention.rope import Angles, NoRope, Rope, WeightedRope
from esa_cli.errors import ModelError
from esa_cli.models.attachment.inspection import plain_weight
from esa_cli.models.attachment.kv_cache import Keeps
from esa_cli.models.files import families
from esa_cli.models.files.families import Family, family_of, layer_types


@dataclass(frozen=True)
class LayerTraits:
    """What one layer's attention computes; equal layers share the embedding.

    Args:
        rope: its rotary embedding. scale: its factor of q . k.
        window: W of a layer that attends to the last W tokens, the query's own included; None: to
            all, and runs the method.
        cap: soft cap of the logits; 0: none.
        temperature: factors (n,) of queries at positions (n,), which the model multiplies them by.
    """

    rope: Rope
    scale: float
    window: int | None = None
    cap: float = 0.0
    temperature: Temperature | None = None


def layer_traits(
    config: Any, rotary: nn.Module | None, modules: Sequence[Any | None]
) -> list[LayerTraits | None]:
    """The traits of each layer; None where it has no attention.

    Args:
        rotary: the model's rotary module; None: it has none. modules: the attention module of each
            layer; None: it has none.
    """
    family, types = family_of(config), layer_types(config)
    cap = float(getattr(config, family.attention_cap or "", None) or 0.0)
    unrotated, temperature = NoRope(), _temperature(config)
    ropes: dict[str, Rope] = {}
    if rotary is not None:
        attending = {*types} & {*families.ATTENTION_TYPES}
        ropes = {kind: _rope(config, family, rotary, kind) for kind in attending}
    traits: list[LayerTraits | None] = []
    windows, rotating = families.layer_windows(config), _rotating(config, family)
    each = zip(modules, types, windows, rotating, strict=True)
    for module, kind, window, rotates in each:
        if module is None:
            traits.append(None)
            continue
        rope = ropes.get(kind, unrotated) if rotates else unrotated
        if rotates and family.norms_after is not None:
            query, key = (getattr(module, name).weight for name in family.norms_after)
            rope = WeightedRope(rope, query, key)
        traits.append(LayerTraits(rope, float(module.scaling), window, cap, temperature))
    return traits


def what_layers_keep(config: Any) -> list[Keeps]:
    """What each layer keeps of the tokens before; one that reads another's rows keeps nothing."""
    kinds: dict[str, Keeps] = {
        **dict.fromkeys(families.ATTENTION_TYPES, "rows"),
        **dict.fromkeys(families.STATE_TYPES, "state"),
        "hybrid": "both",
    }
    types, readers = enumerate(layer_types(config)), families.source_layers(config)
    return ["nothing" if i in readers else kinds.get(one, "nothing") for i, one in types]


def _rotating(config: Any, family: Family) -> list[bool]:
    """Whether each layer rotates queries and keys."""
    types = layer_types(config)
    sliding, rule = [kind == "sliding_attention" for kind in types], family.rotating
    if rule == "sliding":
        return sliding
    if rule == "hybrid":
        return sliding if config.sliding_window is not None else [True] * len(types)
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

    def temperature(at: Tensor) -> Tensor:
        factors: Tensor = 1 + beta * torch.log1p(torch.floor(at / original))
        return factors

    return temperature


def _rope(config: Any, family: Family, rotary: Any, kind: str) -> Rope:
    """The rotary embedding of a model's layers of one type, the same for every length."""
    if hasattr(rotary, f"{kind}_inv_freq"):
        inverse, factor = (
            getattr(rotary, f"{kind}_{x}") for x in ("inv_freq", "attention_scaling")
        )
        return Rope(Angles(inverse, factor), pairs=family.pairs)
    if "longrope" in families.rope_types(config):
        # Of the two sets between which transformers switches at the original length, the one for
        # long texts: cached keys are rotated by one set alone.
        original = config.rope_parameters["original_max_position_embeddings"]
        device = rotary.inv_freq.device
        inverse, factor = ROPE_INIT_FUNCTIONS["longrope"](config, device, seq_len=original + 1)
        return Rope(Angles(inverse, float(factor)), pairs=family.pairs)
    if family.pairs == "half" and not (family.half_table or family.complex_table):
        return Rope(rotary)
    # Some modules compute the angles of pairs side by side, or once; `Rope` arranges them itself.
    return Rope(Angles(rotary.inv_freq, rotary.attention_scaling), pairs=family.pairs)


def keep_cache(config: Any) -> None:
    """Changes an attached model's copy of its configuration, so that `generate` does not drop the
    cache where stock attention would change its rotary embedding."""
    if family_of(config).switches:
        config.original_max_position_embeddings = sys.maxsize


class LatentHeads:
    """Attention over latents (MLA: DeepSeek and its kin) in absorbed form: the maps A and B of one
    attention module's heads.

    All heads share a token's row: R dimensions of the key that rotate, then its latent c. With a
    head's maps A (N, L) to the rest of its key and B (V, L) to its value,

        q . k          =  q_rotary . row_rotary + (A^T q_rest) . c
        sum_i a_i v_i  =  B sum_i a_i c_i

    so methods select by rows and attend to rows, as with one key head that is the values, too.

    Args:
        module: with `kv_b_proj`, from a latent to all heads' keys and values. Where that is
            quantised, its dequantised weight is cached from the first call on.

    Raises:
        ModelError: the maps have a bias.
    """

    def __init__(self, module: Any) -> None:
        self._projection: nn.Module = module.kv_b_proj
        self._heads, self._latent = int(module.num_heads), int(module.kv_lora_rank)
        self._rest, self._rotary = int(module.qk_nope_head_dim), int(module.qk_rope_head_dim)
        self._dequantised: Tensor | None = None
        if getattr(self._projection, "bias", None) is not None:
            raise ModelError(
                "maps of latents to keys must have no bias, got one",
                "use a model of another family",
            )

    def queries(self, q: Tensor) -> Tensor:
        """Queries (H, C, N + R), the rotary part last, as (H, C, R + L): for rows."""
        rest, rotary = torch.split(q, [self._rest, self._rotary], dim=-1)
        return torch.cat((rotary, rest @ self._maps(q)[:, : self._rest]), dim=-1)

    def outputs(self, rows: Tensor) -> Tensor:
        """Weighted sums of rows (H, C, R + L) as weighted sums of values (H, C, V)."""
        latents = rows[..., self._rotary :]
        return latents @ self._maps(rows)[:, self._rest :].transpose(1, 2)

    def _maps(self, like: Tensor) -> Tensor:
        """A above B of each head, (H, N + V, L)."""
        projection = self._projection
        weight = plain_weight(projection) if type(projection) is nn.Linear else None
        adapted = bool(projection._forward_hooks)  # an adapter's is not there for good
        if weight is None or weight.is_meta or adapted:
            weight = None if adapted else self._dequantised
            if weight is None:  # what the projection makes of unit vectors
                unit = torch.eye(self._latent, dtype=like.dtype, device=like.device)
                weight = projection(unit).T.contiguous()
                self._dequantised = self._dequantised if adapted else weight
        return weight.view(self._heads, -1, self._latent)
