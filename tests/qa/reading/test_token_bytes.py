"""The bytes of tokens: joined, they are the text, in every kind of vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
from byte_level_model import byte_level
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from esa_cli.qa.reading.spans import byte_letters, token_bytes

__all__ = ["byte_level"]

TEXTS = ["the ship of 1950", "“Héllo”, café", "白鯨 the whale", "a  b", "🙂", "£5 don't."]


def sentencepiece() -> Any:
    """Spaces as U+2581, other characters as bytes, as Llama 2 and Mistral have them."""
    names = ["▁", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"thesipof", "▁t", "he"]
    vocabulary = {name: at for at, name in enumerate(names)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, [("▁", "t"), ("h", "e")], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def joined(tokenizer: Any, text: str) -> str:
    piece = token_bytes(tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return b"".join(piece(token) for token in ids).decode()


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level(byte_level: Any, text: str) -> None:
    assert joined(byte_level, text) == text


@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece(text: str) -> None:
    assert joined(sentencepiece(), text) == f" {text}"


def test_whole_words() -> None:
    vocabulary = {"the": 0, "ship": 1, "?": 2, "a": 3, "b": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")
    assert joined(words, "the ship") == "theship"


def test_ids_without_a_token_have_no_bytes(byte_level: Any) -> None:
    assert token_bytes(byte_level)(len(byte_level) + 100) == b""


def test_byte_letters_are_those_of_the_tokenizers() -> None:
    letters = byte_letters()
    assert set(letters) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(letters.values()) == list(range(256))
    assert (letters["Ġ"], letters["Ċ"], letters["a"]) == (32, 10, 97)
