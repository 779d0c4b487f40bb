"""Encodes rows as the bytes stored on disk, native or int8, and decodes them.

int8: the D numbers of each head of a token, or a block of them, share one float32 scale, their
largest absolute value / 127 (float16 would save 3 % and lose small keys). The scales follow the
numbers in the same record, so that a token is one read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esa_cli.storage.growing_rows import as_index
from esa_cli.storage.library.formats.row_layout import Layout


def encode(rows: Tensor, layout: Layout) -> Tensor:
    """Rows (n, width) -> records (n, row_bytes) of bytes."""
    if layout.kind == "native":
        return rows.contiguous().view(torch.uint8)
    blocks = rows.float().view(rows.shape[0], -1, layout.block)
    scales = blocks.abs().amax(dim=2) / 127
    steps = torch.where(scales > 0, scales, torch.ones_like(scales))
    numbers = (blocks / steps[:, :, None]).round().clamp(-127, 127).to(torch.int8)
    flat = numbers.view(rows.shape[0], layout.width).view(torch.uint8)
    return torch.cat((flat, scales.view(torch.uint8)), dim=1)


def decode(records: Tensor, layout: Layout, heads: Sequence[int] | None = None) -> Tensor:
    """Records (n, row_bytes) -> rows (n, width), or only those of `heads` of the 2 * G.

    Native records are not copied if the heads are consecutive.
    """
    dtype: torch.dtype = getattr(torch, layout.dtype)
    shape = records.shape[0], layout.vectors, layout.dim
    taken = as_index(range(layout.vectors) if heads is None else heads)
    if layout.kind == "native":
        rows = records.view(dtype).view(shape)
        return rows[:, taken].flatten(1)
    numbers = records[:, : layout.width].view(torch.int8)
    scales = records[:, layout.width :].clone(memory_format=torch.contiguous_format)
    # One pass over the numbers; a conversion to floats first would be a second.
    blocks = *shape[:2], layout.dim // layout.block, layout.block
    steps = scales.view(torch.float32).view(*blocks[:3], 1)
    return (numbers.view(blocks)[:, taken] * steps[:, taken]).flatten(1).to(dtype)
