"""The selections of an answer's tokens, one by one, in tensors that have the same size for each.

While L is at least as long as there are tokens to come, these stay in it: M is rows of the store
that is there already, and of how many of them the next token may choose is a number on the device.
`models.decoding` records this once for many tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from esa_cli.attention.answer_keys import MOST, KeysChangeError, local_of
from esa_cli.attention.chunking import Chunk
from esa_cli.attention.device_top_k import top_k_on_device
from esa_cli.attention.interfaces import Positions
from esa_cli.attention.kernels.scorer_operands import Tables
from esa_cli.attention.layer import Attention
from esa_cli.attention.layer_memory import LayerMemory
from esa_cli.attention.method import Method
from esa_cli.attention.plugin_errors import is_builtin, near_positions
from esa_cli.attention.positions import token_positions
from esa_cli.attention.query_state import QueryState
from esa_cli.attention.scoring import SumScore
from esa_cli.attention.selection import TopK, proximity

NOTHING = float("-inf")


@dataclass(frozen=True)
class AnswerSelection:
    """What the next tokens of an answer select from in one layer, each for itself.

    Numbers that change from token to token are made of `step` (1,), the number of the token, from
    0, on the device.

    Args:
        start: position of the first of these tokens. room: how many there are. local: l_L of the
            first. moves: M grows by one a token; if not, L does.
        tables: what the scoring kernel reads of the blocks of keys; kept, since a recording reads
            the same memory again.
    """

    attention: Attention
    memory: LayerMemory
    query: QueryState
    start: int
    room: int
    local: int
    moves: bool
    tables: Tables = field(default_factory=dict, repr=False)

    @property
    def _method(self) -> Method:
        return self.attention.method

    @property
    def _high(self) -> int:
        """Where M ends for the first token."""
        return self.start - self.local

    @property
    def _low(self) -> int:
        return min(self._method.window.initial, self._high)

    @property
    def stop(self) -> int:
        """Where M ends for the last token."""
        return self._high + (self.room - 1) * self.moves

    @property
    def far(self) -> int:
        """I + K, the same for each token."""
        return self._low + self._method.window.selected

    @property
    def most_near(self) -> int:
        """L and the token itself, of the last token."""
        return self.local + 1 + (self.room - 1) * (not self.moves)

    def near(self, step: Tensor) -> Tensor:
        """l_L (1,) of a token."""
        return step * (not self.moves) + self.local

    def select(self, q: Tensor, step: Tensor) -> Tensor:
        """Absolute positions (I + K,) of I and M_k for a token's queries (H, 1, D), unrotated."""
        first = Chunk(self.start, self.start + 1, select=True, decoding=True)
        args = self.memory, q, first, self._low, self.local, self.query
        every = replace(
            self.attention.step(*args),
            high=self.stop, projection=self.memory.projection, tables=self.tables,
        )  # fmt: skip
        scores, selector = every.scores(), self._method.selector
        assert isinstance(selector, TopK), "checked before"
        count = step * self.moves + (self._high - self._low)
        behind = torch.arange(every.middle, device=q.device) >= count
        scores = proximity(scores.masked_fill(behind, NOTHING), selector.proximity)
        picked = top_k_on_device(scores.masked_fill(behind, NOTHING), self._method.window.selected)
        return torch.cat((torch.arange(self._low, device=q.device), picked + self._low))

    def positions(self, far: Tensor, step: Tensor, near: int) -> Positions:
        """Positions (1,) of a token and (I + K + near,) of its keys: far ones, which are at
        absolute positions (I + K,), and near ones; those behind the token have its own."""
        local = self.near(step)
        found = self._method.position.far_of_token(far, local, step + self.start)
        assert found is not None, "checked before"
        behind = torch.arange(near, device=far.device) - local
        return Positions(found.query, torch.cat((found.key, behind.clamp(max=0) + found.query)))

    def last_position(self) -> int:
        """Of the last token and its keys, none is above it."""
        far, last = torch.arange(self.far), torch.tensor([self.room - 1])
        return int(self.positions(far, last, 1).query)

    def near_position(self, more: int) -> float:
        """Of the token `more` behind the first: its position among near ones."""
        return self._near(more).query.item()

    def _near(self, more: int) -> Positions:
        local, start = self.local + more * (not self.moves), self.start + more
        return near_positions(self._method.position, local, 1, start, self.far)

    def follows_encoding(self, more: int) -> bool:
        """Whether distances that `positions` has are those of the encoding, `more` tokens on."""
        step, far = torch.tensor([more]), torch.arange(self.far)
        local, start = int(self.near(step)), self.start + more
        distant = self._method.position.far(far, local, 1, start)
        at, places = token_positions(far.device, self._near(more), distant, None)
        query, keys = self.positions(far, step, local + 1)
        return torch.equal(query - keys, at - places)


def token_selection(
    attention: Attention, memory: LayerMemory, query: QueryState, room: int
) -> AnswerSelection:
    """Of the next `room` tokens of an answer, of which each selects.

    Raises:
        KeysChangeError: what they select, or where it is, cannot be said without waiting for the
            device.
    """
    method, start = attention.method, len(memory.store)
    name = type(method.selector).__name__
    if type(method.selector) is not TopK:
        raise KeysChangeError(f"{name} selects for every token of an answer")
    if type(method.score) is not SumScore or method.score.rotate:
        raise KeysChangeError(f"{name} selects for every token, and not by the score sum")
    if not is_builtin(method.compressor):
        raise KeysChangeError(f"{name} selects for every token, by a plugin's compressor")
    if memory.store.gather_waits:
        raise KeysChangeError(
            f"{name} selects for every token, and rows are in host memory, on disk, or of more "
            "than three documents"
        )
    if not memory.fitted:
        raise KeysChangeError("the layer's compressor is not fitted")
    local, last = (local_of(method, query, start + more) for more in (0, room - 1))
    found = AnswerSelection(attention, memory, query, start, room, local, last == local)
    _check(found, last)
    memory.project(method, found.stop)
    return found


def _check(found: AnswerSelection, last: int) -> None:
    """Raises: see `token_selection`; `last` is l_L of the last token."""
    method, room, start = found.attention.method, found.room, found.start
    middle = start - found.local - method.window.initial
    if not 0 < method.window.selected < middle:
        raise KeysChangeError("all middle tokens are selected, or none")
    if last + 1 != found.most_near or (found.moves and found.local < room - 1):
        raise KeysChangeError(
            f"{type(method.selector).__name__} selects for every token, and {room} tokens do not "
            f"fit into the local window of {found.local}"
        )
    if found.far + found.most_near > MOST:
        raise KeysChangeError(f"more than {MOST:,} keys are in view")
    name = type(method.position).__name__
    at = torch.arange(1)
    if method.position.far_of_token(at, at, at) is None or not all(
        found.follows_encoding(more) for more in (0, room - 1)
    ):
        raise KeysChangeError(f"{name} needs the positions of selected tokens")
    if found.attention.rope_at(start + room) is not found.attention.rope_at(start + 1):
        raise KeysChangeError(f"{name} changes frequencies")
