"""Loads presets, which are YAML files with settings of the model, of finding and reading passages,
and of the method that selects tokens from the KV cache; a preset may extend another one."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator
from pydantic_core import PydanticCustomError

from esa_cli.attention.window import Window
from esa_cli.errors import PresetError, UsageError
from esa_cli.methods.registry import KINDS
from esa_cli.qa.presets import preset_files
from esa_cli.system.local_servers import is_server_address
from esa_cli.system.registry import suggest_name
from esa_cli.system.strict_parsing import MAX_DEPTH, dump_yaml, load_yaml

DEFAULT = "default"
PROMPT = "Question: {question} \nText: {passage}\nAnswer:"
"""The prompt of the reader. In SmolLM2, whose tokens attend in both directions here, a space before
a line break takes the attention that finds nothing; the states of a short passage without any such
token (" the" is another) become all alike, and say nothing."""
FIELDS = ("{passage}", "{question}")
HEAD, COMBINATION = "head.safetensors", "combination.json"
"""The files of an adapter for reading: its head, and the weights of an `AnswerCombination`."""
TEMPERATURES = "0, or at least 1e-06 and finite"


def is_valid_temperature(temperature: float) -> bool:
    """Whether a temperature is 0, for greedy decoding, or large enough to divide logits."""
    return temperature == 0 or (temperature >= 1e-6 and math.isfinite(temperature))


class _StrictSettings(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_by_name=True, validate_by_alias=True,
        serialize_by_alias=True,
    )  # fmt: skip


class AnswerSettings(_StrictSettings):
    """The `answer` settings of a preset: how passages are found and read.

    Args:
        source: `from` in a preset. `rows`: the question attends to selected tokens of the KV cache,
            as in the paper. `text`: the passages found are read again, each alone with the
            question, and the most probable span of the best one is the answer.
        reader: another model that writes the answers: a hub id, a folder, a file, a name of `esa
            models list --known`, or the address of a server; None means the preset's model.
        finder: a shipped finder's name, a folder, a hub id of a late interaction model, or the
            address of a server of embeddings.
        reranker: a cross-encoder's folder or hub id; it scores every window if `thorough`."""

    source: Literal["rows", "text"] = Field(default="rows", alias="from")
    form: Literal["auto", "span"] = "auto"  # `span`: a quotation even if a question asks for more
    documents: int = Field(default=8, ge=1)  # of folders, patterns and the library that are opened
    passages: int = Field(default=16, ge=1, le=256)  # that are read again
    prompt: str = PROMPT  # around one passage
    adapter: str | None = None  # the folder of a LoRA adapter for reading, or a shipped one's name
    reader: str | None = None
    finder: str | None = None
    reranker: str | None = None

    @field_validator("prompt")
    @classmethod
    def _check_placeholders(cls, prompt: str) -> str:
        if not all(field in prompt for field in FIELDS):
            raise PydanticCustomError("fields", f"must have {' and '.join(FIELDS)}")
        return prompt

    @property
    def needs_kv_cache(self) -> bool:
        """Whether answers come from the KV cache, so that documents must be prefilled."""
        return self.source == "rows"

    @property
    def makes_token_index(self) -> bool:
        """Whether documents get a token index, which the finder searches."""
        return self.finder is not None

    @property
    def finds_by_bm25_only(self) -> bool:
        """Whether passages are found with BM25 alone, without a finder."""
        return self.source == "text" and not self.makes_token_index


class Prompt(_StrictSettings):
    """The texts of a prompt before and after the document; `after` contains `{question}`. The
    setting `chat` puts the prompt into the model's chat template, if the model has one."""

    system: str | None = None
    before: str = ""
    after: str = "\n\n{question}"
    chat: bool = True


class GenerationSettings(_StrictSettings):
    max_new_tokens: int = Field(default=64, ge=1)
    temperature: float = 0.0
    top_p: float = Field(default=1.0, gt=0, le=1)

    @field_validator("temperature")
    @classmethod
    def _check_temperature_option(cls, temperature: float) -> float:
        if not is_valid_temperature(temperature):
            raise PydanticCustomError("temperature", f"must be {TEMPERATURES}")
        return temperature


