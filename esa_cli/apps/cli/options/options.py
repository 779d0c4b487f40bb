"""Options that several commands share, singly and in groups.

A command takes a group as one parameter; `command` makes each annotated field an option.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from esa_cli.apps.cli.options import completion
from esa_cli.apps.cli.options.command_help import option
from esa_cli.errors import UsageError
from esa_cli.system.progress import WorkShard

if TYPE_CHECKING:
    from esa_cli.qa.opening import ModelPlace
    from esa_cli.qa.presets.preset import Preset as LoadedPreset
    from esa_cli.qa.reading.reader_choice import ReaderChoice

DEFAULT_PRESET = "default"
RUN_SETTINGS = ("dtype", "cache", "plugin")
"""Settings that `--set` takes and that are of one run, not of a preset."""

Preset = Annotated[
    str,
    option(
        "--preset -p NAME",
        "A name from `esa presets list`, or a YAML file.",
        autocompletion=completion.presets,
    ),
]
Model = Annotated[
    str | None,
    option(
        "--model -m REF",
        "What words the answers or runs the method: a hub id, folder, .gguf file or wheel, or "
        "a name from `esa models list --known`.",
        autocompletion=completion.models,
    ),
]
Set = Annotated[
    list[str] | None,
    option(
        "--set KEY=VALUE",
        "Change a setting of the preset, as window.selected=2048, or of the run: dtype, cache or "
        "plugin. Repeatable.",
    ),
]
Plugin = Annotated[
    list[Path] | None, option("--plugin FILE", "Run a plugin file first. Repeatable.")
]
Device = Annotated[str, option("--device NAME", "auto, cpu, cuda, cuda:1 or mps.")]
Method = Annotated[
    str | None,
    option("--method NAME", "Answer from rows by a whole method, by its name in `esa methods`."),
]
Methods = Annotated[
    str,
    option(
        "--methods NAME,...",
        "Names from `esa methods`, with commas; `preset`: the preset as it is.",
    ),
]
MethodsOrDefault = Annotated[
    str | None,
    option(
        "--methods NAME,...",
        "Names from `esa methods`, with commas; `preset`: the preset's selection of stored "
        "rows; `text`: its answers from text. Default: preset, and text where it answers so.",
    ),
]
MaxTokens = Annotated[
    int | None, option("--max-new-tokens N", "The longest answer, in tokens.", min=1)
]


def _temperature(value: float | None) -> float | None:
    """The option's value. Raises UsageError: logits cannot be divided by it."""
    from esa_cli.qa.presets.preset import TEMPERATURES, valid_temperature

    if value is not None and not valid_temperature(value):
        raise UsageError(
            f"--temperature must be {TEMPERATURES}, got {value}", "leave it out for the preset's"
        )
    return value


Temperature = Annotated[
    float | None,
    option("--temperature T", "0: always the likeliest word.", min=0.0, callback=_temperature),
]
Seed = Annotated[int | None, option("--seed N", "Makes sampling repeatable.", min=0, max=2**63 - 1)]
TimeLimit = Annotated[
    float | None, option("--time-limit MINUTES", "Begin nothing after so long.", min=0)
]
Out = Annotated[Path | None, option("--out FILE", "JSON lines; an existing file is continued.")]
Keep = Annotated[
    bool | None,
    option(
        "--keep/--no-keep", "Store documents in the library, or not; by default their token index."
    ),
]
Yes = Annotated[bool, option("--yes -y", "Do not ask.")]
Json = Annotated[bool, option("--json", "Print one JSON object.")]
Quiet = Annotated[bool, option("--quiet -q", "Show no progress.")]


