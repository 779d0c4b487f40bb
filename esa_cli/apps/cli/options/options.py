"""Options that several commands share, singly and in groups.

A command takes a group as one parameter; `command` makes each of its fields an option.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from esa_cli.apps.cli import completion
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.qa.opening import ModelPlace
    from esa_cli.qa.presets.preset import Preset as LoadedPreset

DEFAULT_PRESET = "default"

Preset = Annotated[
    str,
    typer.Option(
        "--preset",
        "-p",
        metavar="NAME",
        help="A name from `esa presets list`, or a YAML file.",
        autocompletion=completion.presets,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="REF",
        help="What words the answers or runs the method: a hub id, folder, .gguf file or wheel, or "
        "a name from `esa models list --known`.",
        autocompletion=completion.models,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of the preset, as window.selected=2048. Repeatable.",
    ),
]
Plugin = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE", help="Run a plugin file first. Repeatable."),
]
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps.")
]
Dtype = Annotated[
    str, typer.Option("--dtype", metavar="NAME", help="auto, float32, bfloat16, int8, nf4, ...")
]
Cache = Annotated[
    str,
    typer.Option("--cache", metavar="PLACE", help="Of keys and values: auto, device, host, disk."),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Answer from rows by a whole method, by its name in `esa methods`.",
        autocompletion=completion.methods,
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        "--methods",
        metavar="NAME,...",
        help="Names from `esa methods`, with commas; `preset`: the preset as it is.",
        autocompletion=completion.method_list,
    ),
]
MethodsOrDefault = Annotated[
    str | None,
    typer.Option(
        "--methods",
        metavar="NAME,...",
        help="Names from `esa methods`, with commas; `preset`: the preset's selection of stored "
        "rows; `text`: its answers from text. Default: preset, and text where it answers so.",
        autocompletion=completion.method_list,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-new-tokens", metavar="N", min=1, help="The longest answer, in tokens."),
]


def _temperature(value: float | None) -> float | None:
    """The option's value. Raises UsageError: nothing can be divided by it."""
    from esa_cli.qa.presets.preset import TEMPERATURES, valid_temperature

    if value is not None and not valid_temperature(value):
        raise UsageError(
            f"--temperature must be {TEMPERATURES}, got {value}", "leave it out for the preset's"
        )
    return value


Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        metavar="T",
        min=0.0,
        callback=_temperature,
        help="0: always the likeliest word.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", min=0, max=2**63 - 1, help="Makes sampling repeatable."),
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", min=0, metavar="MINUTES", help="Begin nothing after so long."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="JSON lines; a file that is there is continued."),
]
Keep = Annotated[
    bool | None,
    typer.Option(
        "--keep/--no-keep",
        help="Put what is read into the library, or not; by default what is read for finding.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@dataclass(frozen=True)
class ModelOptions:
    """The preset, changes of its settings, the device and dtype of its model, and its cache."""

    preset: Preset = DEFAULT_PRESET
    model: Model = None
    settings: Set = None
    plugins: Plugin = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    cache: Cache = "auto"

    @property
    def place(self) -> ModelPlace:
        """Where the model will be. Raises UsageError: there is no such device, dtype or cache."""
        from esa_cli.qa.opening import ModelPlace

        return ModelPlace.of(self.device, self.dtype, self.cache)

    def overrides(
        self, parts: Mapping[str, str | None] | None = None, more: Sequence[str] = ()
    ) -> list[str]:
        """`key=value` texts for `preset.load`: options of one setting first, then --set.

        Args:
            parts: setting -> value of options that name a part of the method. more: such texts of
                other options.
        """
        named = {"model": self.model, **(parts or {})}
        given = [
            f"{key}={json.dumps(value, ensure_ascii=False)}"
            for key, value in named.items()
            if value is not None
        ]
        return [*given, *more, *(self.settings or [])]

    def load_preset(
        self,
        parts: Mapping[str, str | None] | None = None,
        method: str | None = None,
        more: Sequence[str] = (),
    ) -> LoadedPreset:
        """Runs the plugin files, and loads the preset with the settings of the command line.

        Args:
            parts, more: as for `overrides`.
            method: a whole method over the preset, one that is not made for one length.

        Raises:
            PluginError, PresetError, ModelError: the preset's model is no reference.
            UsageError: no such method, or it is made for one length.
        """
        load_plugins(self.plugins)
        from esa_cli.models import parse_reference
        from esa_cli.qa.presets.preset import load

        chosen = load(self.preset, self.overrides(parts, more))
        if method is not None:
            from esa_cli.qa.presets.resolved_preset import for_length

            chosen = for_length(method, chosen, 0)
        parse_reference(chosen.model)
        self._say_way(chosen)
        return chosen

    def method_preset(self) -> LoadedPreset:
        """As `load_preset`, for commands that run methods: --model is the model that they run in,
        in every preset."""
        from esa_cli.qa.presets.preset import by_its_model

        return by_its_model(self.load_preset())

    def _say_way(self, chosen: LoadedPreset) -> None:
        """Says what a former name of a preset stands for."""
        from esa_cli.apps.cli.output.terminal import Reporter
        from esa_cli.qa.presets.preset_files import known_models

        facts = None if self.preset == chosen.name else known_models().get(self.preset)
        if facts is not None:
            way = f"--preset {chosen.name} --model {self.preset}"
            Reporter().warn(f"esa: {self.preset} is a model now, not a preset: use {way}")


@dataclass(frozen=True)
class GenerationOptions:
    """Settings of generation; None takes the preset's."""

    max_new_tokens: MaxTokens = None
    temperature: Temperature = None
    seed: Seed = None

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for `Esa.ask`."""
        return asdict(self)


DEFAULTS = ModelOptions()
AS_PRESET = GenerationOptions()


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function for Typer: a parameter that is a dataclass becomes one option a field."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        kind = groups.get(parameter.name)
        if kind is None:
            own = {parameter.name: parameter.default}
        else:
            own = {field.name: field.default for field in fields(kind)}
        types = hints if kind is None else get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name]
            )
            for name, default in own.items()
        ]

    @functools.wraps(function)
    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        function(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def compared_methods(text: str | None, chosen: LoadedPreset) -> tuple[str, ...]:
    """The methods to compare: those that are named, else the preset's own."""
    from esa_cli.qa.presets.resolved_preset import compared_by_default

    return compared_by_default(chosen) if text is None else names(text)


def load_plugins(files: Sequence[Path] | None) -> None:
    """Runs the plugin files. Raises PluginError."""
    if files:
        from esa_cli.methods.plugin_loading import load_file, load_installed

        load_installed()
        for file in files:
            load_file(file)
