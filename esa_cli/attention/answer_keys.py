"""The keys that every token of an answer attends to, where they and their positions stay the same.

A selection that the question made, a document that is whole in view, and a layer's own window are
such: each token then adds one key to those of the token before, and nothing is selected or rotated
again. `models.decoding` keeps such keys in memory of fixed size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.chunking import Chunk, local_tokens
from esa_cli.attention.interfaces import Positions
from esa_cli.attention.layer import Attention
from esa_cli.attention.layer_memory import LayerMemory
from esa_cli.attention.method import Method
from esa_cli.attention.plugin_errors import far_positions, is_builtin, near_positions
from esa_cli.attention.positions import token_positions
from esa_cli.attention.query_state import QueryState
from esa_cli.attention.rope import Rope
from esa_cli.attention.sliding_window import SlidingAttention
from esa_cli.attention.temperature import Temperature
from esa_cli.attention.trace import ChunkTrace

MOST = 16384
"""Most tokens whose keys and values are copied: 2 GB with 32 layers of 8 heads of 128 dimensions in
half precision."""


class KeysChangeError(Exception):
    """The tokens of an answer attend to other keys each time, at other positions, or to too many of
    them; the message says which."""


@dataclass(frozen=True)
class AnswerKeys:
    """The keys and values that the next tokens of an answer attend to in one layer.

    Args:
        keys: (G, n, D), rotated. values: (G, n, D).
        position: to which the next token is rotated; those behind it follow, one by one.
        window: most keys that a token attends to, its own included: older ones, which come first,
            then drop out; None: all.
        rope, scale, cap: of the layer. kernel: of attention, or `auto`.
        temperature: the model's factor of queries at given positions; `near`: of the next token,
            the encoding's among near ones.
    """

    keys: Tensor
    values: Tensor
    position: float
    window: int | None
    rope: Rope
    scale: float
    cap: float
    kernel: str = "auto"
    temperature: Temperature | None = None
    near: float = 0


def window_keys(attention: SlidingAttention, memory: LayerMemory) -> AnswerKeys:
    """Of a layer that attends to a window: those of its last W - 1 tokens."""
    stop = len(memory.store)
    keys, values = memory.store.span(max(0, stop - attention.window + 1), stop)
    count = keys.shape[1]
    rotated = attention.rope.rotate(keys, torch.arange(count))
    return AnswerKeys(
        rotated, values, count, attention.window, attention.rope, attention.scale, attention.cap
    )


def keeps_keys(method: Method, query: QueryState) -> bool:
    """Whether the tokens of an answer attend to the same far tokens, of their question's turn."""
    selector = method.selector
    return query.dense or (selector.answer_keeps_selection and is_builtin(selector))


def check_method(method: Method) -> None:
    """Raises KeysChangeError where what an answer's tokens attend to, or where, is known by reading
    what they computed."""
    selector, position = method.selector, method.position
    if selector.observes:
        raise KeysChangeError(f"{type(selector).__name__} observes attention")
    if not is_builtin(position) or position.max_distance is not None:
        raise KeysChangeError(f"{type(position).__name__} changes positions with every token")
    if position.query_scale(torch.zeros(1)) is not None:
        raise KeysChangeError(f"{type(position).__name__} scales queries by their positions")


def selected_keys(
    attention: Attention, memory: LayerMemory, query: QueryState, far: Tensor, room: int
) -> AnswerKeys:
    """Of a layer that runs the method.

    Args:
        far: absolute positions (n,) of I and the selected tokens, of the answer's token before.
        room: how many tokens are to come.

    Raises:
        KeysChangeError: one of them would attend to other keys or positions than the first.
    """
    method, start = attention.method, len(memory.store)
    local = local_of(method, query, start)
    if far.shape[0] + local > MOST:
        raise KeysChangeError(f"more than {MOST:,} keys are in view")
    if not memory.fitted and method.score.features:
        raise KeysChangeError("the layer's compressor is not fitted")
    (at, places), (last, later) = (
        _positions(attention, query, far, start + more) for more in (0, room - 1)
    )
    follow = torch.arange(room, device=places.device) + at
    same_keys = later.shape[0] == places.shape[0] + room - 1
    if not same_keys or not torch.equal(later, torch.cat((places[:-1], follow))):
        raise KeysChangeError(f"{type(method.position).__name__} moves keys with every token")
    rope = attention.rope_at(start + 1)
    if attention.rope_at(start + room) is not rope or not torch.equal(last, follow[-1:]):
        raise KeysChangeError(f"{type(method.position).__name__} changes frequencies")
    near, _ = _both(attention, query, far, start, 1)
    keys, values = memory.store.span(start - local, start)
    if far.shape[0]:
        far_keys, far_values = memory.fetch(far)
        keys, values = torch.cat((far_keys, keys), 1), torch.cat((far_values, values), 1)
    return AnswerKeys(
        rope.rotate(keys, places[:-1]), values, at.item(), None, rope, attention.scale,
        attention.cap, method.kernel, attention.temperature, near.query.item(),
    )  # fmt: skip


def local_of(method: Method, query: QueryState, start: int) -> int:
    """l_L of an answer's token at `start`."""
    return local_tokens(method.window, Chunk(start, start + 1, select=True, decoding=True), query)


def _both(
    attention: Attention, query: QueryState, far: Tensor, start: int, count: int
) -> tuple[Positions, Positions]:
    """Near and far positions of `count` tokens from `start` on."""
    position, local = attention.method.position, local_of(attention.method, query, start)
    near = near_positions(position, local, count, start, far.shape[0])
    return near, far_positions(position, far, local, count, start)[0]


def _positions(
    attention: Attention, query: QueryState, far: Tensor, start: int
) -> tuple[Tensor, Tensor]:
    """As `token_positions`, of the token at `start`."""
    near, distant = _both(attention, query, far, start, 1)
    return token_positions(far.device, near, distant, None)


def answer_trace(
    attention: Attention, memory: LayerMemory, query: QueryState, far: Tensor, q: Tensor,
    lse: Tensor, start: int,
) -> ChunkTrace:  # fmt: skip
    """The trace of an answer's tokens from `start` on, which are in the store: queries (H, C, D)
    and log-sum-exps (H, C)."""
    method, stop = attention.method, start + q.shape[1]
    local = local_of(method, query, start)
    near, distant = _both(attention, query, far, start, q.shape[1])
    initial, scaled = min(method.window.initial, start - local), attention.scaled(q, start, near)
    return ChunkTrace(
        memory.layer, start, stop, initial, local, far, near, [distant], q, scaled, None,
        attention.rope_at(stop), attention.scale, attention.cap, memory.store, lse, True,
    )  # fmt: skip
