"""Encodings of the baselines against loops, and against transformers' frequencies and models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import reference
import torch
from conftest import ModelFactory, build_rope
from stock_attention import LENGTH, SCALED, close, tokens
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from esa_cli.attention import kernels as clipped
from esa_cli.attention.layer import LayerMemory, SelectiveAttention
from esa_cli.attention.method import Method
from esa_cli.attention.parts import PositionEncoding
from esa_cli.attention.positions import TruePositions
from esa_cli.attention.window import QueryState, Window
from esa_cli.errors import PresetError
from esa_cli.methods import registry
from esa_cli.methods.full_attention import (
    AllTokensSelector,
    DynamicNtkPositions,
    InterpolatedPositions,
    NtkPositions,
    ReRopePositions,
    YarnPositions,
)
from esa_cli.methods.infllm import InfLLMPositions
from esa_cli.methods.streaming import LMInfinitePositions
from esa_cli.models.attachment.attach import attach
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage.memory_store import MemoryKVStore

HEADS, GROUPS, DIM, COUNT, SCALE = 6, 2, 8, 38, 0.4
TRAINED = 32
THETA = 10_000.0


# One layer in loops: apart(i, j) is how far key j stands before query i, None where i does not
# see j; weight(i) is what query i is multiplied by.

Apart = Callable[[int, int], int | None]


def attended(
    method: Method, pieces: tuple[int, ...], apart: Apart, weight: Callable[[int], float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention (H, COUNT, D) fed up to each of `pieces` in turn, and the same in loops."""
    q, k, v = (torch.randn(n, COUNT, DIM) * 1.5 for n in (HEADS, GROUPS, GROUPS))
    memory = LayerMemory(0, MemoryKVStore(GROUPS, DIM, torch.float32, torch.device("cpu")))
    attention, got, at = SelectiveAttention(method, build_rope(DIM), SCALE), [], 0
    for upto in pieces:
        memory.store.append(k[:, at:upto], v[:, at:upto])
        got.append(attention(memory, q[:, at:upto], QueryState()))
        at = upto
    want: list[Any] = [[] for _ in range(HEADS)]
    queries, keys, values = (reference.plain(x) for x in (q, k, v))
    for h, head in enumerate(queries):
        group = reference.group_of(h, HEADS, GROUPS)
        for i, query in enumerate(head):
            logits, seen = [], []
            for j in range(i + 1):
                distance = apart(i, j)
                if distance is not None:
                    turned = reference.rotate(query, distance)
                    logits.append(SCALE * weight(i) * reference.dot(turned, keys[group][j]))
                    seen.append(values[group][j])
            want[h].append(reference.softmax_over(logits, seen, DIM)[0])
    return torch.cat(got, dim=1), torch.tensor(want)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want.to(got), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("pieces", [(COUNT,), (20, *range(21, COUNT + 1)), (13, 14, 30, COUNT)])
