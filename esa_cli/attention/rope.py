"""Rotates queries and keys to any position (RoPE) by the transformers model's rotary module.

The model's own rotary module computes the angles, so that all static variants of RoPE (default,
linear, llama3, yarn) are supported. Dot products of rotated queries and keys depend only on the
difference of their positions. In some models RoPE rotates only the first R of a head's D
dimensions."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from esa_cli.errors import ModelError

TABLE_LIMIT = 1 << 17
"""Integer positions below this come from a table; others are computed each time."""

Pairs = Literal["half", "interleaved", "reversed"]
"""Which of R dimensions rotate together: i and i + R/2 (`half`), 2i and 2i + 1 (`interleaved`), or
those of `half` in the opposite direction (`reversed`)."""


class Rope:
    """Rotates queries and keys to given positions by a rotary module.

    Args:
        module: called as `module(x, position_ids) -> (cos, sin)`, each (1, n, R): R/2 angles twice.
        preallocate: whether the table is made larger than needed. pairs: see `Pairs`."""

    rotates = True  # whether `rotate` depends on positions

    def __init__(self, module: nn.Module, preallocate: bool = True, pairs: Pairs = "half") -> None:
        self.module, self.preallocate, self.pairs = module, preallocate, pairs
        self._tables: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def get_inverse_frequencies(self) -> tuple[Tensor, float]:
        """Returns the inverse frequencies (R / 2,), and the factor of cosines and sines."""
        module = cast(Any, self.module)
        return module.inv_freq, float(getattr(module, "attention_scaling", 1.0))

    def copy_with_frequencies(self, frequencies: Tensor, factor: float, preallocate: bool) -> Rope:
        """Returns a copy with other frequencies, and with another factor of cosines and sines."""
        return Rope(FixedFrequencyRotaryModule(frequencies, factor), preallocate, self.pairs)

    def compute_cos_sin(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines at `positions`, each (n, R), in the dtype and on the device of
        `like`, without synchronising with a GPU."""
        positions = positions.to(like.device, non_blocking=True)
        cos, sin = (x[0] for x in self.module(like[..., :1, :1], positions[None]))
        if self.pairs == "reversed":
            return cos, -sin
        if self.pairs == "interleaved":
            half = cos.shape[-1] // 2
            cos, sin = (x[:, :half].repeat_interleave(2, dim=-1) for x in (cos, sin))
        return cos, sin

    def look_up_cos_sin(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the cosines and sines at positions (n,), for integers below `TABLE_LIMIT` from a
        cached table. If the positions are on a GPU, the CPU waits for the GPU."""
        if positions.is_floating_point() or positions.numel() == 0:
            return self.compute_cos_sin(positions, like)
        lowest, highest = torch.stack(positions.aminmax()).tolist()
        if highest >= TABLE_LIMIT or lowest < 0:
            return self.compute_cos_sin(positions, like)
        table = self._tables.get(like.dtype)
        if table is None or table[0].shape[0] <= highest:
            size = min(TABLE_LIMIT, max(4096, 2 * highest + 2)) if self.preallocate else highest + 1
            table = self.compute_cos_sin(torch.arange(size, device=like.device), like)
            self._tables[like.dtype] = table
        positions = positions.to(like.device, non_blocking=True)
        return table[0][positions], table[1][positions]

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates x (heads, n, D) to positions (n,); the result has the dtype of x."""
        return self._rotate_by_angles(x, *self.look_up_cos_sin(positions, x))

    def _rotate_by_angles(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Returns x (heads, n, D) rotated by cosines and sines (n, R)."""
        width = cos.shape[-1]
        part = x[..., :width]
        if self.pairs == "interleaved":
            turned = torch.stack((-part[..., 1::2], part[..., 0::2]), dim=-1).flatten(-2)
        else:
            turned = torch.cat((-part[..., width // 2 :], part[..., : width // 2]), dim=-1)
        out = (part * cos + turned * sin).to(x.dtype)
        return out if width == x.shape[-1] else torch.cat((out, x[..., width:]), dim=-1)

    def compute_rotation_scale(self, like: Tensor) -> Tensor:
        """Returns the factor by which rotation scales keys, such as YaRN's factor of cosines and
        sines, as a scalar, or as (D,) if only a part of the head rotates."""
        cos, _ = self.look_up_cos_sin(torch.zeros(1, dtype=torch.long), like)
        rest = like.shape[-1] - cos.shape[-1]
        return torch.cat((cos[0], cos.new_ones(rest))) if rest else cos[0, 0]

    def rotate_to_far_distance(self, q: Tensor, distance: int) -> Tensor:
        """Rotates queries (H, n, D) so that their dot products with unrotated keys (G, m, D) equal
        those of attention to keys that are `distance` tokens away."""
        return self.rotate(q, torch.full((q.shape[1],), distance)) * self.compute_rotation_scale(q)

    def convert_to_key(self, query: Tensor) -> Tensor:
        """Converts a model's queries (H, n, D) to the form in which keys are cached."""
        return query


class NoRope(Rope):
    """The rotary embedding of layers without positions (NoPE): queries and keys stay unchanged."""

    rotates = False

    def __init__(self) -> None:
        super().__init__(nn.Identity())

    def get_inverse_frequencies(self) -> tuple[Tensor, float]:
        return torch.empty(0), 1.0

    def compute_rotation_scale(self, like: Tensor) -> Tensor:
        return like.new_ones(())

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return x


class NormWeightedRope(Rope):
    """Rotary embedding of models that norm queries and keys after rotating them (Hunyuan).

    Hunyuan's queries are w_q * R(q) / rms(q) and its keys w_k * R(k) / rms(k), with the rotation R
    and learned weights w. Since the rotation R preserves the rms, the dot product of a query and a
    key is that of s * R(q') and s * R(k'), where s = sqrt(w_q w_k) and q' and k' are normed but not
    rotated. esa caches w_k * k', and rotates a cached key or a converted query x to s * R(x / w_k).

    Args:
        plain: the rotary embedding without weights. query, key: the norm weights w_q, w_k (D,).

    Raises ModelError: a norm weight is 0, or the weights of queries and keys differ in sign."""

    def __init__(self, plain: Rope, query: Tensor, key: Tensor) -> None:
        super().__init__(plain.module, plain.preallocate, plain.pairs)
        query, key = query.detach(), key.detach()
        product = query.float() * key.float()
        if not bool((product > 0).all()):
            message = "norm weights of queries and keys must not be 0 and must have the same sign"
            raise ModelError(message, "use another model")
        self._query, self._key = query, key
        self._before, self._after = 1 / key.float(), product.sqrt()

    def copy_with_frequencies(self, frequencies: Tensor, factor: float, preallocate: bool) -> Rope:
        plain = super().copy_with_frequencies(frequencies, factor, preallocate)
        return NormWeightedRope(plain, self._query, self._key)

    def compute_cos_sin(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        return super().compute_cos_sin(positions, like.float())

    def convert_to_key(self, query: Tensor) -> Tensor:
        return query * (self._key / self._query).to(query)

    def compute_rotation_scale(self, like: Tensor) -> Tensor:
        weights = (self._before * self._after).to(like.device)
        return (super().compute_rotation_scale(like) * weights).to(like.dtype)

    def _rotate_by_angles(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = super()._rotate_by_angles(x.float() * self._before.to(x.device), cos, sin)
        return (turned * self._after.to(x.device)).to(x.dtype)


class FixedFrequencyRotaryModule(nn.Module):
    """A rotary module with given inverse frequencies (R / 2,), in radians per token, and a factor
    of cosines and sines, called like the transformers model's own module."""

    def __init__(self, inverse: Tensor, factor: float) -> None:
        super().__init__()
        self.inv_freq, self.attention_scaling = inverse.float(), factor

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines (1, n, R) at position_ids (1, n), in the dtype of x."""
        angles = position_ids[..., None].to(x.device).float() * self.inv_freq.to(x.device)
        both = torch.cat((angles, angles), dim=-1)
        cos, sin = both.cos() * self.attention_scaling, both.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)
