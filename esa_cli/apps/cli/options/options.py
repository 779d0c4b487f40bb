"""Options that several commands share, singly and in groups.

A command takes a group as one parameter; `command` makes each annotated field an option.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from esa_cli.apps.cli.options import completion, output_paths
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

Set = Annotated[
    list[str] | None,
    option(
        "--set KEY=VALUE",
        "Change a setting of the preset, as window.selected=2048, or of the run: dtype, cache or "
        "plugin. Repeatable.",
    ),
]
Method = Annotated[
    str | None,
    option("--method NAME", "Answer from the KV cache, by a method that `esa methods` lists."),
]
MaxTokens = Annotated[int | None, option("--max-new-tokens N", "Longest answer, in tokens.", min=1)]
Keep = Annotated[
    bool | None,
    option(
        "--keep/--no-keep", "Store documents in the library, or not; by default their token index."
    ),
]
Yes = Annotated[bool, option("--yes -y", "Remove without asking.")]
Json = Annotated[bool, option("--json", "Print the result as one JSON object.")]
Quiet = Annotated[bool, option("--quiet -q", "Show warnings alone, no progress.")]
Shard = Annotated[
    str | None, option("--shard K/N", "Do only the K-th of N parts of the work, as 3/16.")
]


@dataclass(frozen=True)
class ModelOptions:
    """The preset, changes of its settings, and where and how its model runs.

    `dtype`, `cache` and `plugins` are settings of `--set`, not options.
    """

    preset: Annotated[
        str,
        option(
            "--preset -p NAME",
            "A name from `esa presets list`, or a YAML file.",
            autocompletion=completion.presets,
        ),
    ] = DEFAULT_PRESET
    model: Annotated[
        str | None,
        option(
            "--model -m REF",
            "What words the answers or runs the method: a hub id, folder, .gguf file or wheel, or "
            "a name from `esa models list --known`.",
            autocompletion=completion.models,
        ),
    ] = None
    settings: Set = None
    plugins: list[Path] | None = None
    device: Annotated[
        str, option("--device NAME", "Device of the model: auto, cpu, cuda, cuda:1 or mps.")
    ] = "auto"
    dtype: str = "auto"
    cache: str = "auto"

    def __post_init__(self) -> None:
        changes: dict[str, Any] = {"settings": [], "plugins": [*(self.plugins or ())]}
        for setting in self.settings or ():
            key, equals, value = setting.partition("=")
            if key not in RUN_SETTINGS or not equals:
                changes["settings"].append(setting)
            elif key == "plugin":
                changes["plugins"].append(Path(value))
            else:
                changes[key] = value
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    @property
    def place(self) -> ModelPlace:
        """Where the model will be. Raises UsageError: there is no such device, dtype or cache."""
        from esa_cli.qa.opening import ModelPlace

        return ModelPlace.of(self.device, self.dtype, self.cache)

    def load_preset(self, method: str | None = None, settings: Sequence[str] = ()) -> LoadedPreset:
        """Runs the plugin files, and loads the preset with the settings of the command line.

        Args:
            method: a whole method over the preset. settings: texts that --set can change again.

        Raises PluginError, PresetError. ModelError: the preset's model is no reference. UsageError:
        no such method, or it is made for one length."""
        load_plugins(self.plugins)
        from esa_cli.models import parse_reference
        from esa_cli.qa.presets.preset import load

        model = [] if self.model is None else [f"model={json.dumps(self.model)}"]
        chosen = load(self.preset, [*model, *settings, *(self.settings or [])])
        if method is not None:
            from esa_cli.qa.presets.resolved_preset import for_length

            chosen = for_length(method, chosen, 0)
        parse_reference(chosen.model)
        return chosen

    def method_preset(self) -> LoadedPreset:
        """Loads the preset for commands that run methods, which run in the --model of any
        preset."""
        from esa_cli.qa.presets.preset import by_its_model

        return by_its_model(self.load_preset())


@dataclass(frozen=True)
class DocumentOptions:
    """Options of commands that ask documents or search in them."""

    library: Annotated[
        bool, option("--library", "Search the library's documents, too, or alone.")
    ] = False
    keep: Keep = None
    as_json: Json = False
    quiet: Quiet = False


def _check_temperature(value: float | None) -> float | None:
    """Returns the option's value. Raises UsageError: logits cannot be divided by it."""
    from esa_cli.qa.presets.preset import TEMPERATURES, valid_temperature

    if value is None or valid_temperature(value):
        return value
    hint = "leave it out for the preset's"
    raise UsageError(f"--temperature must be {TEMPERATURES}, got {value}", hint)