class Preset(_StrictSettings):
    name: str
    description: str = ""
    model: str
    context: int = Field(ge=1)
    """The model's trained context window, in tokens."""
    window: Window = Window()
    selector: dict[str, Any] = {"name": "topk"}
    score: dict[str, Any] = {"name": "sum"}
    compressor: dict[str, Any] = {"name": "closed-form"}
    position: dict[str, Any] = {"name": "esa"}
    reading: Literal["select", "local"] = "select"
    kernel: str = "auto"
    prompt: Prompt = Prompt()
    answer: AnswerSettings = AnswerSettings()
    generation: GenerationSettings = GenerationSettings()

    def alter_answer_settings(self, **answer_settings: Any) -> Preset:
        return self.model_copy(update={"answer": self.answer.model_copy(update=answer_settings)})


def parse_setting_override(override: str) -> dict[str, Any]:
    """Parses `window.selected=2048` as {"window": {"selected": 2048}}; the value is YAML. Raises
    PresetError: the text has no '=', or the value is not YAML."""
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        wrong = f"--set must be KEY=VALUE, got {reprlib.repr(override)}"
        raise PresetError(wrong, "use for example --set window.selected=2048")
    try:
        parsed = load_yaml(value)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None)
        wrong = f"the value of --set must be YAML, got {reprlib.repr(override)}"
        hint = f"put the value in quotes; {problem}" if problem else "put the value in quotes"
        raise PresetError(wrong, hint) from error
    parts = key.strip().split(".")
    if len(parts) > MAX_DEPTH:
        wrong = f"a key of --set must have at most {MAX_DEPTH} names between dots, got {len(parts)}"
        raise PresetError(wrong, "see `esa presets show`")
    for part in reversed(parts):
        parsed = {part: parsed}
    assert isinstance(parsed, dict)
    return parsed


_sizes: dict[str, Any] = {
    field.name: (get_type_hints(Window)[field.name], field.default) for field in fields(Window)
}
_WINDOW: Any = create_model("Window", __base__=_StrictSettings, **_sizes)
"""A pydantic model of `Window`, because strict pydantic converts no mapping to a dataclass."""
_HOLDER: Any = create_model("_HOLDER", window=(_WINDOW, ...))


def merge_settings(base: Mapping[str, Any], overriding: Mapping[str, Any]) -> dict[str, Any]:
    """Merges nested settings; a selector or score with another name is replaced as a whole."""
    out = dict(base)
    for key, value in overriding.items():
        old = out.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            renamed = key in KINDS and value.get("name", old.get("name")) != old.get("name")
            out[key] = dict(value) if renamed else merge_settings(old, value)
        else:
            out[key] = value
    return out


def merge_presets(base: Mapping[str, Any], overriding: Mapping[str, Any]) -> dict[str, Any]:
    """Merges the settings of two presets. Another model in `overriding` becomes `answer.reader` if
    `base` has a finder; else it replaces the model, `score.heads` and `answer` of `base`."""
    out = merge_settings(base, overriding)
    if "model" not in overriding or "model" not in base or overriding["model"] == base["model"]:
        return out
    below, above = base.get("answer") or {}, overriding.get("answer") or {}
    of_its_own = above.keys() & {"finder", "reader"} or above.get("adapter")
    finds = below.get("finder") and below.get("from") == above.get("from", "text") == "text"
    if finds and not of_its_own:
        answer = {**out["answer"], "reader": overriding["model"]}
        return {**out, "model": base["model"], "answer": answer}
    if "answer" in base:
        out["answer"] = above
    if isinstance(out.get("score"), dict) and "heads" not in (overriding.get("score") or {}):
        out["score"] = {key: value for key, value in out["score"].items() if key != "heads"}
        facts = preset_files.find_known_model_facts(str(overriding["model"]))
        if facts is not None and facts.heads and out["score"].get("name") == "vote":
            out["score"]["heads"] = facts.heads
    return out


