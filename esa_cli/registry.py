"""Methods by name: selectors, scores, compressors and position encodings.

A plugin is a Python module that registers frozen dataclasses; its fields are the keys a preset may
set. Built-ins use the same door (`builtin.py`). Three ways in: the package itself, an installed
package's `esa.plugins` entry point, and `--plugin FILE.py` on the command line. Presets can name a
plugin, but never load one: code runs only when a person asks for it.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from .errors import PluginError, PresetError

KINDS = ("selector", "score", "compressor", "position")
T = TypeVar("T", bound=type)

_CLASSES: dict[tuple[str, str], type] = {}
_ORIGIN: dict[tuple[str, str], str] = {}
_loading: list[str] = []


def nearest(word: str, known: list[str]) -> str:
    """A 'did you mean' clause, or the list of what is known."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"


def register(kind: str, name: str) -> Callable[[T], T]:
    """Class decorator: makes a dataclass available to presets as `kind: {name: ...}`.

    Raises:
        PluginError: unknown kind, not a dataclass, or the name is taken by another module.
    """

    def keep(cls: T) -> T:
        if kind not in KINDS:
            raise PluginError(f"cannot register {name!r}: no such kind {kind!r}", nearest(kind, [*KINDS]))
        if not dataclasses.is_dataclass(cls):
            raise PluginError(
                f"{kind} {name!r} is not a dataclass", "put @dataclass(frozen=True) under @register"
            )
        origin = _loading[-1] if _loading else cls.__module__
        taken = _ORIGIN.get((kind, name))
        if taken not in (None, origin):
            raise PluginError(f"{kind} {name!r} is already registered by {taken}", "choose another name")
        _CLASSES[kind, name] = cls
        _ORIGIN[kind, name] = origin
        return cls

    return keep


def load_entry_points() -> None:
    """Imports every module named under the entry-point group `esa.plugins`, built-ins first."""
    from . import builtin  # noqa: F401

    for point in entry_points(group="esa.plugins"):
        _loading.append(point.value)
        try:
            point.load()
        except PluginError:
            raise
        except Exception as error:
            raise PluginError(
                f"plugin {point.name!r} ({point.value}) does not load: {type(error).__name__}: {error}",
                "update or uninstall the package it comes from",
            ) from error
        finally:
            _loading.pop()


def load_file(path: str | Path) -> list[tuple[str, str]]:
    """Imports a plugin file and returns the (kind, name) pairs it registered.

    Raises:
        PluginError: the file is missing, does not run, or registers nothing.
    """
    path = Path(path)
    if not path.is_file():
        raise PluginError(f"no plugin file {path}", "check the path; `esa plugins new` writes one")
    key = str(path.resolve())
    known = [pair for pair, origin in _ORIGIN.items() if origin == key]
    if known:
        return known
    module_name = f"esa_plugin_{path.stem.replace('-', '_')}_{abs(hash(key)):x}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is not a Python file", "a plugin file ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    _loading.append(key)
    try:
        spec.loader.exec_module(module)
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(
            f"plugin {path} does not run: {type(error).__name__}: {error}",
            f"`esa plugins check {path}` shows more",
        ) from error
    finally:
        _loading.pop()
    found = [pair for pair, origin in _ORIGIN.items() if origin == key]
    if not found:
        raise PluginError(f"plugin {path} registers nothing", 'decorate a class with @register("selector", "name")')
    return found


def names(kind: str) -> list[str]:
    """Registered names of one kind, sorted."""
    return sorted(name for k, name in _CLASSES if k == kind)


def origin(kind: str, name: str) -> str:
    """The module or file that registered a method."""
    return _ORIGIN[kind, name]


def lookup(kind: str, name: str) -> type:
    """The class registered as `kind: name`.

    Raises:
        PresetError: there is none; the message names the nearest.
    """
    if (kind, name) not in _CLASSES:
        raise PresetError(f"unknown {kind} {name!r}", nearest(name, names(kind)))
    return _CLASSES[kind, name]


def build(kind: str, options: Mapping[str, Any]) -> Any:
    """Makes the method `options['name']` with the other entries as its fields.

    Raises:
        PresetError: unknown name or field, a value of the wrong type, or one the class refuses.
    """
    fields = dict(options)
    name = fields.pop("name", None)
    if not isinstance(name, str):
        raise PresetError(f"{kind} has no name", f"known: {', '.join(names(kind))}")
    cls = lookup(kind, name)
    known = {field.name for field in dataclasses.fields(cls) if field.init}
    for key in fields:
        if key not in known:
            raise PresetError(f"{kind} {name!r} has no setting {key!r}", nearest(key, sorted(known)))
    hints = get_type_hints(cls)
    values = {key: _typed(value, hints.get(key, Any), f"{kind}.{key}") for key, value in fields.items()}
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise PresetError(f"{kind} {name!r}: {error}", "see `esa presets show`") from error


def _typed(value: Any, hint: Any, where: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(hint).validate_python(value, strict=not isinstance(value, int))
    except ValidationError as error:
        raise PresetError(f"{where} = {value!r}: {error.errors()[0]['msg'].lower()}", "") from error
