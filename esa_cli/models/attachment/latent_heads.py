"""Attention over latents (MLA: DeepSeek and its kin) in absorbed form, without keys and values.

All heads share a token's row: R dimensions of the key that rotate, then its latent c. With a head's
maps A (N, L) to the rest of its key and B (V, L) to its value,

    q . k          =  q_rotary . row_rotary + (A^T q_rest) . c
    sum_i a_i v_i  =  B sum_i a_i c_i

so methods select by rows and attend to rows, as with one key head that is the values, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from esa_cli.errors import ModelError
from esa_cli.models.attachment.inspection import plain_weight


class LatentHeads:
    """The maps A and B of one attention module's heads.

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
