"""The names that a plugin may import, each loaded from another module at the first use."""

from __future__ import annotations

from importlib import import_module

_NAMES = {
    "esa_cli.attention.compression": "Linear",
    "esa_cli.attention.parts": "Compressor Moments PositionEncoding Score Selector",
    "esa_cli.attention.selection": "proximity top_k",
    "esa_cli.attention.step": "LayerState Positions Projection Selection Step",
    "esa_cli.methods.registry": "Base OWN_SCORE recipe register",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
