"""Folders, GGUF files and adapters that are damaged or made to do harm: an error of esa's, or they
work; and neither takes long."""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_files import adapter_rank, new_adapter, save_adapter
from model_files import change, folder, home, tiny_gguf
from properties import seeds
from safetensors.torch import load_file, save_file

from esa_cli import models
from esa_cli.errors import ModelError, ResourceError
from esa_cli.models.files.checkpoint_files import read_language_model_settings
from esa_cli.models.files.gguf_file import GgufFile
from esa_cli.models.text_passes.text_forward import CONFIG, WEIGHTS, LoraAdapter
from esa_cli.models.tokenization.tokenizer import count_tokens, load_tokenizer
from esa_cli.qa.answering.prompt import PromptEncoder
from esa_cli.qa.planning.model_shape import read_model_shape
from esa_cli.qa.presets.preset import Prompt

__all__ = ["folder", "home", "tiny_gguf"]
VALUES = (
    None, True, "x", "4", "", [], [1], {}, {"a": 1}, 0, -1, 1, 7, 1.5, 1e-9, -0.5, 1e308,
    float("nan"), float("inf"), 2**31, 10**12, 10**40,
)  # fmt: skip


@contextmanager
def refused_or_quick(drawn: object = "", seconds: float = 20) -> Iterator[None]:
    """What a test has drawn is in the message of its failure."""
    start = time.process_time()
    try:
        with suppress(ModelError, ResourceError):
            yield
    except Exception as error:
        error.add_note(str(drawn))
        raise
    assert time.process_time() - start < seconds, drawn


def open_model(folder: Path) -> Any:
    """What a command does with a model's folder, but for reading a document."""
    read_model_shape(read_language_model_settings(folder))
    loaded = models.load(str(folder), device="cpu", dtype="float32")
    prompt = PromptEncoder(loaded.tokenizer, Prompt())
    ids = prompt.encode_document("The captain's name is Ahab.") + prompt.encode_question(
        "Who is it?"
    )
    with torch.inference_mode():
        loaded.model(torch.tensor([ids[:64]]) % loaded.model.config.vocab_size)
    return loaded


FORMS: dict[int, tuple[str, tuple[Any, ...]]] = {
    4: ("<I", (0, 1, 2, 3, 100_000, 2**31, 2**32 - 1)),
    6: ("<f", (0.0, -1.0, 1e-9, 1e30, float("nan"), float("inf"))),
}
"""GGUF's kind of a number -> its form, and values."""
SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json")


def test_settings_of_any_value(folder: Path) -> None:
    for seed in seeds(30):
        draw = random.Random(seed)
        file = folder / draw.choice(("config.json", *SETTINGS))
        before = file.read_text("utf-8")
        settings = json.loads(before)
        places = (settings, settings.get("rope_parameters") or settings)
        for _ in range(draw.choice((1, 1, 2))):
            inner = draw.choice(places)
            inner[draw.choice(sorted(inner))] = draw.choice(VALUES)
        file.write_text(json.dumps(settings), "utf-8")
        with refused_or_quick(settings):
            open_model(folder)
        file.write_text(before, "utf-8")


@pytest.mark.parametrize("name", [*SETTINGS, "tokenizer.json"])
def test_settings_that_are_no_object(folder: Path, name: str) -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "[]", "9" * 5000, "", "NaN"):
        (folder / name).write_text(text, "utf-8")
        with refused_or_quick(text[:9]):
            open_model(folder)


def test_gguf_headers_of_any_value(tiny_gguf: Path, tmp_path: Path) -> None:
    """A number of the header, or some of its bytes; some files are cut off as well."""
    content = tiny_gguf.read_bytes()
    keys = sorted({key for key in GgufFile(tiny_gguf).metadata if key.startswith("llama.")})
    for seed in seeds(20):
        draw, bad = random.Random(seed), bytearray(content)
        key = draw.choice(keys)
        at = content.index(key.encode()) + len(key)
        if bad[at] in FORMS and draw.random() < 0.7:
            form, values = FORMS[bad[at]]
            struct.pack_into(form, bad, at + 4, value := draw.choice(values))
        else:
            key, value = "bytes", draw.sample(range(6000), draw.choice((1, 3)))
            for at in value:
                bad[at] = draw.randrange(256)
        path = tmp_path / f"{seed}.gguf"
        cut = draw.choice((len(bad), len(bad), draw.randrange(len(bad))))
        path.write_bytes(bad[:cut])
        with refused_or_quick((seed, key, value, cut)):
            open_model(models.fetch_model_folder(str(path)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", -1), ("num_hidden_layers", 100_000), ("num_attention_heads", 0),
        ("num_attention_heads", "4"), ("rms_norm_eps", float("nan")), ("rms_norm_eps", -5),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 0}), ("vocab_size", 1.5),
        ("eos_token_id", "x"),
    ],
)  # fmt: skip
def test_settings_with_which_nothing_is_computed(folder: Path, name: str, value: Any) -> None:
    change(folder / "config.json", **{name: value})
    with pytest.raises(ModelError, match=r"config\.json: \w+ must be"):
        read_language_model_settings(folder)


