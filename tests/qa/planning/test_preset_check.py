"""`esa presets check`: presets against the sizes of their models, and the memory they state."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from esa_cli.errors import PresetError
from esa_cli.models import parse_reference
from esa_cli.models.files.random_model import write_weights
from esa_cli.qa.finding.load_encoder import index_sizes
from esa_cli.qa.planning.model_shape import shape_of
from esa_cli.qa.planning.model_shapes import config_without_model, known_shapes
from esa_cli.qa.planning.plan import Planner
from esa_cli.qa.planning.preset_check import LENGTHS, PresetMemory, check_sizes
from esa_cli.qa.presets import preset, preset_files
from esa_cli.qa.presets.resolved_preset import ResolvedPreset, resolve
from esa_cli.system.machine import size_text

SHIPPED = sorted(preset_files.shipped())
RUN = {"smollm2-135m", "tiny-random"}
"""Presets whose models were run where this is developed."""
DOCS = Path(__file__).parents[3] / "docs" / "presets.md"


@pytest.fixture(autouse=True)
def nothing_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(preset_files, "user_dir", lambda: tmp_path / "user")


def shape(resolved: ResolvedPreset) -> dict[str, Any]:
    return known_shapes()[parse_reference(resolved.preset.model).name]


def checked(name: str, *overrides: str, **sizes: Any) -> PresetMemory:
    resolved = resolve(name, overrides)
    return check_sizes(resolved, {**shape(resolved), **sizes}, "the model")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_presets_hold_for_their_models_and_state_their_memory(name: str) -> None:
    path = preset_files.shipped()[name]
    memory = checked(name)
    assert f"\n# Memory in {memory.text}.\n" in path.read_text("utf-8")
    stated = re.search(r"\((?:a GPU with |GPUs with )?(\d+) GB", preset.load(name).description)
    assert stated is None or int(stated[1]) << 30 >= memory.needed("100k")
    assert stated is not None or memory.needed("1M") < 4 << 30


@pytest.mark.parametrize("name", ["smollm2-135m", "llama3-8b-paper"])
def test_memory_is_that_of_esa_plan(name: str) -> None:
    resolved = resolve(name)
    sizes = index_sizes(resolved.preset)
    planner = Planner(
        resolved, shape(resolved), dtype=torch.bfloat16, device="cpu", memory=0, index=sizes
    )
    memory = checked(name)
    for length, tokens in LENGTHS.items():
        assert memory.needed(length) == planner.plan(tokens).needed
        assert memory.stored(length) > 0
    assert memory.reads == ("rows" if sizes is None else "index")


def test_nothing_is_read_where_words_alone_find() -> None:
    words = checked("llama3.1-8b")
    assert (words.reads, words.stored("1M")) == ("nothing", 0)
    assert 0 < words.needed("1M") - words.weights < 2 << 30
    assert words.needed("100k") < words.needed("1M")


@pytest.mark.parametrize(
    ("overrides", "sizes", "words"),
    [
        ((), {"num_hidden_layers": 16}, r"score.heads .* 16 layers and 9 heads .* got \[17, 3\]"),
        ((), {"num_attention_heads": 7}, r"score.heads .* 30 layers and 7 heads .* got \[7, 7\]"),
        (("score.heads=[]",), {"num_hidden_layers": 9}, "answer.finder .* 9 layers, got 14"),
        ((), {"max_position_embeddings": 4096}, "context .* 4096 tokens that the model"),
        ((), {"model_type": "falcon"}, "model must be of a supported family"),
    ],
)
def test_what_does_not_hold_for_the_model_is_named(
    overrides: tuple[str, ...], sizes: dict[str, Any], words: str
) -> None:
    with pytest.raises(PresetError, match=words) as caught:
        checked("smollm2-135m", *overrides, **sizes)
    assert caught.value.hint


def test_sizes_come_from_the_machine_else_from_the_table(tmp_path: Path) -> None:
    assert config_without_model("org/unheard-of") is None
    assert config_without_model("Qwen/Qwen3-8B@main") == known_shapes()["Qwen/Qwen3-8B"]
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    assert config_without_model(str(folder)) == {"model_type": "llama", "hidden_size": 8}


def test_the_table_has_the_random_models_sizes(tmp_path: Path) -> None:
    write_weights(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    told = known_shapes()["random:llama"]
    assert {key: config[key] for key in told} == told


@pytest.mark.model
def test_the_table_has_the_default_models_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    from esa_cli.models import DEFAULT_MODEL, resolve
    from esa_cli.models.files.checkpoint_files import read_config

    monkeypatch.delenv("ESA_HOME")
    config = read_config(resolve(DEFAULT_MODEL))
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    told = known_shapes()[parse_reference(DEFAULT_MODEL).name]
    assert {key: config[key] for key in told} == told


def test_every_shape_is_of_a_shipped_preset() -> None:
    models = {parse_reference(preset.load(name).model).name for name in SHIPPED}
    assert models == set(known_shapes())


def billions(sizes: dict[str, Any]) -> str:
    """The weights that follow from a model's sizes, as docs/presets.md has them."""
    return f"{shape_of(sizes).weights / 1e9:.3g}"


@pytest.mark.parametrize("model", [name for name in known_shapes() if "/" in name])
def test_the_docs_say_where_sizes_come_from_and_weights_are_as_published(model: str) -> None:
    lines = DOCS.read_text("utf-8").split("## Where the sizes come from")[1].splitlines()
    [line] = [line for line in lines if line.startswith(f"| {model} |")]
    _, weights, published, sources = line.strip("| ").split(" | ")
    assert weights == billions(known_shapes()[model])
    assert sources
    places = len(published.partition(".")[2])
    # Names round as they like: 14.7 billion are 14.
    allowed = max(0.5 / 10**places, (0.01 if places else 0.05) * float(published))
    counted = shape_of(known_shapes()[model]).weights / 1e9
    assert abs(counted - float(published)) <= allowed, (counted, published)


def row(name: str) -> str:
    """The preset's row of the table in docs/presets.md."""
    chosen, memory = preset.load(name), checked(name)
    model = parse_reference(chosen.model).name
    if memory.reads == "nothing":
        needed = [size_text(memory.needed("1M"))] * 2
    else:
        needed = [size_text(memory.needed(length)) for length in LENGTHS]
    text = preset_files.shipped()[name].read_text("utf-8")
    heads = "all" if chosen.answer.source == "rows" else "none"
    if chosen.score.get("heads"):
        heads = "QRHead" if "2506.09944" in text else "`esa heads`"
    if name == "llama3.3-70b":
        heads = "QRHead, of 3.1"
    if chosen.score["name"] != "vote":
        heads = "-"
    run = "yes" if name in RUN else "no"
    cells = [f"`{name}`", model, f"{chosen.context:,}", *needed, memory.reads, heads, run]
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("name", SHIPPED)
def test_the_docs_have_each_preset(name: str) -> None:
    assert row(name) in DOCS.read_text("utf-8").splitlines()


def test_the_table_has_configurations_of_transformers() -> None:
    """Benchmarks of a GPU make random models of them, with the layers and weights of the plans."""
    from transformers import AutoConfig

    for name, sizes in known_shapes().items():
        config: Any = AutoConfig.for_model(**sizes)
        assert shape_of(config.to_dict()) == shape_of(sizes), name
