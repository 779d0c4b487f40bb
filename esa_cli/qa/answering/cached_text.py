"""The text of a session's cached documents by token, decoded when a score first asks for it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from esa_cli.attention.query_state import TurnText

INCOMPLETE = "\ufffd"
"""What a tokenizer returns for bytes that are a part of a character."""


def token_pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token; joined, they are the text of `ids`.

    Where tokens share a character, the first has the text of all of them, and the others none.
    Decoded behind another token, since some tokenizers take the space off a text's first word.
    """
    before = list(tokenizer("a", add_special_tokens=False)["input_ids"])

    def decode(some: Sequence[int]) -> str:
        return str(tokenizer.decode([*before, *some], clean_up_tokenization_spaces=False))

    taken = len(decode([]))
    known = {token: decode([token])[taken:] for token in set(ids)}
    pieces = [known[token] for token in ids]
    at = 0
    while at < len(ids):
        end = at + 1
        if INCOMPLETE in pieces[at]:
            while end < len(ids) and INCOMPLETE in pieces[end]:
                end += 1
            pieces[at:end] = [decode(ids[at:end])[taken:], *[""] * (end - at - 1)]
        at = end
    return pieces


class CachedText:
    """The text of the documents that a session has cached, and what scores made of it.

    Args:
        tokenizer: of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens = 0
        self._pieces: list[str] | None = None
        self._kept: dict[Hashable, Any] = {}

    def turn(self, ids: Sequence[int], question: str) -> TurnText:
        """The text of a question about the documents with these `ids`, which only grow."""
        if len(ids) != self._tokens:
            self._tokens, self._pieces, self._kept = len(ids), None, {}

        def pieces() -> list[str]:
            if self._pieces is None:
                self._pieces = token_pieces(self._tokenizer, ids)
            return self._pieces

        return TurnText(question, pieces, self._kept)
