"""One hash of a preset and of the files behind its method, for rows that are resumed."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from esa_cli.methods.registry import PARTS, contents, sources
from esa_cli.qa.presets.adapter_files import adapter_folder, finder_folder
from esa_cli.qa.presets.method_presets import FROM_TEXT
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import resolve
from esa_cli.system.text import text_digest


def method_hash(name: str, preset: Preset, without: tuple[str, ...] = ("name",)) -> str:
    """Of a method that is compared with others, by its name and preset; see `settings_hash`."""
    return text_settings_hash(preset) if name == FROM_TEXT else settings_hash(preset, without)


def text_settings_hash(preset: Preset) -> str:
    """Of a preset that answers from text, and of the files of its adapter and finder.

    Raises:
        PresetError: one of them is missing.
    """
    answer, hashes = preset.answer, {}
    for name, folder in ((answer.adapter, adapter_folder), (answer.finder, finder_folder)):
        for path in [] if name is None else sorted(folder(name).iterdir()):
            if path.suffix in (".json", ".safetensors"):
                hashes[f"{folder.__name__} {path.name}"] = sha256(path.read_bytes()).hexdigest()
    facts = {
        **preset.model_dump(mode="json", exclude={"name", "description"}),
        "files": hashes,
    }
    return text_digest(json.dumps(facts, sort_keys=True))[:16]


def settings_hash(preset: Preset, without: tuple[str, ...] = ("name",)) -> str:
    """Of all that a method's preset says, and of the files behind it.

    Args:
        without: fields that do not count.

    Raises:
        PresetError: it does not hold, or a file of it cannot be read.
    """
    # Rows are of answers from the rows that a method selects: `answer` does not count.
    facts = preset.model_dump(mode="json", exclude={*without, "answer"})
    method = resolve(preset).method
    files: dict[str, Any] = {**sources(method)}
    for kind in PARTS:
        named = method.compressor.files if kind == "compressor" else ()
        hashed = contents(facts[kind], named)
        files |= {
            f"{kind}.{key}": hashed[key] for key in hashed if hashed[key] != facts[kind].get(key)
        }
    if files:  # so that what has none keeps the hash that rows were written with
        facts["files"] = files
    return text_digest(json.dumps(facts, sort_keys=True))[:16]
