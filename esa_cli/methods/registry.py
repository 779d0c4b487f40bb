"""Methods by name: their parts (selectors, scores, compressors, positions), and recipes.

A part is a frozen dataclass; its fields are the keys a preset may set. A recipe is a whole method:
the parts and windows of a published one, at the preset's token budget I + K + L, so that methods
can be compared; `qa.presets.resolved_preset` merges it into a preset. Built-in methods and those of
plugins are registered by the same decorators. This file does without torch,
so that presets are checked quickly.
"""

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
from esa_cli.system.registry import Registry, nearest, origin_of

if TYPE_CHECKING:
    from esa_cli.attention.method import Method

KINDS = ("selector", "score", "compressor", "position")
RESERVED = {"preset": "the preset as it is", "text": "answers from text"}
"""Names that stand for these where methods are compared, so that no method may have them."""
T = TypeVar("T", bound=type)


class Part(NamedTuple):
    """A registered class; `cost` is of one step, in the letters of `attention`. `about` is the
    docstring's first line unless given; `source` and `cost` those of the recipe of the same name,
    or of the first one in the same file.
    """

    kind: str
    name: str
    about: str
    source: str
    cost: str
    cls: type

    def texts(self) -> dict[str, str]:
        """All but the class."""
        return {key: value for key, value in self._asdict().items() if key != "cls"}


PARTS: dict[str, Registry[Part]] = {kind: Registry(kind) for kind in KINDS}


def register(
    kind: str, name: str, *, about: str = "", source: str = "", cost: str = ""
) -> Callable[[T], T]:
    """Class decorator: makes a dataclass available to presets as `kind: {name: ...}`; see `Part`.

    Raises:
        PluginError: unknown kind, not a dataclass, or the name is taken by another class; or a
            selector's is reserved, for it is also a method's.
    """

    def keep(cls: T) -> T:
        if kind not in KINDS:
            raise PluginError(
                f"cannot register {name!r}: no such kind {kind!r}", nearest(kind, KINDS)
            )
        if kind == "selector":
            check_method_name(name)
        if not dataclasses.is_dataclass(cls):
            raise PluginError(
                f"{kind} {name!r} is not a dataclass", "put @dataclass(frozen=True) under @register"
            )
        if "name" in {field.name for field in dataclasses.fields(cls)}:
            raise PluginError(
                f"{kind} {name!r} has a setting 'name', which means the method itself",
                "call it something else",
            )
        first = (cls.__doc__ or "").strip().partition("\n")[0]
        summary = "" if first.startswith(f"{cls.__name__}(") else first  # a dataclass's signature
        PARTS[kind].add(name, Part(kind, name, about or summary, source, cost, cls), cls)
        return cls

    return keep


def check_method_name(name: str) -> None:
    """Raises PluginError for a name of `RESERVED`."""
    if name in RESERVED:
        raise PluginError(
            f"a method's name must be none of {', '.join(map(repr, RESERVED))}, got {name!r}",
            f"choose another name; in comparisons {name!r} means {RESERVED[name]}",
        )


def names(kind: str) -> list[str]:
    """Registered names of one kind, sorted."""
    return sorted(PARTS[kind])


def origin(kind: str, name: str) -> str:
    """The module or plugin file that registered a part."""
    return PARTS[kind].origin(name)


def parts() -> list[Part]:
    """Every registered part, kind by kind, in each by name."""
    return [_with_texts(PARTS[kind][name]) for kind in KINDS for name in names(kind)]


def _with_texts(part: Part) -> Part:
    where = origin(part.kind, part.name)
    beside = [RECIPES[name] for name in RECIPES if RECIPES[name].origin == where]
    if not beside:
        return part
    method = min(beside, key=lambda recipe: recipe.name != part.name)
    return part._replace(source=part.source or method.source, cost=part.cost or method.cost)


def lookup(kind: str, name: str) -> type:
    """The class registered as `kind: name`.

    Raises:
        PresetError: there is none; the message names the nearest.
    """
    if name not in PARTS[kind]:
        raise PresetError(f"unknown {kind} {name!r}", nearest(name, names(kind)))
    return PARTS[kind][name].cls


def build(kind: str, options: Mapping[str, Any]) -> Any:
    """Makes the method `options['name']` with the other entries as its fields.

    Raises:
        PresetError: unknown name or field, a value of the wrong type, or one the class refuses.
    """
    fields = dict(options)
    name = fields.pop("name", None)
    if not isinstance(name, str):
        reason = "has no name" if name is None else f"has the name {name!r}: put it in quotes"
        raise PresetError(f"{kind} {reason}", f"known: {', '.join(names(kind))}")
    cls = lookup(kind, name)
    known = {field.name for field in dataclasses.fields(cls) if field.init}
    for key in fields:
        if key not in known:
            raise PresetError(
                f"{kind} {name!r} has no setting {key!r}", nearest(key, sorted(known))
            )
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
        raise PluginError(
            f"{kind} {name!r} has a setting that a preset cannot hold: {setting}",
            "use int, float, bool, str or Literal, imported outside `if TYPE_CHECKING`",
        ) from error
    except (TypeError, ValueError) as error:
        raise PresetError(f"{kind} {name!r}: {error}", "see `esa presets show`") from error


