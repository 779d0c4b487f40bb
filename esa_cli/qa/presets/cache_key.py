"""The cache key: a text that names everything a stored prefill depends on.

Two prefills of a document with the same cache key are interchangeable. Settings of questions, the
device, the kernel and the versions of torch and transformers are not part of a cache key: they only
change how numbers are rounded. If layers keep a state, whose form is transformers' own, its version
is part of the key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from esa_cli.attention.method import Method
from esa_cli.methods.registry import PARTS, contents, sources
from esa_cli.models.attachment.fingerprint import fingerprint, weight_errors, weight_tensors
from esa_cli.models.files.families import family_of
from esa_cli.models.tokenization.tokenizer import PlainTokenizer
from esa_cli.qa.presets.adapter_files import adapter_folder, finder_folder
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import FROM_TEXT, resolve
from esa_cli.storage.library.manifest import Layout
from esa_cli.system.text import text_digest

FORMAT = 3
"""Raised when a prefill by an older version would differ."""
SAMPLES = 1024
"""Numbers of each weight in its digest."""


def model_facts(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Properties of a model and its tokenizer that shape its KV cache. Raises ModelError: its
    weights are not in memory, or cannot be read."""
    return {
        "fingerprint": json.loads(fingerprint(model).as_text()),
        "config": _config(model.config),
        "weights": _weights(model),
        "tokens": _tokens(tokenizer),
    }


def cache_key(
    model: Mapping[str, Any], head: Sequence[int], preset: Preset, method: Method, layout: Layout
) -> str:
    """The cache key of a prefill by a preset's method in a layout; `model` is of `model_facts`, and
    `head` has the ids of the prompt before the document."""
    window = asdict(preset.window)
    selected = window.pop("selected")
    del window["ending"]
    facts: dict[str, Any] = {
        "format": FORMAT,
        "model": model,
        "head": list(head),
        "parts": sources(method),
        "rows": {"dtype": layout.dtype, "kind": layout.kind},
        "prompt": preset.prompt.model_dump(exclude={"after"}),
        "window": window,
        "position": preset.position,
        "reading": preset.reading,
    }
    if method.score.features:
        aim = {"rotate": method.score.rotates, "distance": method.position.distance}
        facts["compressor"] = {**contents(preset.compressor, method.compressor.files), **aim}
    if preset.window.dense is None:  # the length of full attention follows from k
        facts["window"] = window = {**window, "dense": method.window.dense_below}
    if layout.states:
        facts["transformers"] = version("transformers").split(".")[:2]
    if preset.reading == "select":
        facts |= {"selector": preset.selector, "score": preset.score}
        facts["window"] = {**window, "selected": selected}
    return json.dumps(facts, sort_keys=True)


def _config(config: Any) -> dict[str, Any]:
    """The model's settings without its path and versions."""
    left_out = ["transformers_version", "dtype", "torch_dtype"]
    if family_of(config).switches:  # attachment changes it, and `rope_parameters` has it, too
        left_out.append("original_max_position_embeddings")
    facts = json.loads(json.dumps(config.to_dict(), default=str))
    return {key: facts[key] for key in facts if key[0] != "_" and key not in left_out}


def _weights(model: Any) -> str:
    """A digest of the name, shape and some numbers of each weight: further training changes nearly
    all of them."""
    digest = sha256()
    for name, weight in weight_tensors(model):
        with weight_errors(name):
            flat = weight.detach().reshape(-1)
            some = flat[:: max(1, flat.shape[0] // SAMPLES)][:SAMPLES].float().cpu()
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(some.numpy().tobytes())
    return digest.hexdigest()


def _tokens(tokenizer: Any) -> str:
    """A digest of a tokenizer's rules."""
    if isinstance(tokenizer, PlainTokenizer):
        return tokenizer.facts.digest
    fast = getattr(tokenizer, "backend_tokenizer", None)
    text = fast.to_str() if fast is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return text_digest(text)


def method_hash(name: str, preset: Preset, without: tuple[str, ...] = ("name",)) -> str:
    """The hash of a method's settings in a comparison."""
    return text_settings_hash(preset) if name == FROM_TEXT else settings_hash(preset, without)


def text_settings_hash(preset: Preset) -> str:
    """The hash of a preset that answers from text, with the files of its adapter and finder. Raises
    PresetError: one of them is missing."""
    answer, hashes = preset.answer, {}
    for name, folder in ((answer.adapter, adapter_folder), (answer.finder, finder_folder)):
        for path in [] if name is None else sorted(folder(name).iterdir()):
            if path.suffix in (".json", ".safetensors"):
                hashes[f"{folder.__name__} {path.name}"] = sha256(path.read_bytes()).hexdigest()
    return _short({**_settings(preset, ("name", "description")), "files": hashes})


def settings_hash(preset: Preset, without: tuple[str, ...] = ("name",)) -> str:
    """The hash of a method's preset and the files it uses; the settings `without` and `answer` are
    left out. Raises PresetError: a setting is wrong, or a file cannot be read."""
    facts, method = _settings(preset, (*without, "answer")), resolve(preset).method
    files: dict[str, Any] = {**sources(method)}
    for kind in PARTS:
        named = method.compressor.files if kind == "compressor" else ()
        for key, value in contents(facts[kind], named).items():
            if value != facts[kind].get(key):
                files[f"{kind}.{key}"] = value
    # Without files the hash is that of older versions, whose rows can be continued.
    return _short({**facts, "files": files} if files else facts)


def _settings(preset: Preset, without: tuple[str, ...]) -> dict[str, Any]:
    return preset.model_dump(mode="json", exclude={*without})


def _short(facts: Mapping[str, Any]) -> str:
    return text_digest(json.dumps(facts, sort_keys=True))[:16]
