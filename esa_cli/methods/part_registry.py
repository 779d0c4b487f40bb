"""Parts of a method by name: selectors, scores, compressors and position encodings.

A part is a frozen dataclass; its fields are the keys a preset may set. Built-in parts and those of
plugins are registered by the same decorator; `plugin_loading` loads plugins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, get_type_hints

from esa_cli.errors import PluginError, PresetError
from esa_cli.system.registry import Registry, nearest

KINDS = ("selector", "score", "compressor", "position")
RESERVED = {
    "preset": "the preset as it is",
    "text": "answers from text",
}
"""Names that stand for these where methods are compared, so that no method may have them."""
T = TypeVar("T", bound=type)


class Part(NamedTuple):
    """A registered class; `cost` is of one step, in the letters of `attention`. A plugin may leave
    all texts out: `about` is then the docstring's first line.
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
        if any(field.name == "name" for field in dataclasses.fields(cls)):
            raise PluginError(
                f"{kind} {name!r} has a setting 'name', which means the method itself",
                "call it something else",
            )
        first = (cls.__doc__ or "").strip().partition("\n")[0]
        said = "" if first.startswith(f"{cls.__name__}(") else first  # a dataclass's signature
        PARTS[kind].add(name, Part(kind, name, about or said, source, cost, cls), cls)
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
    return [PARTS[kind][name] for kind in KINDS for name in names(kind)]


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