class Base(NamedTuple):
    """The preset's settings that a recipe may use.

    Args:
        window: the token budget. context: the model's trained window, tokens.
        position: the preset's position encoding. length: tokens of the document; 0: unknown.
    """

    window: Window
    context: int
    position: Mapping[str, Any]
    length: int = 0

    @property
    def stretch(self) -> float:
        """How many times the trained window the document is long, at least 1."""
        return max(1.0, self.length / self.context)

    def local_only(self) -> dict[str, int]:
        """Windows that spend the whole budget on the most recent tokens."""
        return {"selected": 0, "local": self.window.selected + self.window.local}


OWN_SCORE: dict[str, Any] = {"score": {"name": "vote", "shortlist": 0, "contrast": False}}
"""For selectors with scores of their own: `vote` needs no reduced keys, so none are stored."""

Settings = Callable[[Base], dict[str, Any]]
LAID = ("window", "selector", "score", "compressor", "position", "reading")
"""Settings that a recipe may set; model, prompt and trained window stay for a comparison."""


@dataclass(frozen=True)
class Recipe:
    """A method by name.

    Args:
        about: one line. source: the paper. cost: of one step, in the letters of `attention`.
        settings: returns the settings merged into a preset. full: full attention, whatever the
            budget, during prefill, too. origin: the module or plugin file that registers it.
    """

    name: str
    about: str
    source: str
    cost: str
    settings: Settings
    full: bool
    origin: str


RECIPES: Registry[Recipe] = Registry("method")


def recipe(
    name: str, *, about: str, source: str, cost: str, full: bool = False
) -> Callable[[Settings], Settings]:
    """Decorator of the function that returns a method's settings; see `Recipe`.

    Raises:
        PluginError: the name is taken by another function, or reserved.
    """
    check_method_name(name)

    def keep(settings: Settings) -> Settings:
        whole = Recipe(name, about, source, cost, settings, full, origin_of(settings))
        RECIPES.add(name, whole, settings)
        return settings

    return keep


def recipes() -> list[Recipe]:
    """Every recipe, built in and from plugins, by name."""
    return [RECIPES[name] for name in sorted(RECIPES)]


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; a selector without one is used with the preset's settings.

    Raises:
        UsageError: there is neither; the message names the nearest.
    """
    if name in RECIPES:
        return RECIPES[name]
    selectors = names("selector")
    if name in selectors:
        return Recipe(
            name,
            "the preset's settings with this selector",
            origin("selector", name),
            "",
            lambda base: {"selector": {"name": name}, "window": {"ending": base.window.ending}},
            False,
            origin("selector", name),
        )
    hint = nearest(name, {*RECIPES, *selectors})
    raise UsageError(f"unknown method {name!r}", f"{hint}; `esa methods` lists all")


# Content hashes of plugin sources and of files named in settings: documents stored with an earlier
# content are not reused. What these files import is not hashed.

_WITHOUT_FILE: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def sources(method: Method) -> dict[str, str]:
    """Hashes of the plugin files that define the method's parts, by kind of part.

    A class defined in an interactive session has no file, and a random name in place of a hash.
    """
    hashes = {}
    for name in KINDS:
        kind = type(getattr(method, name))
        if not kind.__module__.startswith("esa_cli."):
            file = _file(kind)
            hashes[name] = _of(file) if file else _WITHOUT_FILE.setdefault(kind, uuid.uuid4().hex)
    return hashes


def without_file(method: Method) -> str:
    """The first kind of part whose class has no source file; empty where all have one."""
    kinds = {name: type(getattr(method, name)) for name in KINDS}
    return next((name for name, kind in kinds.items() if _file(kind) is None), "")


def contents(settings: Mapping[str, Any], files: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of one part; those that name a file have the hash of its content.

    Args:
        files: of the part (`Compressor.files`); a setting called `file` names one, too. Files that
            no setting names are hashed under `files`.
    """
    out = dict(settings)
    for key, value in settings.items():
        if key == "file" or value in files:
            out[key] = _of(Path(str(value)).expanduser())
    others = [_of(Path(one).expanduser()) for one in files if one not in settings.values()]
    return {**out, "files": others} if others else out


def _file(kind: type) -> Path | None:
    try:
        return Path(inspect.getfile(kind))
    except (TypeError, OSError):  # a class defined in an interactive session
        return None


def _of(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        reason = error.strerror or str(error)
        raise PresetError(f"{file} cannot be read: {reason}", "check the path") from error
