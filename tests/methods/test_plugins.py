"""The worked plugins and the template: they conform, equal plain loops, and run in a model."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from conftest import VOCABULARY, ModelFactory, copy_registries

from esa_cli.attention.method import Method
from esa_cli.attention.positions import TruePositions
from esa_cli.attention.window import Window
from esa_cli.errors import PluginError
from esa_cli.evaluation.conformance import check_plugin_file, make_step
from esa_cli.methods import plugin_loading, registry
from esa_cli.methods.plugin_loading import write_plugin_template
from esa_cli.models.attachment.attach import attach

PLUGINS = Path(__file__).parents[2] / "plugins"
FILES = sorted(path for path in PLUGINS.glob("*.py") if not path.stem.endswith("_reader"))


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worked plugins, in a copy of the registry that the test may change."""
    copy_registries(monkeypatch)
    for path in FILES:
        plugin_loading.load_file(path)


def build(kind: str, name: str, **options: Any) -> Any:
    return registry.build_method_part(kind, {"name": name, **options})


def complaints(path: Path) -> list[str]:
    return [
        f"{kind} {name}: {finding.check}: {finding.detail}"
        for (kind, name), findings in check_plugin_file(path).items()
        for finding in findings
        if not finding.passed
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_worked_plugins_conform(path: Path) -> None:
    assert complaints(path) == []


@pytest.mark.parametrize("block", [1, 4, 7, 100])
@pytest.mark.parametrize("budget", [0, 3, 7, 17, 29, 30])
@pytest.mark.parametrize("rotate", [True, False])
def test_block_top_k_equals_loops(block: int, budget: int, rotate: bool) -> None:
    step = make_step(middle=30, chunk=5)
    q = reference.plain(step.queries)
    k = reference.plain(step.store.span(step.low, step.high)[0])
    queries = [[reference.rotate(c, step.distance) if rotate else c for c in head] for head in q]
    groups = [reference.group_of(h, len(q), len(k)) for h in range(len(q))]
    scores = [
        sum(
            reference.dot(c, k[g][m]) for head, g in zip(queries, groups, strict=True) for c in head
        )
        for m in range(30)
    ]
    parts = [scores[first : first + block] for first in range(0, 30, block)]
    chosen = reference.top_k([sum(part) / len(part) for part in parts], budget // block)
    want = [m for m in range(30) if budget >= 30 or m // block in chosen]
    selector = build("selector", "block-topk", block=block, rotate=rotate)
    assert selector.select(step, budget).tolist() == want


def test_the_random_control_draws_alike_and_evenly() -> None:
    step = make_step(middle=30)
    selector = build("selector", "random-control")
    before = torch.get_rng_state()
    picked = selector.select(step, 7).tolist()
    assert torch.equal(torch.get_rng_state(), before), "the model's sampling is left alone"
    assert (
        picked
        == sorted(set(picked))
        == build("selector", "random-control").select(step, 7).tolist()
    )
    assert len(picked) == 7
    others = (
        (selector, replace(step, layer=step.layer + 1)),
        (selector, replace(step, start=step.start + 1)),
        (build("selector", "random-control", seed=1), step),
    )
    assert all(other.select(at, 7).tolist() != picked for other, at in others)


@pytest.mark.parametrize("group", [1, 2, 5, 8])
@pytest.mark.parametrize("local", [0, 6, 8])
def test_grouped_positions_are_self_extends(group: int, local: int) -> None:
    start, chunk = 53, 4
    encoding = build("position", "grouped", group=group)
    far = torch.tensor([0, 1, 7, 20, start - local - 1])
    place = encoding.far(far, local, chunk, start)
    near = encoding.near(local, chunk, start, far.shape[0])
    for c in range(chunk):
        for n, at in enumerate(far.tolist()):
            apart = (start + c) // group - at // group + local - local // group
            assert place.query[c] - place.key[n] == apart
        for j in range(local + chunk):
            assert near.query[c] - near.key[j] == (start + c) - (start - local + j)
    beyond = int(place.query[0] - place.key[-1])
    assert local <= beyond <= local + 1 + 1 // group, "distances continue where L ends"


@pytest.fixture
def text() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (1, 200))


WINDOW = Window(initial=4, selected=400, local=16, chunk=16, dense=0)


def test_everything_selected_equals_stock_attention(
    make_model: ModelFactory, text: torch.Tensor
) -> None:
    """With every token selected, true distances give the host's own logits."""
    want = make_model("llama")(text).logits
    for selector in ("block-topk", "random-control"):
        for position in (build("position", "grouped", group=1), TruePositions()):
            method = Method(WINDOW, selector=build("selector", selector), position=position)
            with attach(make_model("llama"), method) as attachment:
                found = attachment.model(text, past_key_values=attachment.new_cache()).logits
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="session")
def ruff() -> list[str]:
    if subprocess.run([sys.executable, "-m", "ruff", "--version"], capture_output=True).returncode:
        pytest.skip("ruff is not installed")
    return [sys.executable, "-m", "ruff"]


@pytest.mark.parametrize("name", ["x2_y-z", "None"])
def test_template_conforms_and_passes_ruff(name: str, tmp_path: Path, ruff: list[str]) -> None:
    path = write_plugin_template(name, tmp_path)
    assert path.stem == name.replace("-", "_")
    assert complaints(path) == []
    assert registry.PARTS["selector"].find_module(name) == str(path.resolve())
    config = str(PLUGINS.parent / "pyproject.toml")
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([*ruff, *command, "--config", config, str(path)], capture_output=True)
        assert done.returncode == 0, done.stdout.decode()


@pytest.mark.parametrize(
    "name", ["", "2nd", "-x", "a b", "a/b", "../a", "a.py", 'a"', "é", "a\n", "n" * 33]
)
def test_template_refuses_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="cannot name a method"):
        write_plugin_template(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [*registry.RESERVED, *list(registry.PARTS["selector"])[:1]])
def test_template_refuses_names_that_cannot_be_registered(name: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"already exists|must be none of"):
        write_plugin_template(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_examples_of_the_page_conform(tmp_path: Path) -> None:
    text = (PLUGINS.parent / "docs" / "plugins.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    examples = [block for block in blocks if "\n@re" in block]
    assert len(examples) == 2
    path = tmp_path / "page.py"
    path.write_text("\n".join(examples), "utf-8")
    assert complaints(path) == []
