"""Registers selectors, scores, document readers and methods, with the module that defines each."""

from __future__ import annotations

import difflib
import sys
from collections import UserDict
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from esa_cli.errors import PluginError, UsageError

T = TypeVar("T")

PLUGIN_PREFIX = "esa_plugin_"
"""The prefix of the module names of plugin files; the path of such a file is its origin."""

_REGISTRIES: list[PluginRegistry[Any]] = []


class PluginRegistry(UserDict[str, T]):
    """A table of the classes or functions of one kind, such as "selector" or "reader", by name."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self._definitions: dict[str, tuple[str, str]] = {}  # module or plugin file, qualified name
        _REGISTRIES.append(self)

    def add(self, name: str, value: T, class_or_function: object) -> None:
        """Registers `value` under `name`; the same class or function may register again, as on
        reloading a module. Raises PluginError: another class or function uses the name."""
        qualname = str(getattr(class_or_function, "__qualname__", name))
        new = get_defining_module(class_or_function), qualname
        if name in self and (known := self._definitions[name]) != new:
            hint = "choose another name"
            raise PluginError(f"{self.kind} {name!r} is already registered by {known[0]}", hint)
        self[name], self._definitions[name] = value, new

    def find_module(self, name: str) -> str:
        """Returns the module, or the path of the plugin file, that registered the name."""
        return self._definitions[name][0]


def get_defining_module(class_or_function: object) -> str:
    """Returns the module, or the path of the plugin file, that defines a class or function."""
    module = str(getattr(class_or_function, "__module__", ""))
    if module.startswith(PLUGIN_PREFIX):
        return str(getattr(sys.modules.get(module), "__file__", module))
    return module


def list_entries_of_module(module_or_file: str) -> list[tuple[str, str]]:
    """Returns the (kind, name) pairs of all entries that a module or plugin file registered."""
    pairs = [(registry, name) for registry in _REGISTRIES for name in registry]
    return [(one.kind, name) for one, name in pairs if one.find_module(name) == module_or_file]


def remove_entries_of_module(module_or_file: str) -> None:
    for registry in _REGISTRIES:
        for name in [name for name in registry if registry.find_module(name) == module_or_file]:
            del registry[name]


def find_by_name(table: Mapping[str, T], kind: str, name: str) -> T:
    """Returns the entry of a table of esa's own. Raises UsageError: the name is unknown."""
    if name not in table:
        raise UsageError(f"esa has no {kind} {name!r}", suggest_name(name, table))
    return table[name]


def suggest_name(unknown_name: str, known_names: Iterable[str], prefix: str = "") -> str:
    """Returns a hint for an unknown name: a similar known name, or else a list of known names."""
    names = sorted(known_names)
    close = difflib.get_close_matches(unknown_name, names, n=1)
    if close:
        return f"did you mean {prefix + close[0]!r}?"
    if len(names) > 12:
        names = difflib.get_close_matches(unknown_name, names, n=3, cutoff=0.0)
        return f"the nearest are {', '.join(names)}"
    return f"known: {', '.join(names)}" if names else "there are none"