@dataclass(frozen=True)
class GenerationOptions:
    """Settings of generation; None takes the preset's."""

    max_new_tokens: MaxTokens = None
    temperature: Annotated[
        float | None,
        option(
            "--temperature T",
            "Temperature of sampling; 0 takes the most probable token.",
            callback=_check_temperature,
        ),
    ] = None
    seed: Annotated[
        int | None,
        option(
            "--seed N", "Seed of sampling, which makes answers repeatable.", min=0, max=2**63 - 1
        ),
    ] = None

    def ask_arguments(self) -> dict[str, Any]:
        """Returns keyword arguments for `Esa.ask`."""
        return asdict(self)


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

    @property
    def address_and_model(self) -> tuple[str | None, str | None]:
        """The reader's name or address, and the model that --reader names on a server."""
        from esa_cli.qa.presets.preset_files import is_address

        if self.reader is None or not is_address(self.reader):
            return self.reader, None
        address, _, model = self.reader.partition("#")
        return address, model or None

    @property
    def answer_dependencies(self) -> dict[str, str | None]:
        """What answers depend on besides the preset; empty without a reader."""
        return {} if self.reader is None else {"reader_model": self.address_and_model[1]}

    def reader_choice(self) -> ReaderChoice | None:
        """Returns the reader of --reader, which is not opened yet. Raises UsageError, PresetError,
        ModelError: there cannot be one of this name."""
        address, model = self.address_and_model
        if address is None:
            return None
        from esa_cli.qa.presets.preset_files import is_address
        from esa_cli.qa.reading.reader_choice import ReaderChoice

        seconds = os.environ.get("ESA_READER_TIMEOUT") if is_address(address) else None
        try:
            timeout = float(seconds) if seconds else None
        except ValueError:
            wrong = f"$ESA_READER_TIMEOUT must be seconds, got {seconds}"
            raise UsageError(wrong, "for example: ESA_READER_TIMEOUT=600") from None
        return ReaderChoice.of(address, model, timeout)

    def load_preset(
        self,
        model: ModelOptions,
        method: str | None = None,
        *,
        form: str | None = None,
        later_method: str | None = None,
    ) -> LoadedPreset:
        """Loads the preset of `model` with --reader and --answer, which --set can change again.

        Args:
            method: as for `ModelOptions.load_preset`. form: the value of --answer.
            later_method: a method that is applied when the documents are known.

        Raises UsageError: the options need passages, and answers come from the KV cache."""
        address = self.address_and_model[0]
        settings = [] if form is None else [f"answer.form={json.dumps(form)}"]
        if address is not None:
            settings += [f"answer.reader={json.dumps(address)}", "answer.from=text"]
        chosen = model.load_preset(method, settings)
        name = f"--answer {form}" if form else f"--reader {self.reader}"
        if form is not None and chosen.answer.reader is not None:
            hint = "leave out --answer, or --model and --reader"
            wrong = f"{name} is of the model that finds, and {chosen.answer.reader} words answers"
            raise UsageError(wrong, hint)
        if (form or self.reader) and (later_method or chosen.answer.source == "rows"):
            way = f"--method {later_method}" if later_method else f"preset {chosen.name}"
            wrong = f"{name} needs answers from passages, and {way} answers from the KV cache"
            raise UsageError(wrong, "add --set answer.from=text, and name no method")
        return chosen


