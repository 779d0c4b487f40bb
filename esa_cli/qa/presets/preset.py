"""Presets: YAML files that name a model, a method and a prompt.

    extends -> merged mapping -> overrides (--set) -> validated, frozen Preset

Unknown keys and keys that are given twice are errors. A preset cannot run code: methods are looked
up by name, and only the command line loads plugin files.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator
from pydantic_core import PydanticCustomError

from esa_cli.attention.window import Window
from esa_cli.errors import PresetError
from esa_cli.methods.registry import KINDS
from esa_cli.qa.presets.answer_settings import AnswerSettings
from esa_cli.qa.presets.preset_files import find, read_file, shipped
from esa_cli.qa.presets.preset_override import parse_override
from esa_cli.system.registry import nearest
from esa_cli.system.strict_yaml import dump_yaml

DEFAULT = "smollm2-135m"
TEMPERATURES = "0, or at least 1e-06 and finite"


def valid_temperature(temperature: float) -> bool:
    """Whether logits divided by it are finite, or it is 0, which is greedy."""
    return temperature == 0 or (temperature >= 1e-6 and math.isfinite(temperature))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Prompt(_Strict):
    """The words around the document and the question, inside the model's chat template.

    `before` comes before the document; `after` comes behind it and holds `{question}`.
    `chat`: inside the model's chat template, if it has one.
    """

    system: str | None = None
    before: str = ""
    after: str = "\n\n{question}"
    chat: bool = True


class Generation(_Strict):
    max_new_tokens: int = Field(default=64, ge=1)
    temperature: float = 0.0
    top_p: float = Field(default=1.0, gt=0, le=1)

    @field_validator("temperature")
    @classmethod
    def _can_divide(cls, temperature: float) -> float:
        if not valid_temperature(temperature):
            raise PydanticCustomError("temperature", f"must be {TEMPERATURES}")
        return temperature


class Preset(_Strict):
    """A validated preset. The four method parts stay mappings: plugins define their settings."""

    name: str
    description: str = ""
    model: str
    context: int = Field(ge=1)
    """The model's trained window, in tokens."""
    window: Window = Window()
    selector: dict[str, Any] = {"name": "topk"}
    score: dict[str, Any] = {"name": "sum"}
    compressor: dict[str, Any] = {"name": "closed-form"}
    position: dict[str, Any] = {"name": "esa"}
    reading: Literal["select", "local"] = "select"
    kernel: str = "auto"
    prompt: Prompt = Prompt()
    answer: AnswerSettings = AnswerSettings()
    generation: Generation = Generation()


_sizes: dict[str, Any] = {
    one.name: (get_type_hints(Window)[one.name], one.default) for one in fields(Window)
}
_WINDOW: Any = create_model("Window", __base__=_Strict, **_sizes)
"""The fields of `Window`, for pydantic: in strict mode it makes no dataclass of a mapping."""
_HOLDER: Any = create_model("_HOLDER", window=(_WINDOW, ...))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated with `over`, mapping by mapping; a part with another name replaces the old."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            renamed = key in KINDS and value.get("name", old.get("name")) != old.get("name")
            out[key] = dict(value) if renamed else merge(old, value)
        else:
            out[key] = value
    return out


def laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`merge` of two presets; `score.heads` and `answer`, but its examples, of one model are not
    taken over to another model."""
    out = merge(base, over)
    own = over.get("score")
    elsewhere = "model" in over and "model" in base and over["model"] != base["model"]
    if elsewhere and "answer" in base:
        kept = {"examples": base["answer"]["examples"]} if "examples" in base["answer"] else {}
        out["answer"] = {**kept, **(over.get("answer") or {})}
    if elsewhere and isinstance(out.get("score"), dict) and "heads" not in (own or {}):
        out["score"] = {key: value for key, value in out["score"].items() if key != "heads"}
    return out


def _extended(path: Path, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    path = path.resolve()
    if path in chain:
        loop = " -> ".join(step.stem for step in (*chain, path))
        raise PresetError(f"presets extend each other in a circle: {loop}", "remove one `extends`")
    data = read_file(path)
    parent = data.pop("extends", None)
    if parent is None:
        return data
    if not isinstance(parent, str):
        raise PresetError(f"{path}: extends must be the name of one preset, got {parent!r}", "")
    chain = (*chain, path)
    below = find(parent, near=path.parent)
    if below.resolve() in chain:  # one's own preset lies over the shipped one of that name
        below = shipped().get(parent, below)
    return laid_over(_extended(below, chain), data)


def _known_keys(model: type[BaseModel], where: Sequence[str | int]) -> list[str]:
    keys = [key for key in model.model_fields if not (model is Preset and key == "name")]
    for part in where:
        annotation = model.model_fields[str(part)].annotation
        if annotation is Window:
            annotation = _WINDOW
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
        before = "".join(f"{part}." for part in above)
        hint = nearest(str(key), _known_keys(Preset, above), before)
        return PresetError(f"preset {source} has no setting {where!r}", hint)
    if first["type"] == "missing":
        return PresetError(
            f"preset {source} lacks {where!r}", "set it, or extend a preset that does"
        )
    message = first["msg"].replace("Input should", "must")
    return PresetError(
        f"preset {source}: {where} {message}, got {reprlib.repr(first['input'])}",
        "see `esa presets show`",
    )


def load(name: str = DEFAULT, overrides: Sequence[str] = ()) -> Preset:
    """Reads, merges and validates a preset.

    Args:
        name: a shipped or user preset's name, or a path. overrides: `key.path=value` strings.

    Raises:
        PresetError: it is missing or malformed, or a setting is wrong.
    """
    path = find(name)
    # An override of one setting keeps the default part's name.
    defaults = {kind: Preset.model_fields[kind].default for kind in KINDS}
    data = merge(defaults, _extended(path))
    for text in overrides:
        data = laid_over(data, parse_override(text))
    if "name" in data:
        raise PresetError("--set cannot change a preset's name", "save it under another file name")
    return validated(path.stem, data)


def validated(name: str, data: Mapping[str, Any]) -> Preset:
    """The preset `name` with these settings.

    Raises:
        PresetError: one is malformed, or they contradict each other.
    """
    try:
        window = _HOLDER.model_validate({"window": data.get("window", {})}).window.model_dump()
        preset = Preset.model_validate({**data, "window": Window(**window), "name": name})
    except ValidationError as error:
        raise _explain(error, name) from error
    except ValueError as error:
        raise PresetError(f"preset {name}: {error}", "see `esa presets show`") from error
    window = preset.window
    total = window.initial + window.selected + window.local + window.chunk
    if total > preset.context:
        raise PresetError(
            f"preset {preset.name}: window.initial + selected + local + chunk must be at most the "
            f"model's window of {preset.context}, got {total}",
            "lower window.selected or window.local",
        )
    if (window.dense or 0) > preset.context:
        raise PresetError(
            f"preset {preset.name}: window.dense must be at most the model's window of "
            f"{preset.context}, got {window.dense}",
            "full attention beyond the window is noise; lower window.dense",
        )
    if (count := preset.prompt.after.count("{question}")) != 1:
        raise PresetError(
            f"preset {preset.name}: prompt.after must have {{question}} once, got {count}",
            "see `esa presets show`",
        )
    return preset


def dump(preset: Preset) -> str:
    """The whole preset as YAML that can be saved and used as one."""
    data = preset.model_dump(exclude={"name"})
    return dump_yaml(data)
