"""Where a model's forward call begins: in its rotary module, which is replaced in an attached
model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.rope import RawRotary
from esa_cli.models.forward_pass import ForwardPass


class StartOfForward(RawRotary):
    """Opens the attached model's `ForwardPass`: the model calls its rotary module at the start of a
    forward call, once or for each type of layers, with the positions of its tokens.

    Args:
        width: of `RawRotary`. one: the model expects one complex tensor, (1, n, width).
    """

    def __init__(self, width: int, forward_pass: ForwardPass[Any], one: bool = False) -> None:
        super().__init__(width)
        self._forward_pass, self._one = forward_pass, one

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        # A compiled model would be compiled anew for every span.
        compiled = torch.compiler.is_compiling()
        self._forward_pass.open(None if compiled else _ends(position_ids))
        cos, sin = super().forward(x, position_ids)
        return torch.complex(cos.float(), sin.float()) if self._one else (cos, sin)


def _ends(positions: Tensor) -> tuple[int, int]:
    flat = positions.reshape(-1)
    first, last = torch.stack((flat[0], flat[-1])).tolist()
    return first, last