LONG = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TEMPLATES = (
    "{{ ''.__class__.__mro__ }}", "{{ messages", "{{ raise_exception('no') }}", "{{ 1 / 0 }}",
    "{{ messages[9].content }}", LONG, "{% set l = range(99999)|list %}"
    "{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}", "{{ 9 ** 9 ** 9 }}",
    "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{% if messages[0].content|length > 20 %}" + LONG + "{% endif %}",
)  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES)
def test_chat_templates_that_fail_or_do_not_end(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    with refused_or_quick(), pytest.raises(ModelError):
        PromptEncoder(load_tokenizer(folder), Prompt())


@pytest.fixture
def adapter(folder: Path, tmp_path: Path) -> tuple[Path, Callable[[], LoraAdapter]]:
    """An adapter's folder, and what reads it for its model."""
    model = models.load(str(folder), device="cpu", dtype="float32").model
    save_adapter(new_adapter(model, rank=4, alpha=8), tmp_path / "adapter", "")
    return tmp_path / "adapter", lambda: LoraAdapter.load(tmp_path / "adapter", model)


@pytest.mark.parametrize(
    "changed",
    [
        *({"r": one} for one in (0, -4, "x", 5, True, 10**12, None)),
        *({"lora_alpha": one} for one in (float("nan"), float("inf"), 1e308, "x", [])),
        {"peft_type": []}, {"target_modules": None, "r": 10**400},
    ],
)  # fmt: skip
def test_adapter_settings(adapter: Any, changed: dict[str, Any]) -> None:
    path, load = adapter
    assert adapter_rank(load()) == 4
    change(path / CONFIG, **changed)
    with pytest.raises(ModelError):
        load()


def test_adapters_of_any_value(adapter: Any) -> None:
    path, load = adapter
    settings, weights = json.loads((path / CONFIG).read_text()), (path / WEIGHTS).read_bytes()
    for seed in seeds(20):
        draw, changed, bad = random.Random(seed), dict(settings), bytearray(weights)
        if draw.random() < 0.5:
            changed[draw.choice(sorted(changed))] = draw.choice(VALUES)
        else:
            for at in draw.sample(range(4000), 3):
                bad[at] = draw.randrange(256)
        (path / CONFIG).write_text(json.dumps(changed))
        (path / WEIGHTS).write_bytes(bad)
        with refused_or_quick((seed, changed)):
            for pair in load().matrices.values():
                assert all(matrix.isfinite().all() for matrix in pair)
    for text in ("[" * 100_000, "[]", "{}", ""):
        (path / CONFIG).write_text(text)
        with pytest.raises(ModelError):
            load()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(folder: Path, value: float) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="must be finite"):
        models.load(str(folder), device="cpu", dtype="bfloat16")


def test_a_tokenizer_that_expands_letters_or_has_huge_ids(folder: Path) -> None:
    file = folder / "tokenizer.json"
    plain = json.loads(file.read_text("utf-8"))
    rule = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 9}
    model = plain["model"]
    changes: list[dict[str, Any]] = [
        {"normalizer": {"type": "Sequence", "normalizers": [rule, rule]}},
        {"model": model | {"vocab": model["vocab"] | {"a": 10**9}}},
    ]
    for changed in changes:
        file.write_text(json.dumps({**plain, **changed}), "utf-8")
        for read in (load_tokenizer, lambda path: count_tokens(path, "a")):
            with refused_or_quick(), pytest.raises(ModelError):
                read(folder)
