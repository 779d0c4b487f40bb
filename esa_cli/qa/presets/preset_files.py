"""Finds and reads preset files and the table of known models, and finds adapters and finders."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_config_path

from esa_cli.errors import ModelError, PresetError
from esa_cli.system.local_servers import complete_server_address, is_server_address
from esa_cli.system.machine import expand_home_folder
from esa_cli.system.registry import suggest_name
from esa_cli.system.strict_parsing import load_yaml

if TYPE_CHECKING:  # slow, and names are completed with this module
    from esa_cli.models.files.model_reference import ModelRef

SUFFIXES = (".yaml", ".yml")
FORMER = {
    "smollm2-135m": "default",
    "llama3-8b-paper": "paper",
    "mistral-7b-paper": "paper-mistral",
}
"""Maps former names of shipped presets to their present names."""
MAPS, MODULES = "maps.safetensors", "modules.json"
"""Files: a trained finder's projections, and the list of modules of a late interaction model."""
WORDS = "words"
"""The name that stands for no finder, so that passages are found with BM25 alone."""


def find_shipped_preset_folder() -> Path:
    """Returns the folder of shipped presets, which is beside the package in a source checkout."""
    inside = Path(__file__).parents[2] / "presets"
    return inside if inside.is_dir() else inside.parents[1] / "presets"


def get_user_preset_folder() -> Path:
    return user_config_path("esa") / "presets"


def list_preset_files() -> dict[str, Path]:
    """Returns the names and files of all presets; the user's presets replace shipped presets."""
    own = _list_preset_files_in_folder(get_user_preset_folder())
    return dict(sorted({**list_shipped_preset_files(), **own}.items()))


def list_shipped_preset_files() -> dict[str, Path]:
    return _list_preset_files_in_folder(find_shipped_preset_folder())


def _list_preset_files_in_folder(folder: Path) -> dict[str, Path]:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.stem: path for path in files if path.suffix in SUFFIXES}


def find_preset_file(name: str, base_folder: Path | None = None) -> Path:
    """Finds a preset's file by name, or by a path relative to `base_folder`. Raises PresetError."""
    if name.endswith(SUFFIXES) or "/" in name:
        for base in ([base_folder] if base_folder else []) + [Path()]:
            path = base / expand_home_folder(name, "preset", PresetError)
            if path.is_file():
                return path
        wrong = f"there is no preset file {name}"
        raise PresetError(wrong, "check the path, or use a name from `esa presets list`")
    known = list_preset_files()
    found = known.get(name) or known.get(FORMER.get(name, ""))
    if found is None:
        hint = f"`esa presets list` lists all; {suggest_name(name, list(known))}"
        raise PresetError(f"unknown preset {name!r}", hint)
    return found


def read_preset_file(path: Path) -> dict[str, Any]:
    """Reads the settings of a preset file. Raises PresetError: it cannot be parsed."""
    import yaml

    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PresetError(f"cannot read preset {path}: {error}", "") from error
    except yaml.YAMLError as error:
        where, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f" (line {where.line + 1})" if where else ""
        wrong = f"preset {path} is not valid YAML{line}: {' '.join(str(problem or error).split())}"
        hint = "indent YAML with spaces, not with tabs" if "\\t" in str(problem) else ""
        raise PresetError(wrong, hint) from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise PresetError(f"preset {path} must be a mapping of settings", "see `esa presets show`")
    if "name" in data:
        wrong = f"preset {path} must have no key 'name', because its name is the file's name"
        raise PresetError(wrong, f"remove the key; this preset's name is {path.stem}")
    return data


def locate_finder(name: str) -> Path | ModelRef | str:
    """Returns where a finder is: the folder of its files, a model on the hub, or the address of a
    server. Raises PresetError: there is none of this name."""
    from esa_cli.models.files.model_reference import parse_reference

    if is_server_address(name):
        return complete_server_address(name)
    for required_file in (MAPS, MODULES):
        if (folder := find_folder_with_file(name, "finder", required_file)) is not None:
            return folder
    with suppress(ModelError):
        ref = parse_reference(name)
        if ref.kind == "hub" and "/" in ref.repo:
            return replace(ref, folders=True)
    raise PresetError(
        f"answer.finder must be a folder with {MAPS} or {MODULES}, a hub id OWNER/NAME, or the "
        f"address of a server, got {name!r}",
        "check the name, or use --finder words, which finds with BM25 alone",
    )


def find_folder_with_file(name: str, setting_name: str, required_file: str) -> Path | None:
    """Finds a shipped or own folder with a file of an adapter or finder; None if there is none."""
    own = expand_home_folder(name, f"answer.{setting_name}", PresetError)
    shipped = find_shipped_preset_folder() / f"{setting_name}s" / name
    folders = [*([] if "/" in name else [shipped]), own] if name else []
    return next((folder for folder in folders if (folder / required_file).is_file()), None)


@dataclass(frozen=True)
class KnownModelFacts:
    """The size, context window, retrieval heads and licence of a model in `models.yaml`."""

    model: str
    weights: float
    window: int
    heads: list[list[int]] = field(default_factory=list)
    way: str = "chat"
    licence: str = ""

    def count_weight_bytes(self, dtype_bytes: int) -> int:
        return round(self.weights * 1e9) * dtype_bytes


@cache
def load_known_models() -> dict[str, KnownModelFacts]:
    """Returns the known models by name, from the shipped table `models.yaml`."""
    data = load_yaml(Path(__file__).with_name("models.yaml").read_text("utf-8"))
    assert isinstance(data, dict)
    return {name: KnownModelFacts(**facts) for name, facts in data.items()}


def resolve_to_hub_id(model_name: str) -> str:
    """Returns the Hugging Face id of a known model's name; returns other names unchanged."""
    facts = load_known_models().get(model_name)
    return model_name if facts is None else facts.model


def find_known_model_facts(model_id: str) -> KnownModelFacts | None:
    """Returns the facts of a known model by its Hugging Face id, or None for other models."""
    return next((facts for facts in load_known_models().values() if facts.model == model_id), None)


READERS = {"qwen3-30b-a3b-2507": 3.3, "phi4-14b": 14.7, "qwen3-4b-2507": 4.02, "qwen2.5-1.5b": 1.54}
"""The known models that are suggested, largest first, with the billions of weights that compute
each token. They have a permissive licence, need no sign-in, and answer without thoughts before."""
CPU_WEIGHTS = 5.0
"""The most weights, in billions, that a CPU is asked to compute for each token."""
BESIDE = 2 << 30
"""The bytes of the finder, of libraries, and of the keys and values of a prompt."""


def suggest_reader(memory_bytes: int, weight_bytes: int, on_gpu: bool) -> str | None:
    """Returns the name of the largest model of `READERS` for a device with `memory_bytes` free, on
    which a weight takes `weight_bytes` bytes; None if even the smallest does not fit."""
    for name, active in READERS.items():
        needed = load_known_models()[name].count_weight_bytes(weight_bytes) + BESIDE
        if needed <= memory_bytes and (on_gpu or active <= CPU_WEIGHTS):
            return name
    return None
