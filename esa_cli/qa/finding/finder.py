"""What finds passages by more than their words: an array per token of a document, compared with
those of a question by late interaction. `token_encoder` has the one that is shipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from esa_cli.storage.library import Layout


class Finder(Protocol):
    """Encodes documents and questions; nothing here depends on the model that words the answer."""

    @property
    def layout(self) -> Layout:
        """Of a document's stored keys, which says what they cost."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of everything that shapes the keys of a document."""
        ...

    def encode(self, ids: Sequence[int], first: int, last: int) -> Tensor:
        """Reduced keys (last - first, R) of the tokens [first, last) of a document, float32, on the
        CPU; the same for every way of dividing a document at multiples of `SEGMENT_TOKENS`."""
        ...

    def questions(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Reduced queries (B, M, R) of unit length, and weights (B, M) that sum to 1 a question."""
        ...
