"""Registers the built-in methods, through the same door as any plugin."""

from esa_cli import consensus, encodings, methods
from esa_cli.attention import (
    compression as compressors,
)
from esa_cli.attention import (
    learned_maps as learned,
)
from esa_cli.attention import (
    positions,
)
from esa_cli.attention import (
    scoring as scores,
)
from esa_cli.attention import (
    selection as selectors,
)

__all__ = [
    "compressors",
    "consensus",
    "encodings",
    "learned",
    "methods",
    "positions",
    "scores",
    "selectors",
]