@pytest.mark.parametrize("chunk", [1, 5, 1000])
@pytest.mark.parametrize(
    ("w", "trained", "dense"),
    [(6, 0, 0), (6, 0, 1000), (6, 16, 0), (6, 16, 1000), (1, 16, 0), (1000, 0, 1000)],
)
def test_rerope_is_attention_at_clipped_distances(
    w: int,
    trained: int,
    dense: int,
    chunk: int,
    pieces: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Near tokens alone, or far ones where L holds at least w tokens."""
    monkeypatch.setattr(clipped, "AT_ONCE", 16)
    window = Window(initial=3, selected=1000, local=7, chunk=chunk, dense=dense)
    got, want = attended(
        Method(window=window, position=ReRopePositions(w, trained)),
        pieces,
        lambda i, j: min(i - j, w),
        lambda i: max(1.0, math.log(i + 1) / math.log(trained)) if trained else 1.0,
    )
    same(got, want)


FIXED: dict[str, tuple[PositionEncoding, Callable[[int, int], int]]] = {
    "infllm": (InfLLMPositions(77), lambda far, j: 5 - 1),
    "lm-infinite": (LMInfinitePositions(77), lambda far, j: 5),
}
"""The encoding, and the distance at L = 5 of far token j, the far tokens being 0 .. far - 1."""


@pytest.mark.parametrize("decoded", [0, 6])
@pytest.mark.parametrize("selected", [0, 1000])
@pytest.mark.parametrize("chunk", [1, 5, 7])
@pytest.mark.parametrize("name", FIXED)
def test_far_tokens_stand_where_they_are_said_to(
    name: str, chunk: int, selected: int, decoded: int
) -> None:
    encoding, distance = FIXED[name]
    read = COUNT - decoded

    def apart(i: int, j: int) -> int | None:
        # The short chunk comes first, so borders are counted from the end of what is read at once.
        start = i if i >= read else max(0, read - chunk * math.ceil((read - i) / chunk))
        near = start - 5 if start > 9 else 0
        far = near if selected else min(4, near)
        if j >= near:
            return i - j
        return distance(far, j) if j < far else None

    window = Window(initial=4, selected=selected, local=5, chunk=chunk, dense=9)
    pieces = tuple(range(read, COUNT + 1))
    got, want = attended(Method(window=window, position=encoding), pieces, apart, lambda i: 1.0)
    same(got, want)


# Frequencies.


def plain_rates(dim: int, theta: float) -> torch.Tensor:
    return build_rope(
        dim, rope_parameters={"rope_type": "default", "rope_theta": theta}
    ).get_inverse_frequencies()[0]


def their_rates(
    kind: str, dim: int, theta: float, trained: int, length: int | None = None, **rope: Any
) -> tuple[torch.Tensor, float]:
    """What transformers computes."""
    if kind == "yarn":
        rope["original_max_position_embeddings"] = trained
    config = LlamaConfig(
        hidden_size=dim,
        num_attention_heads=1,
        head_dim=dim,
        max_position_embeddings=trained,
        rope_parameters={"rope_type": kind, "rope_theta": theta, **rope},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)


def equal_rates(got: tuple[torch.Tensor, float], want: tuple[torch.Tensor, float]) -> None:
    assert got[0].dtype == torch.float32
    torch.testing.assert_close(got[0], want[0], rtol=1e-6, atol=0)
    assert got[1] == pytest.approx(want[1], rel=1e-12)


DIMS = [4, 64, 80, 128]
THETAS = [100.0, 10_000.0, 5_000_000.0]
FACTORS = [1.0, 1.5, 32.0]


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("dim", DIMS)
class TestFrequenciesAreThoseOfTransformers:
    def test_interpolation(self, dim: int, theta: float, factor: float) -> None:
        got = InterpolatedPositions(factor=factor).frequencies(plain_rates(dim, theta), 1.0, 100)
        equal_rates(got, their_rates("linear", dim, theta, 2048, factor=factor))

    def test_ntk(self, dim: int, theta: float, factor: float) -> None:
        """A model that was made with the larger base; and the dynamic form with factor 1, at the
        length where its stretch is s."""
        got = NtkPositions(factor=factor).frequencies(plain_rates(dim, theta), 1.0, 100)
        larger = theta * factor ** (dim / (dim - 2))
        equal_rates(got, (plain_rates(dim, larger), 1.0))
        length = round(2048 * factor)
        equal_rates(got, their_rates("dynamic", dim, theta, 2048, length, factor=1.0))

    def test_ntk_dynamic(self, dim: int, theta: float, factor: float) -> None:
        inverse, encoding = (
            plain_rates(dim, theta),
            DynamicNtkPositions(factor=factor, trained=2048),
        )
        for length in (1, 2047, 2048, 2049, 5000, 262_144):
            got = encoding.frequencies(inverse, 1.0, length)
            equal_rates(got, their_rates("dynamic", dim, theta, 2048, length, factor=factor))
            assert torch.equal(got[0], inverse) == (length <= 2048)

    @pytest.mark.parametrize("beta", [{}, {"beta_fast": 8.0, "beta_slow": 2.0}], ids=str)
    def test_yarn(self, dim: int, theta: float, factor: float, beta: dict[str, float]) -> None:
        """Also where the ramp's bounds meet, or are the wrong way round."""
        for trained in (3, 7, 32, 2048, 8192, 32_768):
            encoding = YarnPositions(factor=factor, trained=trained, **beta)
            got = encoding.frequencies(plain_rates(dim, theta), 1.0, 100)
            equal_rates(got, their_rates("yarn", dim, theta, trained, factor=factor, **beta))


@pytest.mark.parametrize(
    "encoding",
    [NtkPositions(), DynamicNtkPositions(), YarnPositions()],
    ids=lambda x: type(x).__name__,
)
@pytest.mark.parametrize("kind", SCALED)
def test_stretched_hosts_are_refused(kind: str, encoding: Any) -> None:
    inverse, factor = build_rope(64, rope_parameters=SCALED[kind]).get_inverse_frequencies()
    with pytest.raises(PresetError, match="must be a series"):
        encoding.frequencies(inverse, factor, 1)


# Whole models: one made with the scaling and stock attention, one without it and ours attached.


def everything(position: PositionEncoding, chunk: int, dense: int | None) -> Method:
    window = Window(initial=5, selected=3, local=11, chunk=chunk, dense=dense)
    return Method(window=window, selector=AllTokensSelector(), position=position)


STATIC: dict[str, tuple[PositionEncoding, dict[str, Any]]] = {
    "yarn": (YarnPositions(factor=4.0, trained=TRAINED), SCALED["yarn"]),
    "linear": (InterpolatedPositions(factor=4.0), SCALED["linear"]),
    "ntk": (
        NtkPositions(factor=4.0),
        {"rope_type": "default", "rope_theta": THETA * 4 ** (DIM / (DIM - 2))},
    ),
}


@pytest.mark.parametrize("dense", [None, 0])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("kind", STATIC)
def test_a_plain_model_with_the_encoding_is_a_scaled_model(
    make_model: ModelFactory, kind: str, chunk: int, dense: int | None
) -> None:
    encoding, rope = STATIC[kind]
    plain, ids = make_model("llama"), tokens()
    want = make_model("llama", rope_parameters=rope)(ids).logits
    assert not torch.allclose(plain(ids).logits, want, atol=1e-2)
    with attach(plain, everything(encoding, chunk, dense)) as attached:
        close(plain(ids, past_key_values=attached.new_cache()).logits, want)


DYNAMIC = {"rope_type": "dynamic", "rope_theta": THETA, "factor": 3.0}


@pytest.mark.parametrize("dense", [1000, 0])
@pytest.mark.parametrize("chunk", [1, 7])
def test_dynamic_ntk_in_chunks_is_that_of_each_chunks_end(
    make_model: ModelFactory, chunk: int, dense: int
) -> None:
    """In a model of one layer a chunk's logits are those of a call that ends with it."""
    config = {"num_hidden_layers": 1, "max_position_embeddings": 48}
    plain, ids = make_model("llama", **config), tokens()
    theirs = make_model("llama", rope_parameters=DYNAMIC, **config)
    encoding = DynamicNtkPositions(factor=3.0, trained=48)
    with attach(plain, everything(encoding, chunk, dense)) as attached:
        cache = attached.new_cache()
        read = plain(ids[:, :63], past_key_values=cache).logits
        for stop in range(chunk, 64, chunk):
            close(read[:, stop - chunk : stop], theirs(ids[:, :stop]).logits[:, -chunk:])
        for stop in range(64, LENGTH + 1):
            answer = plain(ids[:, stop - 1 : stop], past_key_values=cache).logits
            close(answer, theirs(ids[:, :stop]).logits[:, -1:])


# Recipes.

PRESET = Preset(name="any", model="any", context=8192)


@pytest.mark.parametrize("name", ["full", "origin", "interpolation", "ntk", "ntk-dynamic", "yarn"])
@pytest.mark.parametrize(
    ("length", "factor"),
    [(0, 1), (100, 1), (7936, 1), (7937, 2), (8192, 2), (32_512, 4), (32_513, 5)],
)
def test_full_attention_recipes(name: str, length: int, factor: float) -> None:
    made = resolved_preset.replace_method(name, PRESET, length)
    assert registry.find_method(name).full
    assert made.selector == {"name": "full"}
    assert not registry.build_method_part("score", made.score).features, "nothing is reduced"
    assert (made.reading, made.window) == ("select", PRESET.window)
    encoding = registry.build_method_part("position", made.position)
    needs_length = resolved_preset.method_needs_document_length(name, PRESET)
    assert needs_length == (name not in ("full", "origin"))
    if name == "origin":
        assert encoding == TruePositions()
        return
    if name == "full":
        assert made.position == PRESET.position
        return
    assert made.position["name"] == name
    assert encoding.factor == factor
    assert getattr(encoding, "trained", 8192) == 8192
    assert ("trained" in made.position) == (name in ("yarn", "ntk-dynamic"))
