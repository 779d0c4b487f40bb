"""Tokenising in windows gives the ids and offsets of one call, whatever the tokenizer and text."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from esa_cli.errors import DocumentError
from esa_cli.models.tokenization import tokenizer as windowed_tokenizer
from esa_cli.models.tokenization.tokenizer import count_tokens, tokenise_text

WORDS = "Die Brücke über den Fluss was built in 1862 by naïve engineers; it cost 12,345.67 £ then."
FROM_THE_RIGHT = (
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))|[^\r\n\p{L}\p{N}]?\p{L}+|\s+|[^\s\p{L}\p{N}]+"
)


def _trained(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    lines = [WORDS, WORDS.lower(), "  \n\n", "the then these there 2024-05-01 😀 é e\u0301"] * 4
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def _byte_level(*before: Any, use_regex: bool = True, prefix: bool = False) -> Tokenizer:
    made = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)
    made.pre_tokenizer = pre_tokenizers.Sequence([*before, level])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    return _trained(made, trainer)


def gpt2() -> Tokenizer:
    made = _byte_level(prefix=True)
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    made.normalizer = normalizers.NFC()
    return made


def digits_from_the_right() -> Tokenizer:
    return _byte_level(pre_tokenizers.Split(Regex(FROM_THE_RIGHT), "isolated"), use_regex=False)


def llama2() -> Tokenizer:
    """Without pre-tokenizer, as sentencepiece."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>"], show_progress=False, max_token_length=8
    )
    return _trained(made, trainer)


TOKENIZERS = (gpt2, digits_from_the_right, llama2)
UNITS = (
    *WORDS.split(), " ", "  ", "\n", "\n\n\n", "\r\n", "\t", "\u00a0", "   \n  ", "1862",
    "123456789",
    "😀", "👩‍👩‍👧", "e\u0301", "\u0301\u0302", "ﬁ", "日本語のテキスト",
    "don't", "’s", "...!?", "<|im_end|>", "ꙮ",
)  # fmt: skip


def _mixed(size: int) -> str:
    chance = random.Random(7)
    parts = (chance.choice(UNITS) + chance.choice(("", " ", "\n")) for _ in range(size // 3))
    return "".join(parts)[:size]


TEXTS = {
    "mixed": _mixed(12_000),
    "spaces and a newline": WORDS + " " * 6001 + "\n" + WORDS * 30,
    "digits": WORDS + "1234567" * 1001 + " " + WORDS * 30,
    "one letter": "a" * 9001,
    "emoji": "😀" * 6001,
    "unspaced": "日本語のテキストです。" * 900,
    "unknown": "ꙮ" * 5000 + WORDS * 30,
    "special": "<|im_end|><|im_start|>user\n" * 400,
    "short": "a b",
    "nothing": "",
}


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed_tokenizer, "WINDOW", 1500)
    monkeypatch.setattr(windowed_tokenizer, "OVERLAP", 400)


def _whole(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    out = tokenizer(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
    )
    return list(out["input_ids"]), [tuple(pair) for pair in out["offset_mapping"]]


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("make", TOKENIZERS, ids=lambda make: make.__name__)
def test_windows_give_the_tokens_of_one_call(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    """And as many as are counted before a model is loaded."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make(), eos_token="<|im_end|>")
    tokenizer.save_pretrained(tmp_path)
    for name, text in TEXTS.items():
        ids, offsets = tokenise_text(tokenizer, text)
        expected = _whole(tokenizer, text)
        assert list(ids) == expected[0], name
        assert list(map(tuple, offsets.tolist())) == expected[1], name
        assert count_tokens(tmp_path, text) == len(ids), name


def test_a_long_line_takes_more_than_one_call() -> None:
    calls: list[int] = []

    def tokenizer(part: str, **options: Any) -> dict[str, Any]:
        calls.append(len(part))
        offsets = [(at, at + 1) for at in range(len(part))]
        return {"input_ids": list(map(ord, part)), "offset_mapping": offsets}

    text = (WORDS * 30_000)[: 2 << 20]
    rows = list(windowed_tokenizer.tokenise_by_windows(tokenizer, text))
    assert sum(map(len, rows)) == len(text)
    assert all(int(row[0]) == ord(text[row[1]]) for part in rows for row in part[::9973])
    assert max(calls) == windowed_tokenizer.WINDOW
    assert sum(calls) < 1.05 * len(text)


@pytest.mark.usefixtures("small_windows")
def test_what_cannot_be_divided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed_tokenizer, "LONGEST", 6000)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=digits_from_the_right())
    with pytest.raises(DocumentError, match="got 6,000 characters without either from character 0"):
        tokenise_text(tokenizer, "7" * 20_000)
