"""The worked plugins and the template: they conform, equal plain loops, and run in a model."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from conftest import VOCABULARY, ModelFactory, copy_registries

from esa_cli.attention.method import Method, Window
from esa_cli.attention.positions import Contiguous, FixedDistance, TruePositions
from esa_cli.attention.scoring import SumScore
from esa_cli.attention.step import Step
from esa_cli.errors import PluginError
from esa_cli.evaluation.conformance import advance, check_file, make_step
from esa_cli.methods import plugin_loading, registry
from esa_cli.methods.plugin_template import template, write_template
from esa_cli.models.attach import attach
from esa_cli.qa import method_presets
from esa_cli.qa.build_method import method as build_method
from esa_cli.qa.preset import Preset

PLUGINS = Path(__file__).parents[2] / "plugins"
FILES = sorted(PLUGINS.glob("*.py"))


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worked plugins, in a copy of the registry that the test may change."""
    copy_registries(monkeypatch)
    for path in FILES:
        plugin_loading.load_file(path)


def build(kind: str, name: str, **options: Any) -> Any:
    return registry.build(kind, {"name": name, **options})


def complaints(path: Path) -> list[str]:
    return [
        f"{kind} {name}: {finding.check}: {finding.detail}"
        for (kind, name), findings in check_file(path).items()
        for finding in findings
        if not finding.passed
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_worked_plugins_conform(path: Path) -> None:
    assert complaints(path) == []


@pytest.mark.parametrize("budget", [0, 1, 7, 30, 31])
def test_streaming_takes_the_most_recent(budget: int) -> None:
    step = make_step(middle=30)
    picked = build("selector", "streaming").select(step, budget).tolist()
    assert picked == [m for m in range(30) if 30 - m <= budget]
    assert build("selector", "streaming", recent=False).select(step, budget).numel() == 0


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


def test_grouped_positions_refuse_no_group() -> None:
    with pytest.raises(Exception, match="group must be at least 1"):
        build("position", "grouped", group=0)


def test_streaming_brings_its_recipe() -> None:
    base = Preset(name="base", model="m", context=4096, selector={"name": "topk", "proximity": 3})
    made = method_presets.apply("streaming", base)
    assert (made.selector, made.window) == ({"name": "streaming", "recent": True}, base.window)
    method = build_method(made)
    assert type(method.selector).__name__ == "Streaming"
    assert isinstance(method.position, Contiguous)


class Received:
    """InfLLM's r by loops: what every token got while it was in L or C, from each head."""

    def __init__(self) -> None:
        self.r: list[list[float]] = []

    def observe(self, step: Step) -> None:
        heads, chunk, _ = step.queries.shape
        first, stop = step.start - step.local, step.start + chunk
        q = reference.plain(step.queries)
        k = reference.plain(step.store.span(first, stop)[0])
        assert step.lse is not None
        lse = reference.plain(step.lse)
        self.r = self.r or [[] for _ in range(heads)]
        for h in range(heads):
            self.r[h] += [0.0] * (stop - len(self.r[h]))
            keys = k[reference.group_of(h, heads, len(k))]
            keys = [reference.rotate(key, n) for n, key in enumerate(keys)]
            for c in range(chunk):
                query = reference.rotate(q[h][c], step.local + c)
                for n, key in enumerate(keys[: step.local + c + 1]):
                    logit = step.scale * reference.dot(query, key)
                    self.r[h][first + n] += math.exp(logit - lse[h][c])


def mean_of(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def infllm(step: Step, budget: int, block: int, count: int, r: list[list[float]]) -> list[int]:
    """The blocks of the original's rule, by loops over heads, blocks and tokens."""
    heads = step.queries.shape[0]
    q = reference.plain(step.queries)
    k = reference.plain(step.store.span(step.low, step.high)[0])
    scores = []
    for first in range(0, step.middle, block):
        tokens = range(first, min(first + block, step.middle))
        score = 0.0
        for h in range(heads):
            keys = k[reference.group_of(h, heads, len(k))]
            best = sorted(tokens, key=lambda m: -r[h][step.low + m])[:count] if r else tokens
            rotated = [reference.rotate(query, step.distance) for query in q[h]]
            score += reference.dot(mean_of(rotated), mean_of([keys[m] for m in best]))
        scores.append(score)
    chosen = reference.top_k(scores, budget // block)
    return [m for m in range(step.middle) if m // block in chosen]


@pytest.mark.parametrize(("block", "count"), [(4, 2), (8, 4), (8, 100), (1, 1)])
@pytest.mark.parametrize("seed", [0, 1])
def test_infllm_blocks_equal_loops(
    block: int, count: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esa_cli.evaluation.conformance.random_steps.READ", 11)
    selector = build("selector", "infllm-blocks", block=block, representatives=count)
    loops = Received()

    def both(step: Step) -> None:
        loops.observe(step)
        selector.observe(step)

    step = make_step(middle=30, chunk=5, local=9, seed=seed, observe=both)
    for size in (5, 1, 13):
        for budget in (block - 1, block, 17, 29):
            want = infllm(step, budget, block, count, loops.r)
            assert selector.select(step, budget).tolist() == want
        step = advance(step, size, seed=seed + size, observe=both)
    assert selector.select(step, 17).tolist() == infllm(step, 17, block, count, loops.r)
    step.store.crop(-20)
    left = len(step.store)
    loops.r = [row[:left] + [0.0] * (len(row) - left) for row in loops.r]
    step = advance(step, 4, observe=both)
    assert selector.select(step, 17).tolist() == infllm(step, 17, block, count, loops.r)
    step.store.memo.clear()
    assert selector.select(step, 17).tolist() == infllm(step, 17, block, count, [])


def test_infllm_blocks_see_grouped_heads() -> None:
    """Heads 3 to 5 read key head 1; if 1, 3 and 5 did, the block would come last."""
    selector = build("selector", "infllm-blocks", block=5, representatives=5)
    step = make_step(middle=20, heads=6, groups=2, spread=0.1, distance=0)
    keys, _ = step.store.span(0, len(step.store))
    keys[1, 4 + 10 : 4 + 15] = 3.0
    loud = step.queries.clone()
    loud[:3], loud[3:] = -30.0, 9.0
    step = replace(step, queries=loud)
    assert selector.select(step, 5).tolist() == [10, 11, 12, 13, 14]


@pytest.fixture
def text() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (1, 200))


WINDOW = Window(initial=4, selected=32, local=16, chunk=16, dense=0)
PARTS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "streaming": {"selector": ("streaming", {}), "position": ("contiguous", {})},
    "infllm-blocks": {"selector": ("infllm-blocks", {"block": 8})},
    "grouped": {"position": ("grouped", {"group": 4, "distance": 32})},
}


@pytest.mark.parametrize("name", PARTS)
def test_worked_plugins_run_in_a_model(
    name: str, make_model: ModelFactory, text: torch.Tensor
) -> None:
    parts = {kind: build(kind, part, **more) for kind, (part, more) in PARTS[name].items()}
    method = replace(Method(WINDOW, position=FixedDistance(32), score=SumScore()), **parts)
    with attach(make_model("llama"), method) as attachment:
        model, cache = attachment.model, attachment.new_cache()
        out = model.generate(text, past_key_values=cache, max_new_tokens=4, do_sample=False)
        assert out.shape == (1, 204)
        logits = model(out[:, -1:], past_key_values=cache).logits
        assert logits.isfinite().all()
        cache.truncate(200)
        again = model(out[:, 200:], past_key_values=cache).logits
        assert again.isfinite().all()


def test_everything_selected_equals_stock_attention(
    make_model: ModelFactory, text: torch.Tensor
) -> None:
    """With every token selected, true distances give the host's own logits."""
    want = make_model("llama")(text).logits
    window = replace(WINDOW, selected=400)
    for selector in ("streaming", "infllm-blocks"):
        for position in (build("position", "grouped", group=1), TruePositions()):
            method = Method(window, selector=build("selector", selector), position=position)
            with attach(make_model("llama"), method) as attachment:
                found = attachment.model(text, past_key_values=attachment.new_cache()).logits
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="session")
def ruff() -> list[str]:
    if subprocess.run([sys.executable, "-m", "ruff", "--version"], capture_output=True).returncode:
        pytest.skip("ruff is not installed")
    return [sys.executable, "-m", "ruff"]


@pytest.mark.parametrize("name", ["my-selector", "a", "x2_y-z", "None", "n" * 32])
def test_template_conforms_and_passes_ruff(name: str, tmp_path: Path, ruff: list[str]) -> None:
    path = write_template(name, tmp_path)
    assert path.read_text() == template(name)
    assert path.stem == name.replace("-", "_")
    assert complaints(path) == []
    assert registry.origin("selector", name) == str(path.resolve())
    config = str(PLUGINS.parent / "pyproject.toml")
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([*ruff, *command, "--config", config, str(path)], capture_output=True)
        assert done.returncode == 0, done.stdout.decode()


@pytest.mark.parametrize(
    "name", ["", "2nd", "-x", "a b", "a/b", "../a", "a.py", 'a"', "é", "a\n", "n" * 33]
)
def test_template_refuses_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="cannot name a method"):
        write_template(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_template_refuses_what_is_there(tmp_path: Path) -> None:
    path = write_template("mine", tmp_path)
    path.write_text("kept")
    with pytest.raises(PluginError, match="exists already"):
        write_template("mine", tmp_path)
    assert path.read_text() == "kept"
    with pytest.raises(PluginError, match="a selector 'topk' already"):
        template("topk")
    with pytest.raises(PluginError, match="cannot write"):
        write_template("mine", tmp_path / "no" / "folder")
