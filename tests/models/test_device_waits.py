"""How often decoding a token waits for the device, counted on a simulated one.

Nothing here runs on a GPU. Tensors of the processor and of the device that meet are an error, as
they would be there.
"""

from __future__ import annotations

import pytest
import torch
from conftest import VOCABULARY, build_model
from simulated_device import SimulatedDevice, lies_there

from esa_cli.attention.method import Method
from esa_cli.attention.positions import Contiguous, FixedDistance, TruePositions
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.attention.window import Window
from esa_cli.methods.consensus import Consensus
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import Attachment, attach
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.storage import growing_rows
from esa_cli.storage.joined_store import JoinedStore, StoreSlice
from esa_cli.storage.memory_store import MemoryStore

WINDOW = Window(initial=4, selected=12, local=8, chunk=32)
KEPT = Consensus(passage=4, share=0.5)
METHODS = {
    "paper": Method(window=WINDOW, position=FixedDistance()),
    "contiguous": Method(window=WINDOW, position=Contiguous()),
    "true": Method(window=WINDOW, position=TruePositions()),
    "consensus": Method(window=WINDOW, position=Contiguous(), selector=KEPT, score=VoteScore()),
}
WAITS = {"paper": 0, "contiguous": 0, "true": 2, "consensus": 0}
"""Of one token in one layer."""
ONCE = 1
"""Of one token, beside its layers."""


@pytest.fixture(autouse=True)
def one_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are one segment, as on a GPU."""
    monkeypatch.setattr(growing_rows, "in_one_segment", lambda device: True)


def joined(attachment: Attachment, cache: EsaCache) -> EsaCache:
    """A cache with the document of another, as a session opens it."""
    memories, found = cache.memories, attachment.new_cache()
    cache.project()
    stores = [
        JoinedStore(
            [StoreSlice(one.store, 0, len(one.store))],
            MemoryStore(one.store.heads, one.store.dim, torch.float32, attachment.model.device),
        )
        for one in memories
    ]
    found.hold(stores, [one.projection for one in memories])
    return found


def decode(kind: str, method: Method, layers: int, opened: bool = False) -> int:
    """Waits of a token of an answer, the second one."""
    model = build_model(kind, num_hidden_layers=layers)
    ids = torch.randint(1, VOCABULARY, (1, 70))
    device = SimulatedDevice()
    with attach(model, method) as attachment, torch.no_grad(), device:
        device.put(model, ids)
        cache = attachment.new_cache()
        model(ids[:, :60], past_key_values=cache, use_cache=True)
        cache = joined(attachment, cache) if opened else cache
        cache.begin(QueryState(phase=Phase.QUESTION, answer_start=68))
        model(ids[:, 60:68], past_key_values=cache, use_cache=True)
        model(ids[:, 68:69], past_key_values=cache, use_cache=True)
        before = device.waits
        model(ids[:, 69:], past_key_values=cache, use_cache=True)
    return device.waits - before


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_waits_of_a_decoded_token(name: str, opened: bool) -> None:
    two, three = (decode("llama", METHODS[name], layers, opened) for layers in (2, 3))
    assert three - two <= WAITS[name]
    assert two - 2 * (three - two) <= ONCE


@pytest.mark.parametrize("kind", ["smollm3", "gemma2", "gpt_oss", "ministral3", "phi3", "cohere"])
def test_tensors_of_other_families_meet_on_one_device(kind: str) -> None:
    decode(kind, METHODS["paper"], 2)
    assert decode(kind, METHODS["consensus"], 2) <= 2 * ONCE


def test_what_the_simulation_counts() -> None:
    x, host = torch.arange(6.0), torch.arange(6)
    with SimulatedDevice() as device:
        device.put(x)
        y = (x * 2).reshape(2, 3)
        assert lies_there(y)
        assert lies_there(torch.zeros(2, device=y.device))
        assert not lies_there(torch.zeros(2, device="cpu"))
        assert device.waits == 0
        assert int(x[3]) == 3
        assert x[x > 3].tolist() == [4.0, 5.0]
        assert (device.reads.total(), device.copies.total()) == (3, 0)
        moved = host.to(x.device)
        assert lies_there(moved)
        assert not lies_there(host)
        assert torch.equal(moved, x[[0, 1, 2, 3, 4, 5]].long())
        assert (device.reads.total(), device.copies.total()) == (4, 2)
        assert lies_there(host.to(x.device, non_blocking=True))
        assert not lies_there(x.cpu())
        assert (device.reads.total(), device.copies.total()) == (5, 2)
        with pytest.raises(RuntimeError, match="add needs tensors on one device"):
            x + host
