"""Presets: YAML files that name a model, a method and a prompt.

    extends -> merged mapping -> overrides (--set) -> validated, frozen Preset

Unknown keys are errors that name the nearest known one. A preset cannot run code: methods are
looked up by name, and only the command line loads plugin files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from platformdirs import user_config_path
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import PresetError
from .registry import KINDS, nearest

DEFAULT = "smollm2-135m"
SUFFIXES = (".yaml", ".yml")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class WindowSettings(_Strict):
    """Tokens of each kind; see `method.Window`."""

    initial: int = Field(default=64, ge=0)
    selected: int = Field(default=1024, ge=0)
    local: int = Field(default=1024, ge=0)
    chunk: int = Field(default=512, ge=1)
    dense: int | None = Field(default=None, ge=0)


class Prompt(_Strict):
    """How the document and the question are put to the model, inside its chat template.

    `before` comes before the document; `after` comes behind it and holds `{question}`.
    `chat`: inside the model's chat template, if it has one.
    """

    system: str | None = None
    before: str = ""
    after: str = "\n\n{question}"
    chat: bool = True


class Generation(_Strict):
    max_new_tokens: int = Field(default=64, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)


class Preset(_Strict):
    """A validated preset. The four method parts stay mappings: plugins define their settings."""

    name: str
    description: str = ""
    model: str
    context: int = Field(ge=1)
    """The model's trained window, in tokens."""
    window: WindowSettings = WindowSettings()
    selector: dict[str, Any] = {"name": "topk"}
    score: dict[str, Any] = {"name": "sum"}
    compressor: dict[str, Any] = {"name": "closed-form"}
    position: dict[str, Any] = {"name": "esa"}
    reading: Literal["select", "local"] = "select"
    kernel: str = "auto"
    prompt: Prompt = Prompt()
    generation: Generation = Generation()


def shipped_dir() -> Path:
    """The folder of the presets that come with the package (beside it in a source checkout)."""
    inside = Path(__file__).parent / "presets"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "presets"


def user_dir() -> Path:
    """The user's own presets."""
    return user_config_path("esa") / "presets"


def available() -> dict[str, Path]:
    """Preset name -> file, the user's own over the shipped ones."""
    found: dict[str, Path] = {}
    for folder in (shipped_dir(), user_dir()):
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.suffix in SUFFIXES:
                    found[path.stem] = path
    return found


def find(name: str, near: Path | None = None) -> Path:
    """The file of a preset given by name or path; a path may be relative to `near`.

    Raises:
        PresetError: there is no such preset; the message names the nearest.
    """
    if name.endswith(SUFFIXES) or "/" in name:
        for base in ([near] if near else []) + [Path()]:
            path = base / Path(name).expanduser()
            if path.is_file():
                return path
        raise PresetError(
            f"no preset file {name}", "check the path, or use a name from `esa presets list`"
        )
    known = available()
    if name not in known:
        raise PresetError(f"unknown preset {name!r}", nearest(name, list(known)))
    return known[name]


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PresetError(f"cannot read preset {path}: {error}", "") from error
    except (yaml.YAMLError, ValueError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise PresetError(
            f"preset {path} is not valid YAML{line}", "YAML needs spaces, not tabs"
        ) from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise PresetError(f"preset {path} is not a mapping of settings", "see `esa presets show`")
    return data


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid upon `base`, mapping by mapping; a part with another name starts afresh."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            renamed = key in KINDS and value.get("name", old.get("name")) != old.get("name")
            out[key] = dict(value) if renamed else merge(old, value)
        else:
            out[key] = value
    return out


def _extended(path: Path, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    path = path.resolve()
    if path in chain:
        loop = " -> ".join(step.stem for step in (*chain, path))
        raise PresetError(f"presets extend each other in a circle: {loop}", "remove one `extends`")
    data = _read(path)
    parent = data.pop("extends", None)
    if parent is None:
        return data
    if not isinstance(parent, str):
        raise PresetError(f"{path}: extends must be the name of one preset", "")
    return merge(_extended(find(parent, near=path.parent), (*chain, path)), data)


def parse_override(text: str) -> dict[str, Any]:
    """`window.selected=2048` -> {"window": {"selected": 2048}}; the value is read as YAML.

    Raises:
        PresetError: no '=' or an unreadable value.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise PresetError(
            f"--set {text!r} is not KEY=VALUE", "for example --set window.selected=2048"
        )
    try:
        parsed = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:
        raise PresetError(f"--set {text!r}: the value is not readable", "quote it") from error
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    assert isinstance(parsed, dict)
    return parsed


def _known_keys(model: type[BaseModel], where: Sequence[str | int]) -> list[str]:
    keys = [key for key in model.model_fields if not (model is Preset and key == "name")]
    for part in where:
        annotation = model.model_fields[str(part)].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return keys
        model = annotation
        keys = list(model.model_fields)
    return keys


def _explain(error: ValidationError, source: str) -> PresetError:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        *above, key = first["loc"]
        hint = nearest(str(key), _known_keys(Preset, above))
        return PresetError(f"preset {source} has no setting {where!r}", hint)
    if first["type"] == "missing":
        return PresetError(
            f"preset {source} lacks {where!r}", "set it, or extend a preset that does"
        )
    message = first["msg"][0].lower() + first["msg"][1:]
    return PresetError(
        f"preset {source}: {where} = {first['input']!r}: {message}", "see `esa presets show`"
    )


def load(name: str = DEFAULT, overrides: Sequence[str] = ()) -> Preset:
    """Reads, merges and validates a preset.

    Args:
        name: a shipped or user preset's name, or a path. overrides: `key.path=value` strings.

    Raises:
        PresetError: it is missing, malformed, or does not hold.
    """
    path = find(name)
    # An override of one setting keeps the default part's name.
    defaults = {kind: Preset.model_fields[kind].default for kind in KINDS}
    data = merge(defaults, _extended(path))
    for text in overrides:
        data = merge(data, parse_override(text))
    return validated(path.stem, data)


def validated(name: str, data: Mapping[str, Any]) -> Preset:
    """The preset `name` with these settings.

    Raises:
        PresetError: they are malformed, or do not hold together.
    """
    try:
        preset = Preset.model_validate({**data, "name": name})
    except ValidationError as error:
        raise _explain(error, name) from error
    window = preset.window
    total = window.initial + window.selected + window.local + window.chunk
    if total > preset.context:
        raise PresetError(
            f"preset {preset.name}: a step attends to {total} tokens (initial + selected + local "
            f"+ chunk), more than the model's window of {preset.context}",
            "lower window.selected or window.local",
        )
    if (window.dense or 0) > preset.context:
        raise PresetError(
            f"preset {preset.name}: window.dense = {window.dense} lies beyond the model's window "
            f"of {preset.context}",
            "plain attention is noise there; lower window.dense",
        )
    if preset.prompt.after.count("{question}") != 1:
        raise PresetError(
            f"preset {preset.name}: prompt.after must hold {{question}} once", "add it"
        )
    return preset


def dump(preset: Preset) -> str:
    """The whole preset as YAML that can be saved and used as one."""
    data = preset.model_dump(exclude={"name"})
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
