"""Computes cache keys, which are texts that list everything that a stored KV cache depends on,
without what only changes rounding errors: the device, the kernel and versions of libraries, except
transformers' version if the model has recurrent layers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from esa_cli.attention.method import Method
from esa_cli.methods.registry import PARTS, hash_plugin_sources, hash_setting_files
from esa_cli.models.attachment.fingerprint import (
    LOADED_PLAIN,
    compute_model_fingerprint,
    iterate_weight_tensors,
)
from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.models.files.families import get_model_family
from esa_cli.models.tokenization.tokenizer import StandaloneTokenizer
from esa_cli.qa.presets.preset import Preset, find_adapter_folder
from esa_cli.qa.presets.preset_files import locate_finder
from esa_cli.qa.presets.resolved_preset import FROM_TEXT, resolve_preset
from esa_cli.storage.library.document_files import Layout
from esa_cli.system.text import digest_text

FORMAT = 3
"""The version of the cache key, increased when new prefills would differ."""
SAMPLES = 1024
"""How many numbers of each weight tensor its digest covers."""


def digest_model(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Returns what KV caches depend on in a model and its tokenizer. Raises ModelError."""
    return {
        "fingerprint": asdict(compute_model_fingerprint(model)),
        "config": _drop_paths_and_versions(model.config),
        "weights": _digest_weights(model),
        "tokens": _digest_tokenizer(tokenizer),
    }


def make_cache_key(
    model_digest: Mapping[str, Any], prompt_start_ids: Sequence[int], preset: Preset,
    method: Method, layout: Layout,
) -> str:  # fmt: skip
    """Returns the cache key of KV caches that a preset's method computes."""
    window = asdict(preset.window)
    selected = window.pop("selected")
    del window["ending"]
    facts: dict[str, Any] = {
        "format": FORMAT,
        "model": model_digest,
        "head": list(prompt_start_ids),
        "parts": hash_plugin_sources(method),
        "rows": {"dtype": layout.dtype, "kind": layout.kind},
        "prompt": preset.prompt.model_dump(exclude={"after"}),
        "window": window,
        "position": preset.position,
        "reading": preset.reading,
    }
    if method.score.features:
        aim = {"rotate": method.score.rotates, "distance": method.position.distance}
        files = method.compressor.files
        facts["compressor"] = {**hash_setting_files(preset.compressor, files), **aim}
    if preset.window.dense is None:  # the length of full attention follows from k
        facts["window"] = window = {**window, "dense": method.window.full_attention_limit}
    if layout.states:
        facts["transformers"] = version("transformers").split(".")[:2]
    if preset.reading == "select":
        facts |= {"selector": preset.selector, "score": preset.score}
        facts["window"] = {**window, "selected": selected}
    return json.dumps(facts, sort_keys=True)


def _drop_paths_and_versions(config: Any) -> dict[str, Any]:
    left_out = ["transformers_version", "dtype", "torch_dtype"]
    if get_model_family(config).switches_rope:  # attachment changes it; also in `rope_parameters`
        left_out.append("original_max_position_embeddings")
    facts = json.loads(json.dumps(config.to_dict(), default=str))
    return {key: facts[key] for key in facts if key[0] != "_" and key not in left_out}


def _digest_weights(model: Any) -> str:
    """Returns a digest of the names and shapes of all weights and of a sample of their values."""
    digest = sha256()
    for name, weight in iterate_weight_tensors(model):
        with convert_read_errors(f"{name} of this model", LOADED_PLAIN):
            flat = weight.detach().reshape(-1)
            some = flat[:: max(1, flat.shape[0] // SAMPLES)][:SAMPLES].float().cpu()
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(some.numpy().tobytes())
    return digest.hexdigest()


def _digest_tokenizer(tokenizer: Any) -> str:
    if isinstance(tokenizer, StandaloneTokenizer):
        return tokenizer.digest
    fast = getattr(tokenizer, "backend_tokenizer", None)
    text = fast.to_str() if fast is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return digest_text(text)


def hash_method_settings(
    method_name: str, preset: Preset, excluded_keys: tuple[str, ...] = ("name",)
) -> str:
    """Returns the hash of the settings and files that change the answers of `text`, or of a method,
    for which `answer` and `excluded_keys` are left out. Raises PresetError."""
    if method_name == FROM_TEXT:
        return hash_text_answer_settings(preset)
    facts = preset.model_dump(mode="json", exclude={*excluded_keys, "answer"})
    method = resolve_preset(preset).method
    files: dict[str, Any] = {**hash_plugin_sources(method)}
    for kind in PARTS:
        named = method.compressor.files if kind == "compressor" else ()
        for key, value in hash_setting_files(facts[kind], named).items():
            if value != facts[kind].get(key):
                files[f"{kind}.{key}"] = value
    # Without files the hash is that of older versions, whose rows can be continued.
    return _hash_as_json({**facts, "files": files} if files else facts)


def hash_text_answer_settings(preset: Preset) -> str:
    """Returns the hash of a preset for answers from text, and of its adapter and finder files.
    Raises PresetError: the adapter or the finder is missing."""
    answer, hashes = preset.answer, {}
    adapter = None if answer.adapter is None else find_adapter_folder(answer.adapter)
    finder = None if answer.finder is None else locate_finder(answer.finder)
    for kind, folder in (("adapter", adapter), ("finder", finder)):
        if not isinstance(folder, Path):
            continue  # no folder, or a finder whose files are elsewhere
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".json", ".safetensors"):
                name = f"{kind}_folder {path.relative_to(folder)}"
                hashes[name] = sha256(path.read_bytes()).hexdigest()
    settings = preset.model_dump(mode="json", exclude={"name", "description"})
    return _hash_as_json({**settings, "files": hashes})


def _hash_as_json(facts: Mapping[str, Any]) -> str:
    return digest_text(json.dumps(facts, sort_keys=True))[:16]
