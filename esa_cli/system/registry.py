"""Registers selectors, recipes, readers and other parts by name, one table for each kind of part,
and records which module or plugin file defines each part."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from esa_cli.errors import PluginError

T = TypeVar("T")

PLUGIN_PREFIX = "esa_plugin_"
"""The prefix of the module names of plugin files; the path of such a file is its origin."""

_REGISTRIES: list[Registry[Any]] = []


class RegistryEntry(NamedTuple, Generic[T]):
    """A registered value, the module or plugin file that defines it, and its qualified name."""

    value: T
    origin: str
    qualname: str


class Registry(Generic[T]):
    """A table from names to values of one kind of part, such as "selector" or "reader"."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, RegistryEntry[T]] = {}
        _REGISTRIES.append(self)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> T:
        return self._entries[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def add(self, name: str, value: T, class_or_function: object) -> None:
        """Registers `value` under `name`; the same class or function may register again, as on
        reloading a module. Raises PluginError: another class or function uses the name."""
        origin = find_origin_of_definition(class_or_function)
        qualname = str(getattr(class_or_function, "__qualname__", name))
        taken = self._entries.get(name)
        if taken is not None and (taken.origin, taken.qualname) != (origin, qualname):
            raise PluginError(
                f"{self.kind} {name!r} is already registered by {taken.origin}",
                "choose another name",
            )
        self._entries[name] = RegistryEntry(value, origin, qualname)

    def find_origin(self, name: str) -> str:
        """Returns the module, or the path of the plugin file, that registered the name."""
        return self._entries[name].origin


def find_origin_of_definition(class_or_function: object) -> str:
    """Returns the module, or the path of the plugin file, that defines a class or function."""
    module = str(getattr(class_or_function, "__module__", ""))
    if module.startswith(PLUGIN_PREFIX):
        return str(getattr(sys.modules.get(module), "__file__", module))
    return module


def list_entries_of_origin(origin: str) -> list[tuple[str, str]]:
    """Returns the (kind, name) pairs of all entries that a module or plugin file registered."""
    return [(r.kind, name) for r in _REGISTRIES for name in r if r.find_origin(name) == origin]


def remove_entries_of_origin(origin: str) -> None:
    """Removes all entries that a module or plugin file registered."""
    for registry in _REGISTRIES:
        for name in [name for name in registry if registry.find_origin(name) == origin]:
            del registry._entries[name]


def suggest_name(unknown_name: str, known_names: Iterable[str], prefix: str = "") -> str:
    """Returns a hint for an unknown name: 'did you mean X?' with `prefix` and the most similar
    known name; or else a list of all known names, or of the three nearest."""
    names = sorted(known_names)
    close = difflib.get_close_matches(unknown_name, names, n=1)
    if close:
        return f"did you mean {prefix + close[0]!r}?"
    if len(names) > 12:
        names = difflib.get_close_matches(unknown_name, names, n=3, cutoff=0.0)
        return f"the nearest are {', '.join(names)}"
    return f"known: {', '.join(names)}" if names else "there are none"
