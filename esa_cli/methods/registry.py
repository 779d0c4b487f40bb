"""Registers selectors, scores, compressors, position encodings and whole methods by name.

Selectors, scores, compressors and position encodings, the parts of a method, are frozen
dataclasses, whose fields a preset sets. A recipe returns the settings of a whole method, with the
preset's token budget I + K + L, so that methods can be compared. This module does not import torch,
so that presets are checked quickly."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_type_hints
from weakref import WeakKeyDictionary

from esa_cli.attention.window import Window
from esa_cli.errors import PluginError, PresetError, UsageError
from esa_cli.system.registry import PluginRegistry, get_defining_module, suggest_name

if TYPE_CHECKING:
    from esa_cli.attention.method import Method

KINDS = ("selector", "score", "compressor", "position")
RESERVED = {"preset": "the preset as it is", "text": "answers from text"}
"""Names with a meaning of their own where methods are compared; no method may have them."""
T = TypeVar("T", bound=type)


class RegisteredClass(NamedTuple):
    """A registered class of selectors, scores, compressors or position encodings."""

    kind: str
    name: str
    about: str  # by default the first line of the class's docstring
    source: str  # by default, as `cost`, of the recipe of the same name, or the file's first one
    cost: str  # per step, in the letters of docs/plugins.md
    cls: type


PARTS: dict[str, PluginRegistry[RegisteredClass]] = {kind: PluginRegistry(kind) for kind in KINDS}


def register(
    kind: str, name: str, *, about: str = "", source: str = "", cost: str = ""
) -> Callable[[T], T]:
    """Returns a class decorator that makes a dataclass available to presets as `kind: {name: ...}`.
    Raises PluginError: the kind is unknown, the class is no dataclass, or the name is taken."""

    def register_part_class(cls: T) -> T:
        if kind not in KINDS:
            problem = f"cannot register {name!r}: no such kind {kind!r}"
            raise PluginError(problem, suggest_name(kind, KINDS))
        if kind == "selector":
            refuse_reserved_method_name(name)
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else None
        if fields is None or "name" in {field.name for field in fields}:
            message = f"{kind} {name!r} must be a dataclass without a field called 'name'"
            hint = "put @dataclass(frozen=True) under @register, and rename a field called 'name'"
            raise PluginError(message, hint)
        first = (cls.__doc__ or "").strip().partition("\n")[0]
        summary = "" if first.startswith(f"{cls.__name__}(") else first  # a dataclass's signature
        PARTS[kind].add(name, RegisteredClass(kind, name, about or summary, source, cost, cls), cls)
        return cls

    return register_part_class


def refuse_reserved_method_name(name: str) -> None:
    if name in RESERVED:
        message = f"a method's name must be none of {', '.join(map(repr, RESERVED))}, got {name!r}"
        hint = f"choose another name; in comparisons {name!r} means {RESERVED[name]}"
        raise PluginError(message, hint)


def list_registered_classes() -> list[RegisteredClass]:
    """Returns all registered classes, sorted by kind and name, with their sources and costs."""
    found = []
    for part in (PARTS[kind][name] for kind in KINDS for name in sorted(PARTS[kind])):
        where = PARTS[part.kind].find_module(part.name)
        if beside := [recipe for recipe in RECIPES.values() if recipe.origin == where]:
            method = min(beside, key=lambda recipe: recipe.name != part.name)
            source, cost = part.source or method.source, part.cost or method.cost
            part = part._replace(source=source, cost=cost)
        found.append(part)
    return found


def find_registered_class(kind: str, name: str) -> type:
    """Returns the class registered as `kind: name`. Raises PresetError: the name is unknown."""
    if name not in PARTS[kind]:
        raise PresetError(f"unknown {kind} {name!r}", suggest_name(name, PARTS[kind]))
    return PARTS[kind][name].cls


def build_method_part(kind: str, options: Mapping[str, Any]) -> Any:
    """Makes an object of the class `options['name']`, with the other options as fields. Raises
    PresetError: a name, field or value is wrong. PluginError: a preset cannot hold a type."""
    fields = dict(options)
    name = fields.pop("name", None)
    if not isinstance(name, str):
        reason = "has no name" if name is None else f"has the name {name!r}: put it in quotes"
        raise PresetError(f"{kind} {reason}", f"known: {', '.join(sorted(PARTS[kind]))}")
    cls = find_registered_class(kind, name)
    known = sorted(field.name for field in dataclasses.fields(cls) if field.init)
    for key in fields:
        if key not in known:
            raise PresetError(f"{kind} {name!r} has no setting {key!r}", suggest_name(key, known))
    from pydantic import PydanticUserError, TypeAdapter, ValidationError

    key = ""
    try:
        hints = get_type_hints(cls)
        for key, value in fields.items():
            fields[key] = TypeAdapter(hints[key]).validate_python(value, strict=True)
        return cls(**fields)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        reason = f"{kind}.{key} = {fields[key]!r}: {message[0].lower()}{message[1:]}"
        raise PresetError(reason) from error
    except (NameError, PydanticUserError) as error:
        setting = f"{kind}.{key} is a {hints[key]!r}" if key else error
        message = f"{kind} {name!r} has a setting that a preset cannot hold: {setting}"
        hint = "use the types int, float, bool, str or Literal, imported outside `if TYPE_CHECKING`"
        raise PluginError(message, hint) from error
    except (TypeError, ValueError) as error:
        raise PresetError(f"{kind} {name!r}: {error}", "see `esa presets show`") from error


class PresetSizes(NamedTuple):
    """Window sizes, lengths and position encoding from which a method's settings are computed."""

    window: Window  # the token budget
    context: int  # number of tokens in the model's trained window
    position: Mapping[str, Any]  # the preset's position encoding
    length: int = 0  # number of tokens in the document; 0 if it is unknown

    @property
    def stretch(self) -> float:
        """The document's length divided by the trained window, at least 1."""
        return max(1.0, self.length / self.context)

    def local_only(self) -> dict[str, int]:
        """Returns window sizes that spend the whole budget on the most recent tokens."""
        return {"selected": 0, "local": self.window.selected + self.window.local}


