"""Methods by name: selectors, scores, compressors and position encodings.

A plugin is a Python module that registers frozen dataclasses; its fields are the keys a preset may
set. Built-ins use the same door (`builtin.py`). Three ways in: the package itself, an installed
package's `esa.plugins` entry point, and `--plugin FILE.py`. A preset names plugins, but loads none.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from esa_cli.errors import PluginError, PresetError

KINDS = ("selector", "score", "compressor", "position")
T = TypeVar("T", bound=type)


class Part(NamedTuple):
    """A registered class; `cost` is of one step, in the letters of `protocols`. A plugin may leave
    all texts out: `about` is then the docstring's first line.
    """

    kind: str
    name: str
    about: str
    source: str
    cost: str


_PARTS: dict[tuple[str, str], Part] = {}
_CLASSES: dict[tuple[str, str], type] = {}
_ORIGIN: dict[tuple[str, str], str] = {}
_FILES: dict[str, str] = {}
"""Module name of every plugin file to its path; a class's origin is the file it is written in."""


def nearest(word: str, known: list[str]) -> str:
    """A 'did you mean' clause, or the list of what is known."""
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(sorted(known))}" if known else "there are none"


def register(
    kind: str, name: str, *, about: str = "", source: str = "", cost: str = ""
) -> Callable[[T], T]:
    """Class decorator: makes a dataclass available to presets as `kind: {name: ...}`; see `Part`.

    Raises:
        PluginError: unknown kind, not a dataclass, or the name is taken by another class.
    """

    def keep(cls: T) -> T:
        if kind not in KINDS:
            raise PluginError(
                f"cannot register {name!r}: no such kind {kind!r}", nearest(kind, [*KINDS])
            )
        if not dataclasses.is_dataclass(cls):
            raise PluginError(
                f"{kind} {name!r} is not a dataclass", "put @dataclass(frozen=True) under @register"
            )
        if any(field.name == "name" for field in dataclasses.fields(cls)):
            raise PluginError(
                f"{kind} {name!r} has a setting 'name', which means the method itself",
                "call it something else",
            )
        origin = _FILES.get(cls.__module__, cls.__module__)
        taken = _ORIGIN.get((kind, name))
        # The same class again is a module that is being reloaded; two classes are a mistake.
        known = (origin, cls.__qualname__)
        if taken is not None and (taken, _CLASSES[kind, name].__qualname__) != known:
            raise PluginError(
                f"{kind} {name!r} is already registered by {taken}", "choose another name"
            )
        _CLASSES[kind, name] = cls
        _ORIGIN[kind, name] = origin
        first = (cls.__doc__ or "").strip().partition("\n")[0]
        said = "" if first.startswith(f"{cls.__name__}(") else first  # a dataclass's signature
        _PARTS[kind, name] = Part(kind, name, about or said, source, cost)
        return cls

    return keep


def load_entry_points() -> None:
    """Imports every module named under the entry-point group `esa.plugins`, built-ins first.

    Raises:
        PluginError: one does not load; it names the plugin.
    """
    from esa_cli.methods import builtin  # noqa: F401

    for point in entry_points(group="esa.plugins"):
        try:
            point.load()
        except Exception as error:
            reason = error.message if isinstance(error, PluginError) else _reason(error)
            raise PluginError(
                f"plugin {point.name!r} ({point.value}) does not load: {reason}",
                "update or uninstall the package it comes from",
            ) from error


def load_file(path: str | Path) -> list[tuple[str, str]]:
    """Imports a plugin file and returns the (kind, name) pairs it registered.

    A file is run once in a process; a file that failed has registered nothing and may be retried.

    Raises:
        PluginError: the file is missing, does not run, or registers nothing.
    """
    path = Path(path)
    if not path.is_file():
        raise PluginError(f"no plugin file {path}", "check the path; `esa plugins new` writes one")
    key = str(path.resolve())
    if _registered(key):
        return _registered(key)
    module_name = f"esa_plugin_{path.stem.replace('-', '_')}_{abs(hash(key)):x}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is not a Python file", "a plugin file ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and type hints look their module up by name.
    sys.modules[module_name], _FILES[module_name] = module, key
    try:
        spec.loader.exec_module(module)
        if not _registered(key):
            raise PluginError(
                f"plugin {path} registers nothing",
                'decorate a class with @register("selector", "name"), or a function with @recipe',
            )
    except BaseException as error:
        _forget(module_name, key)
        if isinstance(error, PluginError) or not isinstance(error, (Exception, SystemExit)):
            raise
        raise PluginError(
            f"plugin {path} does not run: {_reason(error)}",
            f"`esa plugins check {path}` shows more",
        ) from error
    return _registered(key)


def _registered(origin: str) -> list[tuple[str, str]]:
    return [pair for pair, known in _ORIGIN.items() if known == origin]


def _forget(module_name: str, origin: str) -> None:
    for pair in _registered(origin):
        del _ORIGIN[pair]
        _CLASSES.pop(pair, None)  # recipes have no class, readers no texts
        _PARTS.pop(pair, None)
    sys.modules.pop(module_name, None)
    _FILES.pop(module_name, None)


def _reason(error: BaseException) -> str:
    """The error, and the line of the plugin it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{'' if isinstance(error, SyntaxError) else where}"


def names(kind: str) -> list[str]:
    """Registered names of one kind, sorted."""
    return sorted(name for k, name in _CLASSES if k == kind)


def origin(kind: str, name: str) -> str:
    """The module or file that registered a method."""
    return _ORIGIN[kind, name]


def parts() -> list[Part]:
    """Everything registered, kind by kind, in each by name."""
    return [_PARTS[kind, name] for kind in KINDS for name in names(kind)]


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
        said = "has no name" if name is None else f"has the name {name!r}: put it in quotes"
        raise PresetError(f"{kind} {said}", f"known: {', '.join(names(kind))}")
    cls = lookup(kind, name)
    known = {field.name for field in dataclasses.fields(cls) if field.init}
    for key in fields:
        if key not in known:
            raise PresetError(
                f"{kind} {name!r} has no setting {key!r}", nearest(key, sorted(known))
            )
    hints = _hints(cls, f"{kind} {name!r}")
    values = {key: _typed(value, hints[key], f"{kind}.{key}") for key, value in fields.items()}
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise PresetError(f"{kind} {name!r}: {error}", "see `esa presets show`") from error


def _hints(cls: type, what: str) -> dict[str, Any]:
    try:
        return get_type_hints(cls)
    except NameError as error:
        raise PluginError(
            f"{what}: {error}", "import what the fields' types name outside `if TYPE_CHECKING`"
        ) from error


def _typed(value: Any, hint: Any, where: str) -> Any:
    """The value if it is of the type `hint`; whole numbers may stand for floats, no more.

    Raises:
        PresetError: it is not. PluginError: no preset can hold a value of that type.
    """
    from pydantic import PydanticUserError, TypeAdapter, ValidationError

    try:
        return TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise PresetError(f"{where} = {value!r}: {message[0].lower()}{message[1:]}", "") from error
    except PydanticUserError as error:
        raise PluginError(
            f"{where} is a {hint!r}, which a preset cannot hold",
            "use int, float, bool, str or Literal",
        ) from error
