"""Conformance of built-in methods, plugin files and recipes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance_tools import failed, first
from conftest import copy_registries
from torch import Tensor

import esa_cli.documents.readers  # noqa: F401 - registered before a test copies the registry
from esa_cli.attention.compression import Linear, save_learned_projections
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Step
from esa_cli.evaluation.conformance import check, check_plugin_file
from esa_cli.methods import registry

BUILT_IN = [
    (kind, name)
    for kind in registry.KINDS
    for name in sorted(registry.PARTS[kind])
    if registry.PARTS[kind].find_module(name).startswith("esa_cli.") and name != "learned"
]


BUILDS = "builds a frozen dataclass of its base class"


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_registries(monkeypatch)


@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_built_in_methods_conform(kind: str, name: str) -> None:
    assert failed(check(kind, name)) == {}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("selector", {"name": "topk", "proximity": 3}),
        ("score", {"name": "sum", "rotate": True}),
        ("score", {"name": "vote", "rule": "max", "rotate": False}),
        ("score", {"name": "vote", "shortlist": 12}),
        ("score", {"name": "bm25", "window": 8, "layers": "all"}),
        ("compressor", {"name": "closed-form", "rank": 3, "fit_tokens": 5}),
    ],
)
def test_built_in_methods_conform_with_other_settings(kind: str, options: dict[str, Any]) -> None:
    assert failed(check(kind, options["name"], options)) == {}


def test_learned_compressor_conforms_when_given_its_file(tmp_path: Path) -> None:
    save_learned_projections(tmp_path / "maps.safetensors", [Linear(*torch.randn(2, 32, 4))])
    options = {"file": str(tmp_path / "maps.safetensors")}
    assert failed(check("compressor", "learned", options)) == {}
    assert "missing" in failed(check("compressor", "learned"))[BUILDS]


def test_a_method_must_be_frozen() -> None:
    @dataclass
    class Open(Selector):
        def select(self, step: Step, budget: int) -> Tensor:
            return first(step, budget)

    registry.register("selector", "open")(Open)
    assert "frozen=True" in failed(check("selector", "open"))[BUILDS]


def test_check_file_checks_everything_it_registers(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from esa_cli.methods import Selector, register\n"
        "@register('selector', 'a')\n@dataclass(frozen=True)\nclass A(Selector):\n"
        "    def select(self, step, budget):\n        raise KeyError(budget)\n"
        "@register('position', 'b')\n@dataclass(frozen=True)\nclass B:\n    pass\n"
    )
    found = check_plugin_file(path)
    assert set(found) == {("selector", "a"), ("position", "b")}
    assert failed(found["selector", "a"]) == {
        "valid results on random steps": "usual: raised KeyError: 16 (two.py, line 7)"
    }
    assert "not derived from PositionEncoding" in failed(found["position", "b"])[BUILDS]


RECIPE = """
from esa_cli.methods.registry import recipe
@recipe("recipe-under-test", about="", source="", cost="")
def under_test(base):
    return {}
"""
WRONG_RECIPES = {
    "{'window': {'selected': base.window.selected + 1}}": "must attend to the preset's 2112 tokens",
    "{'selector': {'name': 'topkk'}}": "unknown selector 'topkk'",
    "{'selector': {'name': 'topk', 'proximty': 3}}": "no setting 'proximty'",
    "{'windows': {'local': 3}}": "must not set 'windows'",
    "{'model': 'random:llama'}": "must not set 'model'",
    "None": "must return a mapping, got None",
    "{}['key']": "fails: KeyError: 'key'",
}


@pytest.mark.parametrize("settings", WRONG_RECIPES)
def test_wrong_recipes_fail(settings: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(RECIPE.replace("{}", settings))
    (found,) = check_plugin_file(path).values()
    assert WRONG_RECIPES[settings] in failed(found)["valid settings"]


@pytest.mark.parametrize("name", [one.name for one in registry.list_methods()])
def test_built_in_recipes_conform(name: str) -> None:
    assert failed(check("method", name)) == {}
