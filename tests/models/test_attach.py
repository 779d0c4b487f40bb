"""Attached models against the same models with stock attention, and what `attach` refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import ModelFactory
from stock_attention import LENGTH, close, everything, in_pieces, tokens
from transformers import DynamicCache, PreTrainedModel

from esa_cli.attention.method import Method
from esa_cli.attention.positions import Contiguous, FixedDistance, TruePositions
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.attention.window import Window
from esa_cli.errors import ModelError, UsageError
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import Attachment, attach

SCALED = {
    "llama3": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
}  # fmt: skip


def selective(chunk: int = 8, **options: Any) -> Method:
    window = Window(initial=4, selected=12, local=8, chunk=chunk)
    return Method(window=window, **{"position": FixedDistance(40), **options})


def test_the_difference_to_stock_is_rounding(make_model: ModelFactory) -> None:
    """In float64 it shrinks to what the float32 log-sum-exp of the fusion leaves."""
    model, ids = make_model("qwen3").double(), tokens()
    want = model(ids).logits
    with attach(model, everything(7, 0)) as attached:
        close(in_pieces(model, attached.new_cache(), ids, 23), want, 3e-6)
        close(in_pieces(model, attached.new_cache(), ids, 1), want, 1e-12)


@pytest.mark.parametrize(("kind", "chunk"), [("llama3", 1), ("yarn", 7), ("linear", 1000)])
def test_scaled_rope(make_model: ModelFactory, kind: str, chunk: int) -> None:
    model, ids = make_model("llama", rope_parameters=SCALED[kind]), tokens()
    assert not torch.allclose(make_model("llama")(ids).logits, model(ids).logits, atol=1e-2)
    want = model(ids).logits
    for dense in (None, 0):
        with attach(model, everything(chunk, dense)) as attached:
            close(model(ids, past_key_values=attached.new_cache()).logits, want)


def test_bfloat16_stays_near_stock(make_model: ModelFactory) -> None:
    model, ids = make_model("llama").bfloat16(), tokens()
    want = model(ids).logits.float()
    with attach(model, everything(7, 0)) as attached:
        logits = model(ids, past_key_values=attached.new_cache()).logits
    assert logits.dtype == torch.bfloat16
    spread = want.std().item()
    assert (logits.float() - want).abs().mean().item() < 0.05 * spread


@pytest.mark.parametrize("position", [FixedDistance(40), Contiguous(40), TruePositions(40)])
def test_a_small_budget_is_not_stock_attention(
    make_model: ModelFactory, position: FixedDistance | Contiguous | TruePositions
) -> None:
    """That the tests above would notice: the same comparison fails once tokens are left out."""
    model, ids = make_model("llama"), tokens()
    want = model(ids).logits
    with attach(model, selective(position=position)) as attached:
        got = model(ids, past_key_values=attached.new_cache()).logits
    assert torch.isfinite(got).all()
    # 70 tokens in chunks of 8, the first of 6. The budget is 24, so the chunk that starts at 22 is
    # the last one to which everything is attended.
    close(got[:, :30], want[:, :30])
    assert (got[:, 40:] - want[:, 40:]).abs().max() > 0.1


def test_detach_restores_everything(make_model: ModelFactory) -> None:
    model, ids = make_model("llama"), tokens()
    want, rotary = model(ids).logits, model.base_model.rotary_emb
    attached = attach(model, selective())
    assert model.base_model.rotary_emb is not rotary
    assert model.config._attn_implementation == "esa"
    model(ids, past_key_values=attached.new_cache())
    attached.detach()
    assert model.base_model.rotary_emb is rotary
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(ids).logits, want)
    attached.detach()
    assert torch.equal(model(ids).logits, want)


def test_detach_after_an_exception(make_model: ModelFactory) -> None:
    model, ids = make_model("llama"), tokens()
    want, rotary = model(ids).logits, model.base_model.rotary_emb

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    attached = attach(model, selective())
    hook = model.base_model.layers[1].self_attn.q_proj.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt), attached:
        model(ids, past_key_values=attached.new_cache())
    hook.remove()
    assert model.base_model.rotary_emb is rotary
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(ids).logits, want)


def test_an_interrupted_forward_can_be_taken_back(make_model: ModelFactory) -> None:
    """It leaves the first layer longer than the second; `truncate` makes them even again."""
    model, ids = make_model("llama"), tokens()

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    with attach(model, selective()) as attached:
        cache = attached.new_cache()
        model(ids[:, :50], past_key_values=cache)
        want = model(ids[:, 50:], past_key_values=cache).logits
        cache.truncate(50)
        hook = model.base_model.layers[1].self_attn.q_proj.register_forward_hook(stop)
        with pytest.raises(KeyboardInterrupt):
            model(ids[:, 50:], past_key_values=cache)
        hook.remove()
        assert [layer.get_seq_length() for layer in cache.layers] == [LENGTH, 50]
        with pytest.raises(UsageError, match="last forward call was interrupted"):
            model(ids[:, :1], past_key_values=cache)
        cache.truncate(50)
        close(model(ids[:, 50:], past_key_values=cache).logits, want)


def test_detaching_twice_leaves_the_next_attachment_alone(make_model: ModelFactory) -> None:
    model, ids = make_model("llama"), tokens()
    first = attach(model, selective())
    want = model(ids, past_key_values=first.new_cache()).logits
    first.detach()
    with attach(model, selective()) as second:
        first.detach()
        assert model.config._attn_implementation == "esa"
        assert torch.equal(model(ids, past_key_values=second.new_cache()).logits, want)


def test_a_failed_attach_leaves_the_model_as_it_was(make_model: ModelFactory) -> None:
    model, ids = make_model("llama"), tokens()
    with attach(model, selective()) as attached:
        with pytest.raises(ModelError, match="attached already"):
            attach(model, selective())
        model(ids, past_key_values=attached.new_cache())
    assert model.config._attn_implementation == "sdpa"


def alone(model: PreTrainedModel, method: Method, pieces: list[torch.Tensor]) -> list[torch.Tensor]:
    with attach(model, method) as attached:
        cache = attached.new_cache()
        return [model(piece, past_key_values=cache).logits for piece in pieces]


def test_two_models_at_once(make_model: ModelFactory) -> None:
    """Other methods, other families, calls by turns, and one detached before the other."""
    first, second = make_model("llama"), make_model("qwen3", seed=1)
    methods = selective(), selective(3, position=Contiguous(20), score=VoteScore())
    pieces = [*tokens(60).split(17, dim=1)]
    wanted = [alone(first, methods[0], pieces), alone(second, methods[1], pieces)]
    one, two = attach(first, methods[0]), attach(second, methods[1])
    caches = one.new_cache(), two.new_cache()
    for i, piece in enumerate(pieces[:-1]):
        assert torch.equal(first(piece, past_key_values=caches[0]).logits, wanted[0][i])
        assert torch.equal(second(piece, past_key_values=caches[1]).logits, wanted[1][i])
    one.detach()
    assert torch.equal(second(pieces[-1], past_key_values=caches[1]).logits, wanted[1][-1])
    two.detach()


def test_two_documents_of_one_model(make_model: ModelFactory) -> None:
    model = make_model("llama")
    texts = tokens(60, seed=1), tokens(60, seed=2)
    wanted = [alone(model, selective(), [*text.split(20, dim=1)]) for text in texts]
    with attach(model, selective()) as attached:
        caches = attached.new_cache(), attached.new_cache()
        for i in range(3):
            for text, cache, want in zip(texts, caches, wanted, strict=True):
                piece = text[:, 20 * i : 20 * i + 20]
                assert torch.equal(model(piece, past_key_values=cache).logits, want[i])


def test_reading_then_asking(make_model: ModelFactory) -> None:
    """In phase PREFILL no chunk selects, in QUESTION all do, in AUTO the last."""
    model, ids = make_model("llama"), tokens()
    logits = {}
    for phase in Phase:
        with attach(model, selective(reading="local")) as attached:
            cache = attached.new_cache()
            cache.begin(QueryState(phase))
            logits[phase.value] = model(ids, past_key_values=cache).logits
    # The last chunk of 8 tokens is the only one that AUTO does otherwise than PREFILL.
    assert torch.equal(logits["auto"][:, :-8], logits["prefill"][:, :-8])
    assert not torch.allclose(logits["auto"][:, -8:], logits["prefill"][:, -8:], atol=1e-3)
    assert not torch.allclose(logits["question"], logits["auto"], atol=1e-3)


def test_project_now_is_project_later(make_model: ModelFactory) -> None:
    model, ids = make_model("llama"), tokens()
    logits = []
    for now in (False, True):
        with attach(model, selective(reading="local")) as attached:
            cache = attached.new_cache()
            cache.begin(QueryState(Phase.PREFILL))
            model(ids[:, :50], past_key_values=cache)
            if now:
                cache.project()
                assert [cache.memory(i).store.reduced for i in range(2)] == [50, 50]
            cache.begin(QueryState(Phase.QUESTION))
            logits.append(model(ids[:, 50:], past_key_values=cache).logits)
    torch.testing.assert_close(*logits)


def test_reset_forgets(make_model: ModelFactory) -> None:
    model, ids = make_model("llama"), tokens()
    with attach(model, selective()) as attached:
        cache = attached.new_cache()
        assert cache.nbytes == 0
        want = model(ids, past_key_values=cache).logits
        # Two layers of keys and values, two heads of 8 floats each; and some reduced keys.
        assert cache.nbytes > 2 * LENGTH * 2 * 2 * 8 * 4
        cache.reset()
        assert (cache.get_seq_length(), cache.nbytes) == (0, 0)
        assert torch.equal(model(ids, past_key_values=cache).logits, want)


def test_outside_no_grad(make_model: ModelFactory) -> None:
    """A plain forward call, as people write it, must neither fail nor keep a graph."""
    model, ids = make_model("llama"), tokens()
    with attach(model, selective()) as attached:
        want = model(ids, past_key_values=attached.new_cache()).logits
        with torch.enable_grad():
            cache = attached.new_cache()
            got = model(ids, past_key_values=cache).logits
        close(got.detach(), want)
        assert not cache.memory(0).store.span(0, 1)[0].requires_grad


def test_inference_mode_and_no_grad_in_turn(make_model: ModelFactory) -> None:
    """`generate` uses no_grad; a document may have been read in inference mode."""
    model, ids = make_model("llama"), tokens()
    with attach(model, selective()) as attached:
        want = model(ids, past_key_values=attached.new_cache()).logits
        cache = attached.new_cache()
        with torch.inference_mode():
            model(ids[:, :50], past_key_values=cache)
        got = model(ids[:, 50:], past_key_values=cache).logits
        assert got.shape == want[:, 50:].shape


@pytest.fixture
def attached(make_model: ModelFactory) -> Iterator[Attachment]:
    with attach(make_model("llama"), selective()) as found:
        yield found


def test_other_caches_and_none_are_refused(attached: Attachment) -> None:
    stock = DynamicCache(config=attached.model.config)
    for options in ({"use_cache": False}, {}, {"past_key_values": stock}):
        with pytest.raises(UsageError, match="needs its own cache"):
            attached.model(tokens(), **options)


def test_cache_of_another_model_is_named_and_left_alone(
    make_model: ModelFactory, attached: Attachment
) -> None:
    """The message for this case is in the code; the foreign cache must not swallow the tokens."""
    with attach(make_model("llama", seed=5), selective()) as other:
        foreign = other.new_cache()
        with pytest.raises(UsageError, match="made for another model"):
            attached.model(tokens(), past_key_values=foreign)
        assert [layer.get_seq_length() for layer in foreign.layers] == [0, 0]
        assert other.forward_pass.cache is None


def test_cache_from_before_detach(make_model: ModelFactory) -> None:
    """It hands on one token only, and stock attention would believe it."""
    model = make_model("llama")
    with attach(model, selective()) as first:
        cache = first.new_cache()
        model(tokens(20), past_key_values=cache)
    with pytest.raises(UsageError):
        model(tokens(1), past_key_values=cache)
    with attach(model, selective()), pytest.raises(UsageError):
        model(tokens(1), past_key_values=cache)


def test_batch_of_two(attached: Attachment) -> None:
    cache = attached.new_cache()
    with pytest.raises(UsageError, match="not a batch of 2"):
        attached.model(tokens().repeat(2, 1), past_key_values=cache)
    assert cache.get_seq_length() == 0


def test_padding(attached: Attachment) -> None:
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    mask[:, 3] = 0
    cache = attached.new_cache()
    with pytest.raises(UsageError, match="takes no padding"):
        attached.model(tokens(), attention_mask=mask, past_key_values=cache)
    assert cache.get_seq_length() == 0


def test_ready_made_mask(attached: Attachment) -> None:
    """A four-dimensional mask goes past the mask function; it must not be dropped in silence."""
    mask = torch.ones(1, 1, LENGTH, LENGTH).tril().bool()
    mask[..., 3] = False
    with pytest.raises(UsageError):
        attached.model(tokens(), attention_mask=mask, past_key_values=attached.new_cache())


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {"sliding_window": 16}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}),
        ("llama", {"rope_parameters": DYNAMIC}),
        ("llama", {"rope_parameters": {**DYNAMIC, "alpha": 50.0}}),
    ],
)
def test_unsupported_attention(
    make_model: ModelFactory, family: str, changes: dict[str, Any]
) -> None:
    model, ids = make_model(family, **changes), tokens()
    want = model(ids).logits
    with pytest.raises(ModelError):
        attach(model, selective())
    assert torch.equal(model(ids).logits, want)


def test_windows_that_no_layer_uses_are_supported(make_model: ModelFactory) -> None:
    changes = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 28}
    model, ids = make_model("qwen2", **changes), tokens()
    want = model(ids).logits
    with attach(model, everything(7, 0)) as attached:
        close(model(ids, past_key_values=attached.new_cache()).logits, want)


def test_suspended_is_the_bare_model_and_the_rows_stay(make_model: ModelFactory) -> None:
    model, ids, short = make_model("qwen2"), tokens(), tokens(20, seed=8)
    bare = model(short).logits
    with attach(model, selective()) as attachment:
        other, cache = attachment.new_cache(), attachment.new_cache()
        model(ids[:, :50], past_key_values=other)
        want = model(ids[:, 50:], past_key_values=other).logits
        model(ids[:, :50], past_key_values=cache)
        with attachment.suspended():
            assert torch.equal(model(short).logits, bare)
            stock = model(short[:, :12], past_key_values=DynamicCache()).past_key_values
            last = model(short[:, 12:], past_key_values=stock).logits
            torch.testing.assert_close(last, bare[:, 12:], atol=1e-4, rtol=1e-4)
        assert cache.get_seq_length() == 50
        assert torch.equal(model(ids[:, 50:], past_key_values=cache).logits, want)
    assert torch.equal(model(short).logits, bare)


def test_suspended_ends_with_an_exception_and_may_be_nested(make_model: ModelFactory) -> None:
    model, ids = make_model("llama"), tokens(20)
    bare = model(ids).logits
    with attach(model, selective()) as attachment:
        want = model(ids, past_key_values=attachment.new_cache()).logits
        with pytest.raises(KeyboardInterrupt), attachment.suspended():
            raise KeyboardInterrupt
        assert torch.equal(model(ids, past_key_values=attachment.new_cache()).logits, want)
        with attachment.suspended(), attachment.suspended():
            assert torch.equal(model(ids).logits, bare)
        assert torch.equal(model(ids, past_key_values=attachment.new_cache()).logits, want)
    with attachment.suspended():
        assert torch.equal(model(ids).logits, bare)
    assert torch.equal(model(ids).logits, bare)
