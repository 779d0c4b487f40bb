"""The most probable span against every span, bytes of tokens, and whole words."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from byte_level_model import byte_level
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from esa_cli.qa.reading import span
from esa_cli.qa.reading.span import (
    Span,
    WordBoundaries,
    make_byte_by_letter,
    make_token_decoder,
    search_most_probable_span,
)

END = 0
PIECES = (
    b"\n", b" ", b" Ah", b"ab", b" Ahab", b"Ahab", b" the", b"the", b" cap", b"tain", b" captain",
    b"captain", b",", b" of", b"of", b" ship", b"ship", b"s", b"'", b" 1", b"1", b"9", b"5", b"0",
    b"\xe9", b"\x9b\xaa", b"\xe9\xaf\xa8", b"\xe9\xb1\xbc", b" \xe9", b"", b"xyz",
)  # fmt: skip
"""Words in several ways, half characters, numbers behind a space of their own."""
PASSAGES = [
    "Ahab",
    "Ahab, the captain",
    "the captain of the ship, captain Ahab, of 1950",
    "Ahab's ship, the ships of Ahab",
    "雪鯨, the ship 鯨魚",
]


class RandomModel:
    """Logits that are random numbers of their own for each sequence of tokens."""

    def __init__(self, seed: int, spread: float = 2.0) -> None:
        self.seed, self.spread = seed, spread
        self.rows: list[tuple[int, ...]] = [()]
        self.calls = 0

    def logits(self, tokens: tuple[int, ...]) -> Tensor:
        number = self.seed
        for token in tokens:
            number = (number * 1_000_003 + token + 1) % 2**31
        generator = torch.Generator().manual_seed(number)
        return self.spread * torch.randn(len(PIECES), generator=generator)

    def append_tokens(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        self.calls += 1
        self.rows = [(*self.rows[at], token) for at, token in zip(parents, tokens, strict=True)]
        return torch.stack([self.logits(row) for row in self.rows])

    def log_probability(self, tokens: Sequence[int]) -> float:
        """Of these tokens as the whole answer."""
        total = 0.0
        for at, token in enumerate([*tokens, END]):
            total += float(self.logits(tuple(tokens[:at])).log_softmax(-1)[token])
        return total


def spellings(text: bytes) -> Iterator[list[int]]:
    """All ways to write some bytes as tokens."""
    if not text:
        yield []
    for token, piece in enumerate(PIECES):
        if piece and text.startswith(piece):
            for rest in spellings(text[len(piece) :]):
                yield [token, *rest]


def spans(passage: str) -> Iterator[tuple[int, int]]:
    """From the start of each word to the end of that or a later one, or to a punctuation mark."""
    for first in range(len(passage)):
        before = passage[first - 1 : first] if first else ""
        chinese = re.match(r"[\u3400-\u9fff]", passage[first])
        if not chinese and (not passage[first].isalnum() or re.match(r"[\w'’-]", before)):
            continue
        for last in range(first + 1, len(passage) + 1):
            inside = passage[last - 1].isalnum() and passage[last : last + 1].isalnum()
            chinese = re.match(r"[\u3400-\u9fff]", passage[last - 1])
            if passage[last - 1] != " " and (chinese or not inside):
                yield first, last


def best(passage: str, model: RandomModel) -> float:
    return max(
        model.log_probability(tokens)
        for first, last in spans(passage)
        for lead in (b"", b" ")
        for tokens in spellings(lead + passage[first:last].encode())
    )


def searched(passage: str, model: RandomModel) -> Span | None:
    return search_most_probable_span(passage, model.logits(()), model, PIECES.__getitem__, END)


@pytest.mark.parametrize("passage", PASSAGES)
@pytest.mark.parametrize("seed", range(4))
def test_with_beams_enough_it_is_the_best_of_all_spans(
    passage: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span, "BEAMS", 100_000)
    monkeypatch.setattr(span, "MAX_TOKENS", 12)
    short = passage[:24]
    model = RandomModel(seed)
    found = searched(short, model)
    assert found is not None
    assert found.log_probability == pytest.approx(best(short, model), abs=1e-4)
    assert (found.start, found.end) in set(spans(short))


@pytest.mark.parametrize("passage", PASSAGES)
@pytest.mark.parametrize("seed", range(3))
def test_the_log_probability_is_that_of_the_span(passage: str, seed: int) -> None:
    model = RandomModel(seed)
    found = searched(passage, model)
    if found is None:
        return
    assert (found.start, found.end) in set(spans(passage))
    text = passage[found.start : found.end].encode()
    known = [
        model.log_probability(tokens) for lead in (b"", b" ") for tokens in spellings(lead + text)
    ]
    assert min(abs(one - found.log_probability) for one in known) < 1e-4


@pytest.mark.parametrize("passage", PASSAGES)
@pytest.mark.parametrize("seed", range(3))
def test_a_bound_ends_the_search_and_changes_nothing_above_it(passage: str, seed: int) -> None:
    model = RandomModel(seed)
    found = searched(passage, model)
    if found is None:
        return
    for above in (-100.0, found.log_probability - 0.01, found.log_probability, 0.0):
        counted = RandomModel(seed)
        again = search_most_probable_span(
            passage, counted.logits(()), counted, PIECES.__getitem__, END, above
        )
        assert again == (found if above < found.log_probability else None)
        if above == 0:
            assert counted.calls == 0, "no hypothesis is continued"


class Wanting(RandomModel):
    """Wants one sequence of tokens, then the end."""

    def __init__(self, *pieces: bytes) -> None:
        super().__init__(0)
        self.wanted = [PIECES.index(piece) for piece in pieces]

    def logits(self, tokens: tuple[int, ...]) -> Tensor:
        at = len(tokens)
        whole = list(tokens) == self.wanted[:at]
        out = torch.zeros(len(PIECES))
        if whole:
            out[(*self.wanted, END)[at] if at <= len(self.wanted) else END] = 20.0
        return out


@pytest.mark.parametrize(
    ("pieces", "passage", "span"),
    [
        ((b" Ahab",), "the captain, Ahab.", (13, 17)),
        ((b"Ahab",), "the captain, Ahab.", (13, 17)),
        ((b" ", b"1", b"9", b"5", b"0"), "of 1950, the ship", (3, 7)),
        ((b" captain", b" Ah", b"ab"), "the ship of captain Ahab", (12, 24)),
        ((b" \xe9", b"\x9b\xaa", b"\xe9\xaf\xa8"), "the ship 雪鯨魚", (9, 11)),
        ((b" ship", b"'", b"s"), "the ships ship's", (10, 16)),
        ((b" ship", b" "), "of the ship of", (7, 11)),
    ],
)
def test_what_the_model_wants_is_found(
    pieces: tuple[bytes, ...], passage: str, span: tuple[int, int]
) -> None:
    found = searched(passage, Wanting(*pieces))
    assert found is not None
    assert (found.start, found.end) == span


class Doubting(RandomModel):
    """Goes on with 鯨 after 雪 rather than end, and is then sure of nothing."""

    def logits(self, tokens: tuple[int, ...]) -> Tensor:
        out = torch.zeros(len(PIECES))
        snow = (PIECES.index(b"\xe9"), PIECES.index(b"\x9b\xaa"))
        if tokens == snow:
            out[END], out[PIECES.index(b"\xe9\xaf\xa8")] = 5.0, 5.5
        elif tokens == snow[: len(tokens)]:
            out[snow[len(tokens)]] = 20.0
        return out


def test_a_run_without_spaces_is_not_cut_where_the_model_goes_on() -> None:
    model = Doubting(0)
    whole = [PIECES.index(one) for one in (b"\xe9", b"\x9b\xaa", b"\xe9\xaf\xa8")]
    assert model.log_probability(whole[:2]) > model.log_probability(whole)
    assert searched("雪鯨", model) == Span(0, 2, pytest.approx(model.log_probability(whole)))


@pytest.mark.parametrize("passage", ["", "...", "?!", "- ' -"])
def test_a_passage_without_words_has_none(passage: str) -> None:
    model = RandomModel(1)
    assert searched(passage, model) is None
    assert model.calls == 0


def test_a_passage_that_the_model_cannot_say_has_none() -> None:
    assert searched("Queequeg", RandomModel(1)) is None


class Endless(RandomModel):
    """A model that would never end an answer."""

    def logits(self, tokens: tuple[int, ...]) -> Tensor:
        out = super().logits(tokens)
        out[END] = -1000.0
        return out


def test_a_span_has_at_most_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a script without spaces three times as many; the likeliest beams alone go on."""
    monkeypatch.setattr(span, "MAX_TOKENS", 3)
    for passage, calls in (("the " * 40, 3), ("雪鯨" * 20, 9)):
        model = Endless(2)
        searched(passage.strip(), model)
        assert model.calls == calls
        assert len(model.rows) <= span.BEAMS


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
    piece = make_token_decoder(tokenizer)
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
    assert make_token_decoder(byte_level)(len(byte_level) + 100) == b""