@dataclass(frozen=True)
class ModelOptions:
    """The preset, changes of its settings, and where and how its model runs.

    `dtype`, `cache` and `plugins` are no options: `--set` has them, too.
    """

    preset: Preset = DEFAULT_PRESET
    model: Model = None
    settings: Set = None
    plugins: list[Path] | None = None
    device: Device = "auto"
    dtype: str = "auto"
    cache: str = "auto"

    def __post_init__(self) -> None:
        settings, plugins, run = list[str](), list(self.plugins or ()), dict[str, Any]()
        for setting in self.settings or ():
            key, equals, value = setting.partition("=")
            if key not in RUN_SETTINGS or not equals:
                settings.append(setting)
            elif key == "plugin":
                plugins.append(Path(value))
            else:
                run[key] = value
        run |= {"settings": settings, "plugins": plugins}
        for name in run:
            object.__setattr__(self, name, run[name])

    @property
    def place(self) -> ModelPlace:
        """Where the model will be. Raises UsageError: there is no such device, dtype or cache."""
        from esa_cli.qa.opening import ModelPlace

        return ModelPlace.of(self.device, self.dtype, self.cache)

    def overrides(self, more: Sequence[str] = ()) -> list[str]:
        """`key=value` texts for `preset.load`: --model, `more`, --set."""
        model = [] if self.model is None else [f"model={json.dumps(self.model)}"]
        return [*model, *more, *(self.settings or [])]

    def load_preset(self, method: str | None = None, more: Sequence[str] = ()) -> LoadedPreset:
        """Runs the plugin files, and loads the preset with the settings of the command line.

        Args:
            method: a whole method over the preset, one that is not made for one length.
            more: as for `overrides`.

        Raises:
            PluginError, PresetError, ModelError: the preset's model is no reference.
            UsageError: no such method, or it is made for one length.
        """
        load_plugins(self.plugins)
        from esa_cli.models import parse_reference
        from esa_cli.qa.presets.preset import load
        from esa_cli.qa.presets.preset_files import known_models

        chosen = load(self.preset, self.overrides(more))
        if method is not None:
            from esa_cli.qa.presets.resolved_preset import for_length

            chosen = for_length(method, chosen, 0)
        parse_reference(chosen.model)
        if self.preset != chosen.name and self.preset in known_models():
            from esa_cli.apps.cli.output.terminal import Reporter

            way = f"--preset {chosen.name} --model {self.preset}"
            Reporter().warn(f"esa: {self.preset} is a model now, not a preset: use {way}")
        return chosen

    def method_preset(self) -> LoadedPreset:
        """As `load_preset`, for commands that run methods: --model is the model that they run in,
        in every preset."""
        from esa_cli.qa.presets.preset import by_its_model

        return by_its_model(self.load_preset())


@dataclass(frozen=True)
class GenerationOptions:
    """Settings of generation; None takes the preset's."""

    max_new_tokens: MaxTokens = None
    temperature: Temperature = None
    seed: Seed = None

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for `Esa.ask`."""
        return asdict(self)


TIMEOUT = "ESA_READER_TIMEOUT"


@dataclass(frozen=True)
class ReaderOptions:
    """What words answers, if not the preset's model."""

    reader: Annotated[
        str | None,
        option(
            "--reader URL#MODEL|REF",
            "What words answers from the passages: an OpenAI-compatible server, to which they are "
            "sent, and its model (its first by default), or a model as for --model.",
        ),
    ] = None
    answer: str | None = None

    @property
    def _server(self) -> tuple[str | None, str | None]:
        """The reader without a model of the server, and that model."""
        from esa_cli.qa.presets.preset_files import is_address

        if self.reader is None or not is_address(self.reader):
            return self.reader, None
        address, _, model = self.reader.partition("#")
        return address, model or None

    @property
    def dependencies(self) -> dict[str, str | None]:
        """What answers depend on besides the preset; empty without a reader."""
        return {} if self.reader is None else {"reader_model": self._server[1]}

    def reader_choice(self) -> ReaderChoice | None:
        """The reader that is named, not opened yet.

        Raises:
            UsageError, PresetError, ModelError: there cannot be one of this name.
        """
        reader, model = self._server
        if reader is None:
            return None
        from esa_cli.qa.presets.preset_files import is_address
        from esa_cli.qa.reading.reader_choice import ReaderChoice

        seconds = os.environ.get(TIMEOUT) if is_address(reader) else None
        try:
            timeout = float(seconds) if seconds else None
        except ValueError:
            raise UsageError(f"{TIMEOUT} must be seconds, got {seconds}", "as 600") from None
        return ReaderChoice.of(reader, model, timeout)

    def load_preset(
        self, model: ModelOptions, method: str | None = None, asked_by: str | None = None
    ) -> LoadedPreset:
        """`ModelOptions.load_preset` with these settings below those of --set.

        Args:
            asked_by: a method that will be applied to the preset later.

        Raises:
            UsageError: they are of passages, and answers come from rows.
        """
        reader, form = self._server[0], self.answer
        settings = [] if form is None else [f"answer.form={json.dumps(form)}"]
        if reader is not None:
            settings += [f"answer.reader={json.dumps(reader)}", "answer.from=text"]
        chosen = model.load_preset(method, settings)
        if form is not None and chosen.answer.reader is not None:
            raise UsageError(
                f"--answer {form} is of the model that finds, and {chosen.answer.reader} "
                "words answers in its own way",
                "leave out --answer, or --model and --reader",
            )
        options = {"--answer": form, "--reader": self.reader}
        option = next((f"{name} {value}" for name, value in options.items() if value), None)
        if option and (asked_by or chosen.answer.source == "rows"):
            rows = f"--method {asked_by}" if asked_by else f"preset {chosen.name}"
            raise UsageError(
                f"{option} needs answers from passages, and {rows} answers from the rows it "
                "selects",
                "add --set answer.from=text, and name no method or part of one",
            )
        return chosen


