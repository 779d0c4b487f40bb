"""The host model's rotary embedding, usable at any position.

The host's own module computes the angles, so every static RoPE variant it knows (default, linear,
llama3, yarn) comes out as it would in the plain model. This file knows nothing about attention.
Where layers are on several GPUs, angles follow the layer that asks; that is tested with a stand-in
for the second device, and not measured.

RoPE is relative: R(q, m) . R(k, n) depends on m - n only. The position encodings use that freely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

TABLE_LIMIT = 1 << 17
"""Integer positions below this come from a table; others are computed when asked for."""


class Rope:
    """Rotates queries and keys to given positions with the host's rotary module.

    Args:
        module: the host's rotary embedding, called as `module(x, position_ids) -> (cos, sin)`.
        spare: the table is made larger than asked for, for positions to come.
    """

    def __init__(self, module: nn.Module, spare: bool = True) -> None:
        self.module, self.spare = module, spare
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def _compute(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.module(like[..., :1, :1], positions[None])
        # A model on several devices has its rotary module on one of them, and computes there.
        return cos[0].to(like.device), sin[0].to(like.device)

    def cos_sin(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines at `positions`, each (n, D), in the dtype and on the device of `like`.

        Args:
            positions: (n,) integers or floats, in tokens.
            like: any tensor of the wanted dtype and device.
        """
        if positions.is_floating_point() or positions.numel() == 0:
            return self._compute(positions, like)
        top = int(positions.max()) + 1
        if top > TABLE_LIMIT or int(positions.min()) < 0:
            return self._compute(positions, like)
        cos, sin = self._table(top, like)
        positions = positions.to(like.device)
        return cos[positions], sin[positions]

    def _table(self, top: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of at least the positions below `top`; one table for each device and
        dtype, as a model's layers may be on several."""
        kind = like.device, like.dtype
        if kind not in self._tables or self._tables[kind][0].shape[0] < top:
            size = min(TABLE_LIMIT, max(4096, 2 * top)) if self.spare else top
            self._tables[kind] = self._compute(torch.arange(size, device=like.device), like)
        return self._tables[kind]

    @property
    def frequencies(self) -> tuple[Tensor, float]:
        """The host's inverse frequencies (D / 2,), radians per token, and its factor for cosines
        and sines (1, or yarn's)."""
        module = cast(Any, self.module)
        return module.inv_freq, float(getattr(module, "attention_scaling", 1.0))

    def gain(self, like: Tensor) -> Tensor:
        """What a key at position 0 is multiplied by: 1, or yarn's attention factor."""
        return self.cos_sin(torch.zeros(1, dtype=torch.long, device=like.device), like)[0][0, 0]

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """R(x, positions): x (heads, n, D), positions (n,) -> (heads, n, D)."""
        cos, sin = self.cos_sin(positions, x)
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + turned * sin


class Angles(nn.Module):
    """A rotary embedding of given frequencies, called like the host's.

    Args:
        inverse: (D / 2,) inverse frequencies, radians per token. factor: cosines and sines are
            multiplied by it.
    """

    def __init__(self, inverse: Tensor, factor: float) -> None:
        super().__init__()
        self.inv_freq, self.attention_scaling = inverse.float(), factor

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (1, n, D) in the dtype and on the device of x, for position_ids (1, n)."""
        angles = position_ids[..., None].to(x.device).float() * self.inv_freq.to(x.device)
        both = torch.cat((angles, angles), dim=-1)
        cos, sin = both.cos() * self.attention_scaling, both.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


Change = Callable[[Tensor, float, int], tuple[Tensor, float] | None]
"""A position encoding's `frequencies`; see `PositionEncoding`."""


class Ropes:
    """The host's rotary embedding, and what a position encoding last made of it.

    Args:
        host: as the model has it.
    """

    def __init__(self, host: Rope) -> None:
        self.host = host
        self._last: tuple[object, Rope] | None = None

    def at(self, length: int, change: Change) -> Rope:
        """The rotary embedding when `length` tokens are cached: the host's, or the changed one."""
        changed = change(*self.host.frequencies, length)
        if changed is None:
            return self.host
        inverse, factor = changed
        key = (tuple(inverse.tolist()), factor)
        if self._last is None or self._last[0] != key:
            # What changed once will change again as the text grows: a larger table is no use.
            self._last = (key, Rope(Angles(inverse, factor), spare=self._last is None))
        return self._last[1]


class RawRotary(nn.Module):
    """Stands in for the host's rotary module while ESA is attached: cos = 1, sin = 0.

    The host then caches unrotated keys, which belong to no position, and ESA places them itself.
    """

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        shape = (1, position_ids.shape[-1], 1)
        return x.new_ones(shape), x.new_zeros(shape)