@dataclass(frozen=True)
class ShardOptions:
    """The part of a command's rows that is computed here, and files with the other parts."""

    shard: Shard = None
    join: Annotated[
        list[Path] | None,
        option("--join FILE", "Take the rows that a shard wrote to its --out. Repeatable."),
    ] = None

    def parse_shard(self, out: Path | None) -> WorkShard:
        """Returns the shard. Raises UsageError: --shard is not K/N, --out cannot be written, or a
        file of --join is missing or is --out."""
        for path in self.join or ():
            if not path.is_file():
                raise UsageError(f"--join must be a file, got {path}", "name the --out of a shard")
        joined = map(str, self.join or ())
        output_paths.check("--out", out, joined, "one of the files of --join")
        return WorkShard.parse(self.shard)


@dataclass(frozen=True)
class RowOptions(ShardOptions):
    """The options of commands that write rows by method."""

    methods: Annotated[
        str | None,
        option(
            "--methods NAME,...",
            "Names from `esa methods`, with commas; `preset`: the preset's selection of stored "
            "rows; `text`: its answers from text. Default: preset, and text where it answers so.",
        ),
    ] = None
    time_limit: Annotated[
        float | None, option("--time-limit MINUTES", "Stop asking after so many minutes.", min=0)
    ] = None
    out: Annotated[
        Path | None,
        option("--out FILE", "Write rows as JSON lines; an existing file is continued."),
    ] = None
    as_json: Json = False
    quiet: Quiet = False

    @property
    def deadline(self) -> float | None:
        """The end of the time limit by `time.monotonic`, where it begins now."""
        return None if self.time_limit is None else time.monotonic() + 60 * self.time_limit

    def method_names(self, chosen: LoadedPreset) -> tuple[str, ...]:
        """Returns the methods to compare: those of --methods, or else the preset's own."""
        from esa_cli.qa.presets.resolved_preset import compared_by_default

        return compared_by_default(chosen) if self.methods is None else split_names(self.methods)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Makes a function a command of Typer: a parameter that is a dataclass becomes one option for
    each of its annotated fields."""
    hints = get_type_hints(function, include_extras=True)
    groups = dict[str, tuple[Any, list[str]]]()
    parameters = list[inspect.Parameter]()

    def add_parameter(name: str, default: Any, kind: Any) -> None:
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))

    for parameter in inspect.signature(function).parameters.values():
        group = hints[parameter.name]
        if not is_dataclass(group):
            add_parameter(parameter.name, parameter.default, group)
            continue
        types = get_type_hints(group, include_extras=True)
        options = [field for field in fields(group) if hasattr(types[field.name], "__metadata__")]
        groups[parameter.name] = group, [field.name for field in options]
        for field in options:
            add_parameter(field.name, field.default, types[field.name])

    @functools.wraps(function)
    def run_command(**values: Any) -> None:
        for name, (group, own) in groups.items():
            values[name] = group(**{field: values.pop(field) for field in own})
        function(**values)

    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run_command


def refuse_both(option: str, other: str, both: object, hint: str = "give one of them") -> None:
    """Raises UsageError where two options that exclude each other are `both` given."""
    if both:
        raise UsageError(f"{option} and {other} exclude each other", hint)


def split_names(text: str) -> tuple[str, ...]:
    """Divides a text at its commas into names, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def load_plugins(files: Sequence[Path] | None) -> None:
    """Runs the plugin files. Raises PluginError."""
    if files:
        from esa_cli.methods.plugin_loading import load_file, load_installed

        load_installed()
        for file in files:
            load_file(file)


def confirm_removal(kind: str, names: str, yes: bool) -> None:
    """Asks on the terminal whether to remove the documents or model, unless --yes is given. Raises
    UsageError: there is no terminal. typer.Exit: the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"removing a {kind} must be confirmed", "add --yes")
    if not typer.confirm(f"Remove {names}?", err=True):
        raise typer.Exit(1)
