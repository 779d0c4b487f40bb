"""What a method is made of: its settings, and what is in the files behind them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from conftest import copy_registries

from esa_cli.attention.compression import Linear, save_learned_projections
from esa_cli.attention.parts import Compressor, Moments, Score
from esa_cli.errors import PresetError
from esa_cli.methods import plugin_loading, registry
from esa_cli.methods.registry import find_kind_without_source_file, hash_setting_files, register
from esa_cli.qa.presets.cache_key import hash_method_settings
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import AS_IS, explain_why_not_storable, resolve_preset

hash_settings = partial(hash_method_settings, AS_IS)
PLUGIN = """
from dataclasses import dataclass
import torch
from esa_cli.methods import Score, register

@register("score", "edited")
@dataclass(frozen=True)
class Edited(Score):
    def scores(self, step):
        return torch.arange(step.middle) * {sign}
"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes back what a test registers; the built-in methods are there before."""
    assert plugin_loading
    copy_registries(monkeypatch)


def hashed(*overrides: str) -> str:
    return hash_settings(load_preset("tiny-random", overrides))


def test_settings_count_and_the_presets_name_does_not() -> None:
    plain = load_preset("tiny-random")
    assert hash_settings(plain) == hash_settings(plain.model_copy(update={"name": "other"}))
    assert hash_settings(plain) != hashed("window.selected=16")
    prompt = plain.model_copy(update={"description": "other"})
    assert hash_settings(plain) != hash_settings(prompt)
    some = ("name", "description")
    assert hash_settings(plain, some) == hash_settings(prompt, some)


def test_the_code_of_a_plugin_counts(tmp_path: Path) -> None:
    """In a file of another name it is the same; edited in place it is another."""
    found = []
    for name, sign in (("a.py", 1), ("b.py", 1), ("a.py", -1)):
        (tmp_path / name).write_text(PLUGIN.format(sign=sign), "utf-8")
        plugin_loading.load_file(tmp_path / name)
        found.append(hashed("score.name=edited"))
        registry.PARTS["score"]._entries.pop("edited")
    assert found[0] == found[1] != found[2]


def test_what_is_in_a_compressors_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "maps.safetensors"
    given = ("compressor.name=learned", f"compressor.file={path}")
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        path.unlink(missing_ok=True)
        save_learned_projections(
            path, [Linear(torch.randn(16, 3), torch.randn(16, 3)) for _ in range(2)]
        )
        found.append(hashed(*given))
    assert found[0] == found[1] != found[2]
    path.unlink()
    with pytest.raises(PresetError, match=r"maps\.safetensors cannot be read"):
        hashed(*given)


def test_what_a_compressor_reads_counts_whatever_its_fields_are_called(tmp_path: Path) -> None:
    (tmp_path / "maps.bin").write_bytes(b"1")

    @register("compressor", "elsewhere")
    @dataclass(frozen=True)
    class Elsewhere(Compressor):
        @property
        def files(self) -> tuple[str, ...]:
            return (str(tmp_path / "maps.bin"),)

        def fit(self, layer: int, moments: Moments) -> None:
            return None

    given = ["compressor.name=elsewhere"]
    found, resolved = [hashed(*given)], resolve_preset(load_preset("tiny-random", given))
    files = resolved.method.compressor.files
    keys = [hash_setting_files(resolved.preset.compressor, files)]
    (tmp_path / "maps.bin").write_bytes(b"2")
    found.append(hashed(*given))
    keys.append(hash_setting_files(resolved.preset.compressor, files))
    assert found[0] != found[1]
    assert keys[0] != keys[1]


def test_a_class_without_a_file_is_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is typed into a notebook, and then typed again."""

    def typed() -> Callable[[], str]:
        @register("score", "typed")
        @dataclass(frozen=True)
        class Typed(Score):
            def scores(self, step: object) -> torch.Tensor:
                return torch.zeros(1)

        Typed.__module__ = "typed_in"
        kept.append(Typed)
        return lambda: hashed("score.name=typed")

    kept: list[type] = []
    monkeypatch.setitem(sys.modules, "typed_in", ModuleType("typed_in"))
    first = typed()()
    assert first == hashed("score.name=typed")
    assert typed()() != first
    method = resolve_preset(load_preset("tiny-random", ["score.name=typed"])).method
    assert find_kind_without_source_file(method) == "score"
    assert explain_why_not_storable(method).startswith("its score must be defined in a file")