@dataclass(frozen=True)
class AnswerOptions(ReaderOptions):
    """The form of answers, and what words them."""

    answer: Annotated[
        Literal["auto", "span", "text"] | None,
        option(
            "--answer auto|span|text",
            "span: a quotation; text: in free words; auto: as the question asks for.",
        ),
    ] = None


Shard = Annotated[
    str | None, option("--shard K/N", "Only the K-th of N parts of the work, as 3/16; see --join.")
]


@dataclass(frozen=True)
class ShardOptions:
    """The shard of a command that writes rows, and files with rows of other shards."""

    shard: Shard = None
    join: Annotated[
        list[Path] | None,
        option("--join FILE", "Take the rows of this --out of a shard first. Repeatable."),
    ] = None

    def check(self, out: Path | None) -> WorkShard:
        """The shard. Raises UsageError: it is none, or a file to join is missing or is --out."""
        for path in self.join or ():
            if not path.is_file():
                raise UsageError(f"--join must be a file, got {path}", "name the --out of a shard")
        from esa_cli.apps.cli.options.output_paths import spare

        spare("--out", out, map(str, self.join or ()), "one of the files of --join")
        return WorkShard.parse(self.shard)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function for Typer: a parameter that is a dataclass becomes one option for each of its
    annotated fields."""
    hints = get_type_hints(function, include_extras=True)
    groups = dict[str, tuple[Any, list[str]]]()
    parameters = list[inspect.Parameter]()

    def add(name: str, default: Any, kind: Any) -> None:
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))

    for parameter in inspect.signature(function).parameters.values():
        group = hints[parameter.name]
        if not is_dataclass(group):
            add(parameter.name, parameter.default, group)
            continue
        types = get_type_hints(group, include_extras=True)
        options = [field for field in fields(group) if hasattr(types[field.name], "__metadata__")]
        groups[parameter.name] = group, [field.name for field in options]
        for field in options:
            add(field.name, field.default, types[field.name])

    @functools.wraps(function)
    def run(**values: Any) -> None:
        for name, (group, own) in groups.items():
            values[name] = group(**{field: values.pop(field) for field in own})
        function(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def exclusive(one: str, other: str, both: object, hint: str = "give one of them") -> None:
    """Raises UsageError where two options that exclude each other are `both` given."""
    if both:
        raise UsageError(f"{one} and {other} exclude each other", hint)


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


def confirm_removal(kind: str, what: str, yes: bool) -> None:
    """Asks on the terminal whether to remove it, unless --yes is given.

    Raises:
        UsageError: there is no terminal. typer.Exit: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"removing a {kind} must be confirmed", "add --yes")
    if not typer.confirm(f"Remove {what}?", err=True):
        raise typer.Exit(1)