def switch_to_kv_cache_answers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings that answer from the KV cache of the model `answer.reader`, or of the
    preset's model. Raises PresetError: the reader is on a server."""
    answer = {**(settings.get("answer") or {}), "from": "rows"}
    reader = answer.pop("reader", None)
    if reader is not None and is_server_address(reader):
        raise PresetError(
            f"answer.reader must be a model on this machine if answer.from is rows, got {reader}",
            "use the setting answer.from=text",
        )
    rows = {**settings, "answer": answer}
    over = {"model": reader, "answer": {"from": "rows"}}
    return rows if reader is None else merge_presets(rows, over)


def make_preset_for_reader_kv_cache(preset: Preset) -> Preset:
    """Returns the preset, changed to answer from the KV cache of its reader model, if any."""
    if preset.answer.reader is None:
        return preset
    settings = switch_to_kv_cache_answers(preset.model_dump(exclude={"name"}))
    return validate_preset_settings(preset.name, settings)


def check_adapter_and_finder_exist(settings: AnswerSettings) -> None:
    """Raises PresetError if the preset's adapter or finder is missing."""
    if settings.source == "text":
        if settings.adapter is not None:
            find_adapter_folder(settings.adapter)
        if settings.finder is not None:
            preset_files.locate_finder(settings.finder)


def find_adapter_folder(adapter_name: str) -> Path:
    """Finds the folder of an adapter by its path or its shipped name. Raises PresetError."""
    if (folder := preset_files.find_folder_with_file(adapter_name, "adapter", HEAD)) is not None:
        return folder
    hint = "give the path of a folder with this file, or use --set answer.adapter=null"
    raise PresetError(f"answer.adapter must be a folder with {HEAD}, got {adapter_name!r}", hint)


def replace_finder(preset: Preset, finder_name: str) -> Preset:
    """Returns a copy of the preset that finds passages with another finder, or with BM25 alone if
    `finder_name` is `words`. Raises UsageError, PresetError: it cannot find passages."""
    if preset.answer.source == "rows":
        raise UsageError(
            f"--finder {finder_name} needs answers from passages, but preset {preset.name} answers "
            "from the KV cache",
            "add --set answer.from=text, and leave out --method",
        )
    finder = None if finder_name == preset_files.WORDS else finder_name
    if finder is not None:
        preset_files.locate_finder(finder)
    return preset.alter_answer_settings(finder=finder)


def make_preset_for_finding(preset: Preset, bm25_only: bool = False) -> Preset:
    """Returns a copy of the preset that only finds passages, with `bm25_only` by BM25 alone."""
    finder = None if bm25_only else preset.answer.finder
    return preset.alter_answer_settings(source="text", adapter=None, reader=None, finder=finder)


def _merge_with_parents(preset_file: Path, child_presets: tuple[Path, ...] = ()) -> dict[str, Any]:
    preset_file = preset_file.resolve()
    if preset_file in child_presets:
        loop = " -> ".join(step.stem for step in (*child_presets, preset_file))
        raise PresetError(f"presets extend each other in a circle: {loop}", "remove one `extends`")
    data = preset_files.read_preset_file(preset_file)
    parent = data.pop("extends", None)
    if parent is None:
        return data
    if not isinstance(parent, str):
        raise PresetError(f"{preset_file}: extends must name one preset, got {parent!r}", "")
    child_presets = (*child_presets, preset_file)
    parent, model = find_preset_for_model_name(parent)
    below = preset_files.find_preset_file(parent, base_folder=preset_file.parent)
    if below.resolve() in child_presets:  # one's own preset lies over the shipped one of that name
        name = preset_files.FORMER.get(parent, parent)
        below = preset_files.list_shipped_preset_files().get(name, below)
    return merge_presets(merge_presets(_merge_with_parents(below, child_presets), model), data)


def find_preset_for_model_name(name: str) -> tuple[str, dict[str, Any]]:
    """Returns the preset and the setting `model` that a known model's name, or any name, means."""
    facts = preset_files.load_known_models().get(name)
    if facts is None or name in preset_files.list_preset_files():
        return name, {}
    return facts.way, {"model": facts.model}