Base = PresetSizes
"""The name by which plugins import the class."""

OWN_SCORE: dict[str, Any] = {"score": {"name": "vote", "shortlist": 0, "contrast": False}}
"""Settings for selectors that score by themselves; `vote` needs no reduced keys."""

Settings = Callable[[PresetSizes], dict[str, Any]]
LAID = ("window", "selector", "score", "compressor", "position", "reading")
"""Settings that a recipe may set; model, prompt and trained window stay for a comparison."""


@dataclass(frozen=True)
class MethodRecipe:
    """A method by name, with a function that returns the method's settings for a preset."""

    name: str
    about: str
    source: str  # the paper
    cost: str  # per step, in the letters of docs/plugins.md
    settings: Settings
    full: bool  # whether attention is full
    origin: str  # the module or plugin file


RECIPES: PluginRegistry[MethodRecipe] = PluginRegistry("method")


def recipe(
    name: str, *, about: str, source: str, cost: str, full: bool = False
) -> Callable[[Settings], Settings]:
    """Returns a decorator of a function that returns a method's settings. Raises PluginError."""
    refuse_reserved_method_name(name)

    def register_settings_function(settings: Settings) -> Settings:
        origin = get_defining_module(settings)
        whole = MethodRecipe(name, about, source, cost, settings, full, origin)
        RECIPES.add(name, whole, settings)
        return settings

    return register_settings_function


def find_method(name: str) -> MethodRecipe:
    """Returns a method, or one that only sets the selector of this name. Raises UsageError."""
    if name in RECIPES:
        return RECIPES[name]
    selectors = PARTS["selector"]
    if name not in selectors:
        hint = suggest_name(name, {*RECIPES, *selectors})
        raise UsageError(f"unknown method {name!r}", f"{hint}; `esa methods` lists all methods")

    def build_method_settings(preset: PresetSizes) -> dict[str, Any]:
        return {"selector": {"name": name}, "window": {"ending": preset.window.ending}}

    about, where = "the preset's settings with this selector", selectors.find_module(name)
    return MethodRecipe(name, about, where, "", build_method_settings, False, where)


# Hashes of plugin files and of setting files, so that documents of earlier contents are not reused.

_WITHOUT_FILE: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def hash_plugin_sources(method: Method) -> dict[str, str]:
    """Returns hashes of the plugin files that a method's classes come from, by kind of class. A
    class without a file, from an interactive session, has a random name instead."""
    hashes = {}
    for kind in KINDS:
        cls = type(getattr(method, kind))
        if not cls.__module__.startswith("esa_cli."):
            file = _find_source_file(cls)
            random = _WITHOUT_FILE.setdefault(cls, uuid.uuid4().hex)
            hashes[kind] = _hash_file(file) if file else random
    return hashes


def find_kind_without_source_file(method: Method) -> str:
    """Returns the first kind, such as `selector`, whose class has no source file, or ""."""
    return next((kind for kind in KINDS if not _find_source_file(type(getattr(method, kind)))), "")


def hash_setting_files(settings: Mapping[str, Any], files: Sequence[str] = ()) -> dict[str, Any]:
    """Replaces file paths in the settings of a class by hashes of the files' contents. `files` are
    those that the part loads; the hashes of files that no setting names are under `files`."""
    hashed = dict(settings)
    for key, value in settings.items():
        if key == "file" or value in files:
            hashed[key] = _hash_file(Path(str(value)).expanduser())
    others = [_hash_file(Path(f).expanduser()) for f in files if f not in settings.values()]
    return {**hashed, "files": others} if others else hashed


def _find_source_file(part_class: type) -> Path | None:
    try:
        return Path(inspect.getfile(part_class))
    except (TypeError, OSError):  # a class defined in an interactive session
        return None


def _hash_file(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        reason = error.strerror or str(error)
        raise PresetError(f"{path} cannot be read: {reason}", "check the path") from error
