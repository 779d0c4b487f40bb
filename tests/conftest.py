"""Tiny random models and a torch that behaves the same in every run.

What takes seconds to import is imported in functions: the process that only hands tests to others
loads this file too, and needs none of it.
"""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from esa_cli.attention.parts import Score
    from esa_cli.attention.rope import Rope
    from esa_cli.attention.step import Projection, Step
    from esa_cli.models.loading.load import LoadedModel

if not any(Path("/dev", name).exists() for name in ("nvidiactl", "dxg")):
    # Before anything imports Triton: its interpreter then runs kernels on the processor.
    os.environ.setdefault("TRITON_INTERPRET", "1")

os.environ["ESA_LOG"] = "off"  # no test writes the log of the person who runs it
pytest_plugins = ["cli_fixtures"]
VOCABULARY = 61
SEED = 1234
LIBRARIES = itertools.count()

ModelFactory = Callable[..., "PreTrainedModel"]

FAMILIES = yaml.safe_load(Path(__file__).with_name("support").joinpath("families.yaml").read_text())
BASES: dict[str, Any] = FAMILIES.pop("bases")
PARTIAL, HYBRID, DELTA = (BASES[name] for name in ("partial", "hybrid", "delta"))
KINDS: dict[str, tuple[str, dict[str, Any]]] = {name: tuple(row) for name, row in FAMILIES.items()}
"""Class of transformers and settings of tiny models, by the name of the family."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected and imported stays to the end: looking through it for garbage again and
    again would take a third of the time of collecting, and later a tenth of the tests'."""
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries whose objects are still there when Python ends say that they leaked."""
    gc.unfreeze()


def copy_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    from esa_cli.methods import plugin_loading
    from esa_cli.system import registry

    assert plugin_loading
    for one in registry._REGISTRIES:
        monkeypatch.setattr(one, "data", dict(one.data))
        monkeypatch.setattr(one, "_definitions", dict(one._definitions))


def seed_everything(seed: int) -> None:
    """As `torch.manual_seed`, which reads the files of its whole call stack where there is no GPU:
    milliseconds, thousands of times."""
    import torch

    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def build_model(kind: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model of a few thousand parameters; larger weights than usual, so that attention is
    far from uniform and a wrong position or a missing key shows."""
    import transformers

    family, shape = KINDS[kind]
    options: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "attn_implementation": "sdpa",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        **copy.deepcopy(shape),
        **changes,
    }
    config = getattr(transformers, f"{family}Config")(**options)
    seed_everything(seed)
    model: PreTrainedModel = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(
        config
    )
    return model.float().eval()


@pytest.fixture(scope="session")
def make_model() -> ModelFactory:
    """`make_model(kind, seed=0, **config)`: a new model each time, never shared between tests."""
    return build_model


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    """The tiny random model with its tokenizer, and a home of its own for the whole module."""
    from esa_cli import models

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESA_HOME", str(tmp_path_factory.mktemp("home")))
        yield models.load("random:llama", device="cpu", dtype="float32")


FSYNC = os.fsync


@pytest.fixture(autouse=True)
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that kill processes wait for the disk as users' processes do: their kills are to fall
    among the writes."""
    if request.node.get_closest_marker("process"):
        monkeypatch.setattr(os, "fsync", FSYNC)


@pytest.fixture(scope="session", autouse=True)
def once() -> Iterator[None]:
    """One thread; and what a program does once when it starts is not done for every test: making
    the commands, parsing the presets, and a while of arithmetic to see how fast the machine is.
    Nothing waits for the disk: no test cuts the power."""
    import torch

    from esa_cli import __main__ as app
    from esa_cli.qa.planning import plan
    from esa_cli.qa.presets import preset_files
    from esa_cli.storage.library import catalogue as catalogue_file

    torch.set_num_threads(1)
    parsed = functools.cache(preset_files.load_yaml)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "make_click_command", functools.cache(app.make_click_command))
        patch.setattr(preset_files, "load_yaml", lambda text: copy.deepcopy(parsed(text)))
        patch.setattr(plan, "SECONDS", 0.001)
        patch.setattr(os, "fsync", os.fstat)
        tables = "PRAGMA synchronous = OFF;" + catalogue_file._TABLES
        patch.setattr(catalogue_file, "_TABLES", tables)
        yield


@pytest.fixture(autouse=True)
def own_library(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands keep what a preset's finder reads: a library of the test's own, made when used."""
    root = tmp_path_factory.getbasetemp() / f"library-{next(LIBRARIES)}"
    monkeypatch.setenv("ESA_LIBRARY", str(root))


@pytest.fixture(autouse=True)
def ctrl_c() -> None:
    """A shell's background jobs start with SIGINT ignored, and esa ignores it while it ends after
    one; tests of Ctrl-C need it heeded."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """A fixed seed, no gradients, and NaN in memory nobody wrote to."""
    import torch

    seed_everything(SEED)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    with torch.no_grad():
        yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight tokens: a random model goes on to the last one that it is allowed, of hundreds."""
    from esa_cli.qa.answering.reply import Reply
    from esa_cli.qa.answering.session import Session

    ask = Session.ask

    def short(self: Session, *given: Any, max_new_tokens: int = 8, **options: Any) -> Reply:
        return ask(self, *given, max_new_tokens=min(max_new_tokens, 8), **options)

    monkeypatch.setattr(Session, "ask", short)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row segments of 8, 8, 16, 32, 32, ... so that a few dozen tokens cross several borders."""
    monkeypatch.setattr("esa_cli.storage.memory_store.FIRST_SEGMENT", 8)
    monkeypatch.setattr("esa_cli.storage.memory_store.LAST_SEGMENT", 32)


def build_rope(dim: int, **changes: Any) -> Rope:
    """The host's rotary module for one head dimension; theta 10000 unless told otherwise."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from esa_cli.attention.rope import Rope

    config = LlamaConfig(
        hidden_size=dim, num_attention_heads=1, head_dim=dim, max_position_embeddings=256, **changes
    )
    return Rope(LlamaRotaryEmbedding(config))


def build_step(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    low: int = 0,
    after: int = 0,
    distance: int = 29,
    score: Score | None = None,
    projection: Projection | None = None,
    rope: Rope | None = None,
) -> Step:
    """A step of queries q (H, C, D) over the middle keys k (G, M, D).

    Args:
        low: random tokens put before the middle ones. after: and after them.
    """

    import torch

    from esa_cli.attention.selection import LogitSum
    from esa_cli.attention.step import Step
    from esa_cli.storage.memory_store import MemoryKVStore

    groups, middle, dim = k.shape
    store = MemoryKVStore(groups, dim, k.dtype, k.device)
    before, after_keys = torch.randn(groups, low + after, dim, dtype=k.dtype).split([low, after], 1)
    keys = torch.cat((before, k, after_keys), dim=1)
    store.append(keys, torch.randn_like(keys))
    if projection is not None:
        flat = keys.transpose(0, 1).reshape(len(store), groups * dim)
        store.append_reduced_keys(projection.keys(flat))
    return Step(
        layer=0,
        start=low + middle + after,
        queries=q,
        store=store,
        low=low,
        high=low + middle,
        local=after,
        distance=distance,
        scale=0.3,
        rope=rope or build_rope(dim),
        score=score or LogitSum(),
        projection=projection,
    )