def test_byte_letters_are_those_of_the_tokenizers() -> None:
    letters = make_byte_by_letter()
    assert set(letters) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(letters.values()) == list(range(256))
    assert (letters["Ġ"], letters["Ċ"], letters["a"]) == (32, 10, 97)


WHOLE = [
    "-5", "−5", ".5", "-.5", "-$5", "¥500", "₹20", "€3.50", "+49", "±3", "~5", "≈7", "<5", "#5",
    "1,306", "3.14", "12:30", "5%", "7‰", "5€", "20°C", "don't", "l’Italie", "foo_bar", "word",
    "हिन्दी", "مُحَمَّد", "Müller", "cafe\u0301", "soft\u00adware", "--keep", "-v", "#include",
    "@name", "~/notes", ".gitignore", "./run", "\\alpha", "カタカナ", "ที่",
]  # fmt: skip
"""Each is quoted whole or not at all."""
FRAGMENTS = {"/etc/passwd": {5}, "C:\\x": {3}, "3-5": set(), "well-known": set()}
"""Others, with the places within them where a span may start."""
BETWEEN = [" ", ", ", " (", ") ", " “", "” ", "\n", "; "]


def made_text(seed: int) -> tuple[str, list[tuple[int, int, set[int]]]]:
    """A text, and the places of its pieces with those where a span may start within them."""
    choice, text, places = random.Random(seed), "Of ", list[tuple[int, int, set[int]]]()
    for _ in range(12):
        piece = choice.choice([*WHOLE, *FRAGMENTS])
        start = len(text)
        within = {start + at for at in FRAGMENTS.get(piece, ())}
        places.append((start, start + len(piece), within))
        text += piece + choice.choice(BETWEEN)
    return text + "end", places


