"""What models in memory have in common, whether transformers has loaded them or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelInMemory:
    """A tokenizer, and where a model is from and is.

    Args:
        tokenizer: of transformers, or a `PlainTokenizer`. ref: the model's reference.
        dtype: a torch.dtype. device: the torch.device of the first weights (with the device
            "balanced", later layers may be on others).
        cache: where keys and values will be; see `storage.cache_choice`.
    """

    tokenizer: Any
    ref: str
    folder: Path
    dtype: Any
    device: Any
    cache: str = "auto"