def _make_preset_error(validation_error: ValidationError, preset_name: str) -> PresetError:
    first = validation_error.errors()[0]
    *above, key = first["loc"]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        sections = {"window": _WINDOW, "answer": AnswerSettings, "prompt": Prompt}
        section = sections.get(str(above[0]), GenerationSettings) if above else Preset
        known = [name for name in section.model_fields if name != "name"]
        hint = suggest_name(str(key), known, "".join(f"{name}." for name in above))
        return PresetError(f"preset {preset_name} has no setting {where!r}", hint)
    if first["type"] == "missing":
        hint = f"set {where}, or extend a preset that sets {where}"
        return PresetError(f"preset {preset_name} lacks {where!r}", hint)
    wrong = f"{where} {_describe_broken_rule(validation_error)}, got {reprlib.repr(first['input'])}"
    return PresetError(f"preset {preset_name}: {wrong}", "see `esa presets show`")


def _describe_broken_rule(validation_error: ValidationError) -> str:
    """Describes the rule that a setting's value breaks, such as "must be at least 1"."""
    message = validation_error.errors()[0]["msg"].replace("Input should", "must")
    return message.replace("greater than or equal to", "at least")


def load_preset(name: str = DEFAULT, overrides: Sequence[str] = ()) -> Preset:
    """Loads a preset by name or path, with overrides such as `KEY=VALUE`. Raises PresetError."""
    way, model = find_preset_for_model_name(name)
    path = preset_files.find_preset_file(way)
    # An override of one setting keeps the default part's name.
    defaults = {kind: Preset.model_fields[kind].default for kind in KINDS}
    data = merge_presets(merge_settings(defaults, _merge_with_parents(path)), model)
    over: dict[str, Any] = {}
    for text in overrides:
        over = merge_settings(over, parse_setting_override(text))
    if isinstance(over.get("model"), str):
        over["model"] = preset_files.resolve_to_hub_id(over["model"])
    data = merge_presets(data, over)
    if isinstance(data.get("answer"), dict) and data["answer"].get("from") == "rows":
        data = switch_to_kv_cache_answers(data)
    if "name" in data:
        hint = "save the preset under another file name"
        raise PresetError("--set cannot change a preset's name", hint)
    return validate_preset_settings(path.stem, data)


def validate_preset_settings(preset_name: str, settings: Mapping[str, Any]) -> Preset:
    """Builds and validates a preset from its settings. Raises PresetError."""
    try:
        window = _HOLDER.model_validate({"window": settings.get("window", {})}).window.model_dump()
        values = {**settings, "window": Window(**window), "name": preset_name}
        preset = Preset.model_validate(values)
    except ValidationError as error:
        raise _make_preset_error(error, preset_name) from error
    except ValueError as error:
        raise PresetError(f"preset {preset_name}: {error}", "see `esa presets show`") from error
    sizes, limit = preset.window, f"at most the model's window of {preset.context}"
    total = sizes.initial + sizes.selected + sizes.local + sizes.chunk
    questions = preset.prompt.after.count("{question}")
    broken, hint = "", "lower window.selected, window.local or window.dense"
    if total > preset.context:
        broken = f"window.initial + selected + local + chunk must be {limit}, got {total}"
    elif (sizes.dense or 0) > preset.context:
        broken = f"window.dense must be {limit}, got {sizes.dense}"
    elif questions != 1:
        broken = f"prompt.after must have {{question}} once, got {questions}"
        hint = "see `esa presets show`"
    if broken:
        raise PresetError(f"preset {preset_name}: {broken}", hint)
    return preset


def format_as_yaml(preset: Preset) -> str:
    """Returns all settings of a preset as YAML, in the form of a preset file."""
    return dump_yaml(preset.model_dump(exclude={"name"}))


def choose_sampling_options(
    preset_settings: GenerationSettings, max_tokens: int | None, temperature: float | None,
    top_p: float | None,
) -> tuple[int, float, float]:  # fmt: skip
    """Returns the options, the preset's for None. Raises UsageError: a value is out of range."""
    given = {"max_new_tokens": max_tokens, "temperature": temperature, "top_p": top_p}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        chosen = GenerationSettings.model_validate({**preset_settings.model_dump(), **given})
    except ValidationError as error:
        first = error.errors()[0]
        wrong = f"{first['loc'][0]} {_describe_broken_rule(error)}, got {first['input']}"
        raise UsageError(wrong, "omit the setting to use the preset's value") from error
    return chosen.max_new_tokens, chosen.temperature, chosen.top_p