@pytest.mark.parametrize("seed", range(60))
def test_no_span_divides_a_piece(seed: int) -> None:
    text, places = made_text(seed)
    words = WordBoundaries(text)
    starts = [at for at in range(len(text)) if words.can_start_span(at)]
    ends = [at for at in range(len(text) + 1) if words.can_end_span(at)]
    for at in starts:
        for end in ends:
            if end <= at:
                continue
            first, last = words.extend_span(at, end)
            assert first <= at
            assert last >= end
            for start, stop, within in places:
                assert not start < first < stop or first in within, (text[start:stop], text[first:])
                if stop - start > 1 and text[start:stop] in WHOLE:
                    assert not start < last < stop, (text[start:stop], text[first:last])
    for start, stop, _ in places:
        assert any(
            words.extend_span(at, stop) == (start, stop) for at in starts if start <= at < stop
        )


@pytest.mark.parametrize(
    ("text", "start", "end", "whole"),
    [
        ("Jane Roe (CEO) of", "Jane", "CEO", "Jane Roe (CEO)"),
        ("call (555) 1234 now", "555", "1234", "(555) 1234"),
        ("call +49 30 1234", "49", "1234", "+49 30 1234"),
        ("born (1867) in", "1867", "1867", "1867"),
        ("from 3-5 to", "3", "5", "3-5"),
        ("1914 –1918", "1918", "1918", "1918"),
        ("grew by 5% or", "5", "5", "5%"),
    ],
)
def test_what_belongs_to_a_span(text: str, start: str, end: str, whole: str) -> None:
    first, last = WordBoundaries(text).extend_span(text.index(start), text.index(end) + len(end))
    assert text[first:last] == whole


@pytest.mark.parametrize(
    "text",
    [
        "一座废弃的啤酒厂。",
        "東京タワーの高さは333メートル",
        "สวัสดีครับ ที่นี่",
        "ကျွန်တော် ကား",
        "ちょっと待って",
    ],
)
def test_scripts_without_spaces_end_within_a_run_only_where_it_is_wanted(text: str) -> None:
    words = WordBoundaries(text)
    assert words.spaceless
    for at in range(1, len(text)):
        before, after = text[at - 1], text[at]
        if before.isalnum() and after.isalnum():
            latin = before.isascii() or after.isascii()
            assert latin or not words.can_end_span(at, is_preferred=False)
        if unicodedata.category(after)[0] == "M":
            assert not words.can_end_span(at)
            assert not words.can_start_span(at)
        if "ァ" <= before <= "ヺ" and "ァ" <= after <= "ー":
            assert not words.can_end_span(at)
            assert not words.can_start_span(at)
    assert words.can_end_span(len(text))
    assert words.can_start_span(0)
