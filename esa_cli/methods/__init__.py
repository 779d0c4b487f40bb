"""Published methods by name, one method a file, and all that a plugin imports.

    from esa_cli.methods import Selector, Step, register, top_k

The names below are looked up when they are first used; `plugin_loading` lists the registered files.
"""

from __future__ import annotations

from importlib import import_module

_PLACES = {
    "Base": "esa_cli.methods.registry",
    "Compressor": "esa_cli.attention.parts",
    "LayerState": "esa_cli.attention.step",
    "Linear": "esa_cli.attention.compression",
    "Moments": "esa_cli.attention.parts",
    "OWN_SCORE": "esa_cli.methods.registry",
    "PositionEncoding": "esa_cli.attention.parts",
    "Positions": "esa_cli.attention.step",
    "Projection": "esa_cli.attention.step",
    "Score": "esa_cli.attention.parts",
    "Selection": "esa_cli.attention.step",
    "Selector": "esa_cli.attention.parts",
    "Step": "esa_cli.attention.step",
    "proximity": "esa_cli.attention.selection",
    "recipe": "esa_cli.methods.registry",
    "register": "esa_cli.methods.registry",
    "top_k": "esa_cli.attention.selection",
}
"""Name -> the module that defines it."""

__all__ = [*_PLACES]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value
