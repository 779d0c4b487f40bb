"""Where a command's model will be, and in which type, by its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.models.loading.load import choose_device, choose_dtype
from esa_cli.models.loading.quantization import packing_of
from esa_cli.storage.cache_choice import check_cache


@dataclass(frozen=True)
class ModelPlace:
    """The model's `device`, torch's name or "balanced", `dtype`, of torch, place of `cache`, and
    what its weights are packed by."""

    device: str
    dtype: Any
    cache: str = "auto"
    packing: str = ""

    @classmethod
    def of(cls, options: ModelOptions) -> ModelPlace:
        """The place for --device, --dtype and --cache. Raises UsageError."""
        check_cache(options.cache)
        chosen = choose_device(options.device)
        dtype, packing = choose_dtype(options.dtype, chosen), packing_of(options.dtype)
        return cls(chosen, dtype, options.cache, packing)

    @property
    def dtype_name(self) -> str:
        return self.packing or str(self.dtype).removeprefix("torch.")
