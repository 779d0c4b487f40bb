"""Registering, building and loading methods, and what they are made of: their settings, and what is
in the files behind them. Every test works on a copy of the registry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
import torch
from conftest import copy_registries
from saved_projections import save_learned_projections

from esa_cli.attention.compression import Linear
from esa_cli.attention.parts import Compressor, Moments, Score
from esa_cli.errors import PluginError, PresetError
from esa_cli.methods import plugin_loading, registry
from esa_cli.methods.registry import find_kind_without_source_file, hash_setting_files, register
from esa_cli.qa.presets.cache_key import hash_method_settings
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import AS_IS, explain_why_not_storable, resolve_preset

Write = Callable[[str], Path]

HEAD = """
from dataclasses import dataclass
from esa_cli.methods.registry import register
"""
GOOD = (
    HEAD
    + """
@register("selector", "none-of-it")
@dataclass(frozen=True)
class NoneOfIt:
    share: float = 0.5
"""
)


METHOD = """
from esa_cli.methods.registry import recipe

@recipe("all-of-it", about="", source="", cost="")
def all_of_it(base):
    return {"selector": {"name": "full"}}
"""


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugin_loading
    copy_registries(monkeypatch)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(source: str) -> Path:
        path = tmp_path / "some-plugin.py"
        path.write_text(source)
        return path

    return write_file


@dataclass(frozen=True)
class Settings:
    count: int = 1
    share: float = 0.5
    rotate: bool = False
    rule: Literal["max", "mean"] = "max"
    word: str = "w"
    most: int | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count must not be negative")


def build(**options: object) -> object:
    registry.register("score", "settings")(Settings)
    return registry.build_method_part("score", {"name": "settings", **options})


def test_build_sets_fields() -> None:
    assert build() == Settings()
    assert build(count=3, share=1, rotate=True, most=4) == Settings(3, 1.0, True, most=4)
    assert build(rule="mean", most=None) == Settings(rule="mean")


@pytest.mark.parametrize(
    "options",
    [
        {"count": "3"},
        {"count": 3.0},
        {"count": True},
        {"rotate": 1},
        {"rotate": "yes"},
        {"share": "half"},
        {"rule": "median"},
        {"word": 3},
        {"most": "all"},
        {"count": -1},
    ],
)
def test_build_refuses_wrong_values(options: dict[str, object]) -> None:
    with pytest.raises(PresetError, match=next(iter(options))):
        build(**options)


def test_build_names_the_nearest() -> None:
    with pytest.raises(PresetError, match="no setting 'cuont'") as setting:
        build(cuont=3)
    assert setting.value.hint == "did you mean 'count'?"
    with pytest.raises(PresetError, match="unknown selector 'topp'") as method:
        registry.build_method_part("selector", {"name": "topp"})
    assert method.value.hint == "did you mean 'topk'?"
    with pytest.raises(PresetError, match="has no name"):
        registry.build_method_part("selector", {})
    with pytest.raises(PresetError, match="position has the name True: put it in quotes"):
        registry.build_method_part("position", {"name": True})  # position: {name: true}, to YAML


def test_register_refuses() -> None:
    class Bare:
        pass

    @dataclass(frozen=True)
    class Named:
        name: str = ""

    with pytest.raises(PluginError, match="must be a dataclass"):
        registry.register("selector", "bare")(Bare)
    with pytest.raises(PluginError, match="no such kind 'selectr'") as kind:
        registry.register("selectr", "settings")(Settings)
    assert kind.value.hint == "did you mean 'selector'?"
    with pytest.raises(PluginError, match="already registered by esa_cli"):
        registry.register("selector", "topk")(Settings)
    with pytest.raises(PluginError, match="without a field called 'name'"):
        registry.register("selector", "named")(Named)
    registry.register("score", "settings")(Settings)
    registry.register("score", "settings")(Settings)


def test_load_file(write: Write) -> None:
    path = write(GOOD)
    assert plugin_loading.load_file(path) == [("selector", "none-of-it")]
    assert plugin_loading.load_file(str(path)) == [("selector", "none-of-it")], "a second time"
    assert registry.PARTS["selector"].find_module("none-of-it") == str(path.resolve())
    built = registry.build_method_part("selector", {"name": "none-of-it", "share": 1})
    assert built.share == 1.0
    path = path.with_name("recipe.py")
    path.write_text(METHOD)
    for _ in range(2):
        assert plugin_loading.load_file(path) == [("method", "all-of-it")]
    assert registry.find_method("all-of-it").origin == str(path.resolve())


def test_load_file_is_not_credited_with_what_it_imports(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_helper.py").write_text(GOOD.replace("none-of-it", "helper"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugin_loading.load_file(write(GOOD + "import imported_helper\n")) == [
        ("selector", "none-of-it")
    ]
    assert registry.PARTS["selector"].find_module("helper") == "imported_helper"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "registers nothing"),
        ("1 / 0", r"ZeroDivisionError.*some-plugin.py, line 1"),
        ("def f(:", r"SyntaxError.*some-plugin.py, line 1\): def f\(:"),
        (GOOD + "import sys\nsys.exit(0)\n", "does not run: SystemExit: 0"),
        (GOOD + "class Own(BaseException):\n    pass\nraise Own('o')\n", "does not run: Own: o"),
        (GOOD.replace("none-of-it", "topk"), "already registered by esa_cli"),
        (GOOD + GOOD.replace("class NoneOfIt", "class Second"), "already registered"),
        (METHOD + "1 / 0", "ZeroDivisionError"),
        (GOOD.replace("none-of-it", "text"), "name must be none of 'preset', 'text', got 'text'"),
        (METHOD.replace("all-of-it", "quest"), "already registered by esa_cli.methods.per_head"),
        (
            METHOD + METHOD.replace("def all_of_it", "def second"),
            "already registered by .*plugin.py",
        ),
    ],
)
def test_load_file_that_fails_registers_nothing(write: Write, source: str, message: str) -> None:
    before = {kind: sorted(registry.PARTS[kind]) for kind in registry.KINDS}
    path = write(source)
    for _ in range(2):
        with pytest.raises(PluginError, match=message):
            plugin_loading.load_file(path)
    assert {kind: sorted(registry.PARTS[kind]) for kind in registry.KINDS} == before
    assert "all-of-it" not in registry.RECIPES
    path.write_text(GOOD)
    assert plugin_loading.load_file(path) == [("selector", "none-of-it")], "mended and tried again"


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        ("entry_point_good", GOOD, ""),
        ("entry_point_broken", "1 / 0", "'third-party' .*ZeroDivisionError"),
        ("entry_point_taken", GOOD.replace("none-of-it", "topk"), "'third-party' .*already"),
    ],
)
def test_entry_points(
    module: str,
    source: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("third-party", module, "esa.plugins")
    monkeypatch.setattr(plugin_loading, "entry_points", lambda group: [point])
    plugin_loading.load_installed_plugins.cache_clear()
    request.addfinalizer(plugin_loading.load_installed_plugins.cache_clear)
    if message:
        with pytest.raises(PluginError, match=message):
            plugin_loading.load_installed_plugins()
        return
    plugin_loading.load_installed_plugins()
    plugin_loading.load_installed_plugins()
    assert registry.PARTS["selector"].find_module("none-of-it") == module


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
        registry.PARTS["score"].pop("edited")
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
