"""Adapter to the packages of flash-attn 2, 3 and 4; docs/extras.md says how to install them. The
tests replace them: they have no GPU.

All take (batch, tokens, heads, D), with fewer key heads than query heads, and return the output
likewise and the log-sum-exp (batch, heads, tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any

from torch import Tensor

from esa_cli.attention.kernels.gpu_limits import capability, fits_flash


@cache
def attention_of(module: str, wanted: tuple[str, ...]) -> Callable[..., Any] | None:
    """`flash_attn_func` of a module, if that can be imported and takes the wanted arguments.

    Built for another torch, it cannot be imported; versions 2 and 4 have a package of one name.
    """
    try:
        if find_spec(module) is None:
            return None
        found: Callable[..., Any] = import_module(module).flash_attn_func
        return found if {*wanted} <= {*signature(found).parameters} else None
    except Exception:  # Compiled and just-in-time packages fail to load in many ways.
        return None


@dataclass(frozen=True)
class FlashAttn:
    """A version of flash-attn.

    Args:
        module: has `flash_attn_func`. lse: the argument that asks for the log-sum-exp.
        capabilities: major ones, that it runs on.
        narrow: major capabilities on which it takes heads of 128 dimensions or fewer, or 256.
        options: further arguments.
    """

    module: str
    lse: str
    capabilities: range
    narrow: range = range(0)
    options: Mapping[str, Any] = field(default_factory=dict)

    def function(self) -> Callable[..., Any] | None:
        wanted = (self.lse, "softmax_scale", "causal", "softcap", *self.options)
        return attention_of(self.module, wanted)

    def usable(self, q: Tensor) -> bool:
        if not fits_flash(q) or (major := capability(q.device)) not in self.capabilities:
            return False
        if major in self.narrow and 128 < q.shape[-1] < 256:
            return False
        return self.function() is not None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, cap: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """See `reference.attend`; also with C < N, causal ends with the last key."""
        function = self.function()
        assert function is not None, "chosen only where it is installed"
        batch = (x.transpose(0, 1)[None] for x in (q, k, v))
        options = {**self.options, self.lse: True}
        out, lse, *_ = function(*batch, softmax_scale=scale, causal=causal, softcap=cap, **options)
        return out[0].transpose(0, 1), lse[0].float()


VERSIONS = {
    # A number of splits of 0 lets the package split the keys of few queries.
    "flash-attn-3": FlashAttn(
        "flash_attn_interface", "return_attn_probs", range(8, 10), options={"num_splits": 0}
    ),
    "flash-attn-4": FlashAttn("flash_attn.cute", "return_lse", range(9, 12), narrow=range(10, 12)),
    "flash-attn": FlashAttn("flash_attn", "return_attn_probs", range(8, 100)),
}
"""By kernel name, in order of preference: 3 is made for Hopper, 4 for Hopper and Blackwell."""
