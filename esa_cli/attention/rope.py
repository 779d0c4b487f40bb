"""Rotary position embedding (RoPE) at any position, with the transformers model's own module.

That module computes the angles, so every static variant (default, linear, llama3, yarn) equals the
model's. It may rotate a head's first R dimensions only, R <= D.

RoPE is relative: R(q, m) . R(k, n) depends on m - n only, which the position encodings use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

TABLE_LIMIT = 1 << 17
"""Integer positions below this come from a table; others are computed each time."""

Pairs = Literal["half", "interleaved", "reversed"]
"""Which of R dimensions rotate together: i and i + R/2; 2i and 2i + 1; the first, backwards."""


class Rope:
    """Rotates queries and keys to given positions with a rotary module.

    Args:
        module: called as `module(x, position_ids) -> (cos, sin)`, each (1, n, R): R/2 angles twice.
        spare: the table is made larger than needed, for later positions.
        pairs: which dimensions rotate together.
    """

    rotates = True
    """Whether `rotate` depends on positions."""

    def __init__(self, module: nn.Module, spare: bool = True, pairs: Pairs = "half") -> None:
        self.module, self.spare, self.pairs = module, spare, pairs
        self._tables: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def angles(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """As `cos_sin`, computed without reading positions, so without synchronising with a GPU."""
        positions = positions.to(like.device, non_blocking=True)
        cos, sin = self.module(like[..., :1, :1], positions[None])
        cos, sin = cos[0], sin[0]
        if self.pairs == "reversed":
            return cos, -sin
        if self.pairs == "interleaved":
            half = cos.shape[-1] // 2
            return tuple(x[:, :half].repeat_interleave(2, dim=-1) for x in (cos, sin))
        return cos, sin

    def cos_sin(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines at `positions`, each (n, R), in the dtype and on the device of `like`.

        Args:
            positions: (n,) integers or floats, in tokens. Reading those on a GPU synchronises with
                it; leave on the CPU what was computed there.
            like: any tensor of the wanted dtype and device.
        """
        if positions.is_floating_point() or positions.numel() == 0:
            return self.angles(positions, like)
        lowest, highest = torch.stack(positions.aminmax()).tolist()
        if highest >= TABLE_LIMIT or lowest < 0:
            return self.angles(positions, like)
        cos, sin = self._table(highest + 1, like)
        positions = positions.to(like.device, non_blocking=True)
        return cos[positions], sin[positions]

    def _table(self, top: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of at least the positions below `top`; one table for each dtype."""
        table = self._tables.get(like.dtype)
        if table is None or table[0].shape[0] < top:
            size = min(TABLE_LIMIT, max(4096, 2 * top)) if self.spare else top
            table = self.angles(torch.arange(size, device=like.device), like)
            self._tables[like.dtype] = table
        return table

    @property
    def frequencies(self) -> tuple[Tensor, float]:
        """Inverse frequencies (R / 2,), radians per token, and the factor of cosines and sines:
        1, or yarn's."""
        module = cast(Any, self.module)
        return module.inv_freq, float(getattr(module, "attention_scaling", 1.0))

    def changed(self, inverse: Tensor, factor: float, spare: bool) -> Rope:
        """The same with other frequencies; see `frequencies` and `Rope`."""
        return Rope(Angles(inverse, factor), spare, self.pairs)

    def as_key(self, q: Tensor) -> Tensor:
        """Queries (H, n, D) of the attached model in the form of its cached keys."""
        return q

    def gain(self, like: Tensor) -> Tensor:
        """Factor of a key (..., D) at position 0: 1, or yarn's attention factor; a scalar, or (D,)
        where not all dimensions rotate."""
        cos, _ = self.cos_sin(torch.zeros(1, dtype=torch.long), like)
        rest = like.shape[-1] - cos.shape[-1]
        return torch.cat((cos[0], cos.new_ones(rest))) if rest else cos[0, 0]

    def far_queries(self, q: Tensor, distance: int) -> Tensor:
        """Queries (H, n, D) of which the dot products with unrotated keys (G, m, D) are those of
        attention where the keys are `distance` tokens away."""
        return self.rotate(q, torch.full((q.shape[1],), distance)) * self.gain(q)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """R(x, positions): x (heads, n, D), positions (n,) -> (heads, n, D), in the dtype of x;
        see `cos_sin` for where positions lie."""
        return self.turn(x, *self.cos_sin(positions, x))

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (heads, n, D) rotated by cosines and sines (n, R) of `cos_sin` or `angles`."""
        width = cos.shape[-1]
        if width == x.shape[-1]:
            return (x * cos + self._turned(x) * sin).to(x.dtype)
        part = x[..., :width]
        part = (part * cos + self._turned(part) * sin).to(x.dtype)
        return torch.cat((part, x[..., width:]), dim=-1)

    def _turned(self, x: Tensor) -> Tensor:
        """x (..., R), each pair turned by 90 degrees."""
        if self.pairs == "interleaved":
            return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class NoRope(Rope):
    """Of layers without position embedding (NoPE): everything stays as it is."""

    rotates = False

    def __init__(self) -> None:
        super().__init__(nn.Identity())

    @property
    def frequencies(self) -> tuple[Tensor, float]:
        return torch.empty(0), 1.0

    def gain(self, like: Tensor) -> Tensor:
        return like.new_ones(())

    def angles(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_empty(0), like.new_empty(0)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x


class Angles(nn.Module):
    """A rotary module of given frequencies, called like the model's.

    Args:
        inverse: (R / 2,) inverse frequencies, radians per token. factor: cosines and sines are
            multiplied by it.
    """

    def __init__(self, inverse: Tensor, factor: float) -> None:
        super().__init__()
        self.inv_freq, self.attention_scaling = inverse.float(), factor

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (1, n, R) in the dtype and on the device of x, for position_ids (1, n)."""
        angles = position_ids[..., None].to(x.device).float() * self.inv_freq.to(x.device)
        both = torch.cat((angles, angles), dim=-1)
        cos, sin = both.cos() * self.attention_scaling, both.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


Change = Callable[[Tensor, float, int], tuple[Tensor, float] | None]
"""A position encoding's `frequencies`; see `PositionEncoding`."""


class Ropes:
    """The model's rotary embedding, and the one with a position encoding's last frequencies."""

    def __init__(self, model: Rope) -> None:
        self.model = model
        self._last: tuple[object, Rope] | None = None

    def at(self, length: int, change: Change) -> Rope:
        """The rotary embedding when `length` tokens are cached: the model's, or the encoding's."""
        if not self.model.rotates:
            return self.model
        changed = change(*self.model.frequencies, length)
        if changed is None:
            return self.model
        inverse, factor = changed
        key = (tuple(inverse.tolist()), factor)
        if self._last is None or self._last[0] != key:
            # Frequencies that changed once change again as the text grows: no larger table.
            self._last = (key, self.model.changed(inverse, factor, spare=self._last is None))
        return self._last[1]
