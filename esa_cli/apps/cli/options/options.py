"""The options that several commands share, alone or in groups.

`make_typer_command` turns the annotated fields of a group, a dataclass, into options."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from esa_cli.apps.cli.options import completion, output_paths
from esa_cli.apps.cli.options.command_help import argument, option
from esa_cli.errors import NOT_FOUND, UsageError
from esa_cli.system.local_servers import is_server_address
from esa_cli.system.progress import WorkShard

if TYPE_CHECKING:
    from esa_cli.qa.opening import ModelPlacement
    from esa_cli.qa.presets.preset import Preset as LoadedPreset
    from esa_cli.qa.reading.reader_choice import ReaderChoice

DEFAULT_PRESET = "default"
RUN_SETTINGS = ("dtype", "cache", "plugin")
"""Settings that `--set` accepts although they belong to one run, not to a preset."""

Documents = Annotated[
    list[str], argument("DOC...", "Files, folders or patterns, or - for standard input.")
]
Set = Annotated[
    list[str] | None,
    option(
        "--set KEY=VALUE",
        "Change a setting of the preset, as window.selected=2048, or the dtype, cache or plugin "
        "of the run. Repeatable.",
    ),
]
Method = Annotated[
    str | None,
    option("--method NAME", "Answer from the KV cache with a method that `esa methods` lists."),
]
MaxTokens = Annotated[int | None, option("--max-new-tokens N", "Maximum answer tokens.", min=1)]
Keep = Annotated[
    bool | None,
    option("--keep/--no-keep", "Store documents in the library, or not; by default their index."),
]
Haystack = Annotated[
    Path | None,
    option("--haystack FILE|DIR", "Text around the facts; by default a generated text."),
]
Yes = Annotated[bool, option("--yes -y", "Remove without asking for confirmation.")]
Json = Annotated[bool, option("--json", "Print the result as one JSON object.")]
Quiet = Annotated[bool, option("--quiet -q", "Show no progress and, below answers, no passages.")]
Verbose = Annotated[
    bool, option("--verbose -v", "Show every note on a line of its own, on a terminal, too.")
]
Shard = Annotated[
    str | None, option("--shard K/N", "Do only the K-th of N parts of the work, for example 3/16.")
]


@dataclass(frozen=True)
class ModelOptions:
    """The options that choose the preset, its settings and its model, and how the model runs."""

    preset: Annotated[
        str,
        option(
            "--preset -p NAME",
            "A name from `esa presets list`, or a YAML file.",
            autocompletion=completion.complete_preset_names,
        ),
    ] = DEFAULT_PRESET
    model: Annotated[
        str | None,
        option(
            "--model -m REF",
            "Model that writes answers or runs the method: a hub id, folder, .gguf file, wheel, or "
            "a name from `esa models list --known`.",
            autocompletion=completion.complete_model_names,
        ),
    ] = None
    finder: Annotated[
        str | None,
        option(
            "--finder NAME|URL#MODEL",
            "Finder of passages: words (BM25 alone), a shipped finder's name, a folder or hub id "
            "of a late interaction model, or a model of embeddings on a server.",
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

    def choose_device_and_dtype(self) -> ModelPlacement:
        """Returns the device, dtype and KV cache placement of the model. Raises UsageError."""
        from esa_cli.qa.opening import ModelPlacement

        return ModelPlacement.choose_device_and_dtype(self.device, self.dtype, self.cache)

    def load_preset(self, method: str | None = None, settings: Sequence[str] = ()) -> LoadedPreset:
        """Runs the plugin files, and loads the preset with the settings of the command line, which
        override `settings` (texts KEY=VALUE), and with another method if `method` is not None.
        Raises PluginError, PresetError, ModelError. UsageError: the method is unknown or needs the
        length of the documents, or --finder is given although no passages are searched."""
        load_plugin_files(self.plugins)
        from esa_cli.models import parse_reference
        from esa_cli.qa.presets.preset import load_preset, replace_finder

        model = [] if self.model is None else [f"model={json.dumps(self.model)}"]
        finds = [] if self.finder is None else ["answer.from=text"]
        chosen = load_preset(self.preset, [*model, *finds, *settings, *(self.settings or [])])
        if method is not None:
            from esa_cli.qa.presets.resolved_preset import replace_method_for_length

            chosen = replace_method_for_length(method, chosen, 0)
        parse_reference(chosen.model)
        return chosen if self.finder is None else replace_finder(chosen, self.finder)

    def load_preset_for_comparison(self) -> LoadedPreset:
        """Loads the preset for a comparison of methods that all run in the model of --model."""
        from esa_cli.qa.presets.preset import make_preset_for_reader_kv_cache

        return make_preset_for_reader_kv_cache(self.load_preset())


@dataclass(frozen=True)
class MethodModelOptions(ModelOptions):
    """The options of `ModelOptions` without --finder, for commands that measure methods."""

    finder: str | None = None


@dataclass(frozen=True)
class DocumentSearchOptions:
    """Options of commands that ask questions about documents or search in documents."""

    library: Annotated[
        bool, option("--library", "Search the documents of the library, too, or only them.")
    ] = False
    keep: Keep = None
    as_json: Json = False
    quiet: Quiet = False


def _check_temperature_option(temperature: float | None) -> float | None:
    from esa_cli.qa.presets.preset import TEMPERATURES, is_valid_temperature

    if temperature is None or is_valid_temperature(temperature):
        return temperature
    hint = "leave out --temperature to use the temperature of the preset"
    raise UsageError(f"--temperature must be {TEMPERATURES}, got {temperature}", hint)


@dataclass(frozen=True)
class AnswerGenerationOptions:
    """Options that are also arguments of `Esa.ask`; None keeps the setting of the preset."""

    max_new_tokens: MaxTokens = None
    temperature: Annotated[
        float | None,
        option(
            "--temperature T",
            "Temperature of sampling; 0 always takes the most probable token.",
            callback=_check_temperature_option,
        ),
    ] = None
    seed: Annotated[
        int | None,
        option(
            "--seed N", "Seed of sampling, which makes answers reproducible.", min=0, max=2**63 - 1
        ),
    ] = None


@dataclass(frozen=True)
class AnswerModelOptions(ModelOptions):
    """The options of `ModelOptions`, and --reader, which replaces the model that writes answers."""

    reader: Annotated[
        str | None,
        option(
            "--reader NAME#MODEL|REF",
            "Model that writes answers from the passages: on a server, which is ollama, lmstudio, "
            "llama.cpp, HOST:PORT or a URL, with the name of one of its models (by default the "
            "first); or a model as for --model.",
        ),
    ] = None

    def choose_reader(self) -> ReaderChoice | None:
        """Returns the model that --reader names, without loading the model; None without
        --reader. Raises UsageError, PresetError, ModelError: the value of --reader is invalid."""
        if self.reader is None:
            return None
        from esa_cli.qa.reading.reader_choice import ReaderChoice

        seconds = os.environ.get("ESA_READER_TIMEOUT") if is_server_address(self.reader) else None
        try:
            timeout = float(seconds) if seconds else None
        except ValueError:
            wrong = f"$ESA_READER_TIMEOUT must be a number of seconds, got {seconds}"
            raise UsageError(wrong, "for example: ESA_READER_TIMEOUT=600") from None
        return ReaderChoice.parse(self.reader, timeout_s=timeout)

    def load_preset(
        self,
        method: str | None = None,
        settings: Sequence[str] = (),
        later_method: str | None = None,
    ) -> LoadedPreset:
        """Loads the preset with the settings of --reader, too; `later_method` is applied when the
        documents are known. Raises UsageError: answers of --reader would need passages."""
        if self.reader is not None:
            settings = [*settings, f"answer.reader={json.dumps(self.reader)}", "answer.from=text"]
        chosen = super().load_preset(method, settings)
        if self.reader and (later_method or chosen.answer.source == "rows"):
            way = f"--method {later_method}" if later_method else f"preset {chosen.name}"
            wrong = f"--reader needs answers from passages, but {way} answers from the KV cache"
            raise UsageError(wrong, "add --set answer.from=text, and leave out --method")
        return chosen


@dataclass(frozen=True)
class QuestionShardOptions:
    """The options --shard and --join, which divide the questions of a command among runs."""

    shard: Shard = None
    join: Annotated[
        list[Path] | None,
        option(
            "--join FILE",
            "Add the rows that another shard wrote to its --out. Repeatable.",
            exists=True,
            dir_okay=False,
        ),
    ] = None

    def check_files_and_parse_shard(self, output_file: Path | None) -> WorkShard:
        """Raises UsageError: --shard is not K/N, or the output file is wrong."""
        joined = map(str, self.join or ())
        output_paths.check_output_file("--out", output_file, joined, "one of the files of --join")
        return WorkShard.parse(self.shard)


@dataclass(frozen=True)
class MethodComparisonOptions(QuestionShardOptions):
    """The options of commands that compare methods, and write one row per question and method."""

    methods: Annotated[
        str | None,
        option(
            "--methods NAME,...",
            "Names from `esa methods`, separated by commas; `preset` answers from the KV cache, "
            "`text` from passages. Default: preset, and text if the preset uses passages.",
        ),
    ] = None
    time_limit: Annotated[
        float | None, option("--time-limit MINUTES", "Maximum minutes of asking.", min=0)
    ] = None
    out: Annotated[
        Path | None,
        option("--out FILE", "Write rows to a file of JSON lines; an existing file is continued."),
    ] = None
    as_json: Json = False
    quiet: Quiet = False

    def compute_deadline(self) -> float | None:
        """Returns the value of `time.monotonic` at which asking ends if --time-limit starts now."""
        return None if self.time_limit is None else time.monotonic() + 60 * self.time_limit

    def choose_compared_methods(self, preset: LoadedPreset) -> tuple[str, ...]:
        """Returns the names of the methods to compare, from --methods or else from the preset."""
        from esa_cli.qa.presets.resolved_preset import AS_IS, FROM_TEXT

        if self.methods is not None:
            return split_at_commas(self.methods)
        return (AS_IS, FROM_TEXT) if preset.answer.source == "text" else (AS_IS,)


def make_typer_command(function: Callable[..., None]) -> Callable[..., None]:
    """Makes a Typer command, with an option for each annotated field of dataclass parameters."""
    hints = get_type_hints(function, include_extras=True)
    groups = dict[str, tuple[Any, list[str]]]()
    declared = list[tuple[str, Any, Any]]()
    for parameter in inspect.signature(function).parameters.values():
        group = hints[parameter.name]
        if not is_dataclass(group):
            declared.append((parameter.name, parameter.default, group))
            continue
        types = get_type_hints(group, include_extras=True)
        options = [field for field in fields(group) if hasattr(types[field.name], "__metadata__")]
        groups[parameter.name] = group, [field.name for field in options]
        declared += [(field.name, field.default, types[field.name]) for field in options]
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, default, kind in declared
    ]

    @functools.wraps(function)
    def run_command(**option_values: Any) -> None:
        for name, (group, own) in groups.items():
            option_values[name] = group(**{field: option_values.pop(field) for field in own})
        function(**option_values)

    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {name: kind for name, _, kind in declared}
    return run_command


def refuse_both(
    option_name: str, other_option_name: str, are_both_set: object, hint: str = "use only one"
) -> None:
    """Raises UsageError if two options that exclude each other are both set."""
    if are_both_set:
        raise UsageError(f"{option_name} and {other_option_name} exclude each other", hint)


def split_at_commas(joined_names: str) -> tuple[str, ...]:
    """Splits names that are joined by commas, and drops duplicates."""
    return tuple(dict.fromkeys(name.strip() for name in joined_names.split(",") if name.strip()))


def load_plugin_files(plugin_files: Sequence[Path] | None) -> None:
    """Runs plugin files, which register parts of methods. Raises PluginError."""
    if plugin_files:
        from esa_cli.methods.plugin_loading import load_file, load_installed_plugins

        load_installed_plugins()
        for file in plugin_files:
            load_file(file)


def ask_to_confirm(action: str, question: str, is_confirmed: bool) -> None:
    """Asks a question on the terminal before an action, unless `is_confirmed`. Raises UsageError:
    there is no terminal. typer.Exit: the user says no."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{action} must be confirmed", "add --yes")
    if not typer.confirm(question, err=True):
        raise typer.Exit(NOT_FOUND)
