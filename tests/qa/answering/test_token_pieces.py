"""The text of cached tokens, piece by piece."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as token_models
from transformers import PreTrainedTokenizerFast

from esa_cli.qa.answering.session import decode_each_token

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def by_bytes() -> Any:
    """One token a byte, and a few of two."""
    space, a = "\u0120", "a"
    tokens = Tokenizer(
        token_models.BPE({one: i for i, one in enumerate([*BYTES, space + a])}, [(space, a)])
    )
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokens)


def word_tokenizer() -> Any:
    """As Llama 2's: a word's token begins with a mark for the space before it, which the decoder
    takes off the first word."""
    words = {"\u2581the": 0, "\u2581fox": 1, "es": 2, "\u2581a": 3, "<unk>": 4}
    tokens = Tokenizer(token_models.WordLevel(words, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Metaspace()
    tokens.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokens)


def test_pieces_are_the_text() -> None:
    tokenizer = by_bytes()
    for text in ("an a and a", "\u9cb8 and \u00e9\u00e9 \U0001f40b.", "a \ufffd \u9cb8", ""):
        ids = tokenizer(text)["input_ids"]
        pieces = decode_each_token(tokenizer, ids)
        assert len(pieces) == len(ids)
        assert "".join(pieces) == text
