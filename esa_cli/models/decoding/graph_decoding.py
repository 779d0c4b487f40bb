"""An answer's tokens: the first few by forward calls, the others by replaying a recorded one.

The recording has room for some tokens; then their rows go to the stores, and the next recording is
made. What cannot be recorded is decoded as ever, with the reason in `GraphDecoding.reason`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import Tensor

from esa_cli.attention.answer_keys import (
    AnswerKeys,
    KeysChangeError,
    answer_trace,
    check_method,
    keeps_keys,
    selected_keys,
    window_keys,
)
from esa_cli.attention.answer_selection import AnswerSelection, token_selection
from esa_cli.attention.kernels.dispatch import first_keys_kernel
from esa_cli.attention.layer import Attention
from esa_cli.attention.query_state import Phase
from esa_cli.attention.trace import ChunkTrace
from esa_cli.errors import UsageError
from esa_cli.models.attachment.attach import Attachment
from esa_cli.models.attachment.kv_cache import EsaCache, MixedLayer
from esa_cli.models.decoding.answer_cache import AnswerCache
from esa_cli.models.decoding.cuda_graph import MakeGraph
from esa_cli.models.decoding.recorded_token import RecordedToken, alike

ROOM = 256
"""Tokens that a recording has room for."""
FIRST = 8
"""Tokens decoded by forward calls before the first recording, two at least: a short answer would
not make up for the time that recording takes."""


class GraphDecoding:
    """Decodes one answer; `generate` calls it with each token.

    Args:
        cache: of the attachment, in a turn whose question was processed. make: makes graphs.
        required: what cannot be recorded is an error.
        room, first: see `ROOM` and `FIRST`.
        outcomes: of recordings so far, by whether tokens attend to the same keys (else each selects
            its own): True, a replay had the logits of a forward call, so no further one is
            compared; False, recording failed, or a replay had others, so none is made unless
            required.

    Attributes:
        reason: why nothing is recorded, empty where something is or may be. failed: recording was
            tried, or replayed wrong.
        replayed: tokens that were decoded by a recording.
    """

    def __init__(
        self, attachment: Attachment, cache: EsaCache, make: MakeGraph, required: bool = False,
        room: int = ROOM, first: int = FIRST, outcomes: dict[bool, bool] | None = None,
    ) -> None:  # fmt: skip
        self.attachment, self.cache, self._make, self._required = attachment, cache, make, required
        self._room, self._first = room, first
        self.outcomes: dict[bool, bool] = {} if outcomes is None else outcomes
        self.reason, self.failed, self.replayed = "", False, 0
        self._plain = 0
        self._far: dict[int, Tensor] = {}
        self._heads: dict[int, int] = {}
        self._recorded: RecordedToken | None = None

    @property
    def _kept(self) -> bool:
        return keeps_keys(self.cache.method, self.cache.query)

    def __call__(self, token: Tensor) -> Tensor:
        """Logits (1, 1, V) behind a token (1, 1) of the answer.

        Raises:
            UsageError: a recording is required, and cannot be made.
        """
        if self._recorded is not None and self._recorded.count == self._room:
            self.flush()
        if self._recorded is None and not self.reason and self._plain >= self._first:
            self._record()
        if self._recorded is not None and self.outcomes.get(self._kept):
            self.replayed += 1
            return self._recorded(token)
        if self._recorded is not None:
            return self._compare(self._recorded, token)
        self._plain += 1
        with self._watched() if self._plain == self._first else nullcontext():
            return self._forward(token)

    def _forward(self, token: Tensor) -> Tensor:
        logits: Tensor = self.attachment.model(
            input_ids=token, past_key_values=self.cache, use_cache=True
        ).logits
        return logits

    def _compare(self, recorded: RecordedToken, token: Tensor) -> Tensor:
        """Logits behind a token by a forward call, with which those of a replay are compared; the
        recording is not used again, as the token is in the store."""
        before = recorded.states()
        replayed = recorded(token).clone()
        recorded.go_back(before)
        self._recorded = None
        logits = self._forward(token)
        if alike(replayed, logits):
            self.outcomes[self._kept] = True
        else:
            self._fail("a replay had other logits than a forward call")
            self._refuse()
        return logits

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Keeps the positions of the far tokens that the next token attends to."""
        query, asked = self.cache.query, self.cache.query.trace

        def watch(trace: ChunkTrace) -> None:
            if isinstance(trace.far, Tensor):
                self._far[trace.layer] = trace.far
                self._heads[trace.layer] = trace.queries.shape[0]
            if asked is not None:
                asked(trace)

        query.trace = watch
        try:
            yield
        finally:
            query.trace = asked

    def _record(self) -> None:
        """Makes the next recording, or says why there is none."""
        try:
            self._check()
            cache, traced = self.cache, self.cache.query.trace is not None
            answer = AnswerCache(
                self.attachment.forward_pass, cache.method, cache.layers, self._given(),
                self._heads, cache.get_seq_length(), self._room, traced,
                self.attachment.model.device,
            )  # fmt: skip
            graph = self._make(answer.step.device)
            self._recorded = RecordedToken(self.attachment.model, answer, graph)
            return
        except KeysChangeError as error:
            self.reason = str(error)
        except RuntimeError as error:
            self._fail(f"recording failed: {(str(error).splitlines() or [''])[0]}")
        self._refuse()

    def _fail(self, reason: str) -> None:
        """Records no more tokens of this kind."""
        self.failed, self.reason, self.outcomes[self._kept] = True, reason, False

    def _refuse(self) -> None:
        """Raises UsageError where a recording is required."""
        if self._required:
            raise UsageError(
                f"this answer cannot be decoded by a CUDA graph: {self.reason}",
                "try --set decoding=auto",
            )

    def _check(self) -> None:
        """Raises KeysChangeError with what this model, device or method has that no recording
        does."""
        model = self.attachment.model
        if self.outcomes.get(self._kept) is False and not self._required:
            raise KeysChangeError("recording one before has failed")
        if len({one.device for one in model.parameters()}) > 1:
            raise KeysChangeError("the model is on several devices")
        if any(isinstance(one, MixedLayer) for one in self.cache.layers):
            raise KeysChangeError("its layers keep keys and a state")
        if self.attachment.sources:
            raise KeysChangeError("some of its layers read the keys of others")
        if self.cache.query.phase is not Phase.QUESTION:
            raise KeysChangeError("there is no question")
        check_method(self.cache.method)

    def _given(self) -> Iterator[AnswerKeys | AnswerSelection]:
        """What the next tokens attend to in each layer, or select from."""
        query = self.cache.query
        for memory in self.cache.memories:
            attention = self.attachment.attention(self.cache.method, memory.layer)
            found: AnswerKeys | AnswerSelection
            if not isinstance(attention, Attention):
                found = window_keys(attention, memory)
            elif not self._kept:
                found = token_selection(attention, memory, query, self._room)
            elif memory.layer in self._far:
                far = self._far[memory.layer]
                found = selected_keys(attention, memory, query, far, self._room)
            else:
                raise KeysChangeError("each head has a selection of its own")
            kernel = found.kernel if isinstance(found, AnswerKeys) else self.cache.method.kernel
            if first_keys_kernel(memory.store.span(0, 1)[0], kernel, attention.cap) is None:
                raise KeysChangeError(f"kernel {kernel} needs the number of keys")
            yield found

    def flush(self) -> None:
        """Gives the recording's rows to the stores, its traces to the turn, and drops it."""
        done, self._recorded = self._recorded, None
        if done is None or not done.count:
            return
        query, start = self.cache.query, self.cache.get_seq_length()
        count = slice(done.count)
        for layer, held in zip(self.cache.own, done.cache.rows, strict=True):
            layer.append(*held.fresh[:, :, count])
        query.stop = start + done.count
        self.cache.states.end_call(query.stop)
        if query.trace is None:
            return
        for memory, held in zip(self.cache.memories, done.cache.rows, strict=True):
            attention = self.attachment.attention(self.cache.method, memory.layer)
            if isinstance(attention, Attention) and held.observed is not None:
                for at, far in self._far_of(memory.layer, held.chosen, done.count):
                    q, lse = (one[:, at] for one in held.observed)
                    first = start + at.start
                    query.trace(answer_trace(attention, memory, query, far, q, lse, first))

    def _far_of(
        self, layer: int, chosen: Tensor | None, count: int
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yields those of `count` new tokens that attended to the same far ones, and these."""
        if chosen is None:
            yield slice(0, count), self._far[layer]
            return
        for at in range(count):
            yield slice(at, at + 1), chosen[at]
