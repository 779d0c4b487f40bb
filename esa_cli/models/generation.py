"""An answer's tokens as text, piece by piece, while they come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class Streamer:
    """Decodes as tokens arrive, holding back characters that are not complete yet."""

    def __init__(self, tokenizer: Any, on_text: Callable[[str], None] | None) -> None:
        self.tokenizer, self.on_text = tokenizer, on_text
        self.text, self.count = "", 0
        self.first: float | None = None
        self._ids: list[int] = []
        self._prompt = True

    @property
    def last(self) -> int | None:
        """The id that came last."""
        return self._ids[-1] if self._ids else None

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        self.first = self.first or time.perf_counter()
        self._ids.extend(value.flatten().tolist())
        self.count = len(self._ids)
        # Byte tokens of one character come one by one: what is not complete yet is held back.
        self._emit(self.tokenizer.decode(self._ids, skip_special_tokens=True).rstrip("\ufffd"))

    def _emit(self, text: str) -> None:
        new = text[len(self.text) :]
        self.text = text
        if new and self.on_text:
            self.on_text(new)

    def end(self) -> None:
        self._emit(self.tokenizer.decode(self._ids, skip_special_tokens=True))
