"""Answers by quotation: a model reads each passage as plain text, together with the question.

A reader model estimates the log-odds that a passage contains the answer. A beam search finds the
most probable span of the best passages (as in arXiv 2108.05857): it extends pieces of a passage
that start at a word until the model predicts a line end where a word ends. A question that asks for
free text, such as a summary, is answered by the model without the LoRA adapter.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.errors import LengthError
from esa_cli.models import LoadedModel, parse_reference
from esa_cli.models.text_passes.model_forward import make_transformers_forward
from esa_cli.models.text_passes.text_forward import (
    FusedForward,
    LoraAdapter,
    PromptBatch,
    TextForward,
    can_fuse_model,
)
from esa_cli.qa.answering.prompt import PromptEncoder
from esa_cli.qa.answering.question_form import expand_ellipsis, validate_question, wants_free_text
from esa_cli.qa.answering.reply import NOT_TOLD, Quotation, Reply, Turn
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.preset import Preset, find_adapter_folder
from esa_cli.qa.reading.reader import SamplingParams, generate_reply, ignore_text
from esa_cli.system.text import SPACELESS_CHARACTER

ROOM = 1024
"""The number of tokens that are reserved for passages and answer."""
SPANS = 3
"""The number of passages whose most probable span is searched for."""
FREE_PASSAGES = 4
"""The number of passages from which free text is written."""
UNMENTIONED = 4.5
"""The log-odds subtracted for a name that no document has: 33 of 41 questions are refused."""
BEAMS = 3
MAX_TOKENS = 32
"""The maximum number of tokens of a span."""
PATIENCE = 3
"""The factor of `MAX_TOKENS` in scripts without spaces, whose characters take several tokens."""
CANDIDATES = 256
"""The number of most probable tokens in each step that are compared with the passage."""


def collapse_spaces(text: str) -> str:
    """Returns the text in one line, with one space in place of each run of white space."""
    return " ".join(text.split())


def clip_text(text: str, max_tokens: int, count_tokens: Callable[[str], int]) -> str:
    """Returns the beginning of a text, cut after a word, with at most `max_tokens` tokens."""
    least = count_tokens("")
    while text and (over := count_tokens(text) - max_tokens) > 0:
        own = over + max_tokens - least
        keep = max(0, min(len(text) - 1, len(text) * (own - over) // max(1, own)))
        space = max(text.rfind(" ", 0, keep), text.rfind("\n", 0, keep))
        text = text[: space if 2 * space > keep else keep]
    return text


class PassagePrompt:
    """Encodes prompts that consist of a passage and a question, and encodes possible answers.

    Args:
        template: text with {passage} and {question}, after which the answer begins.
        unanswered: the answer if the passage does not contain one."""

    def __init__(self, tokenizer: Any, template: str, unanswered: str) -> None:
        self.tokenizer, self.template, self.unanswered = tokenizer, template, unanswered
        self.unanswered_ids = self.encode_answer(unanswered)
        self.line_end = self._encode_text("\n")[-1]

    def encode_prompt(self, question: str, passage: str) -> list[int]:
        """Returns the token ids of a prompt with a passage and a question, without an answer."""
        pieces = {"{passage}": collapse_spaces(passage), "{question}": collapse_spaces(question)}
        parts = re.split(r"(\{passage\}|\{question\})", self.template)
        return self._encode_text("".join(pieces.get(part, part) for part in parts))

    def encode_answer(self, answer: str) -> list[int]:
        """Returns the token ids of a space, an answer and a line end, as a model writes them."""
        return self._encode_text(f" {collapse_spaces(answer)}\n")

    def _encode_text(self, text: str) -> list[int]:
        out = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        return list(out["input_ids"])


class PassageReader:
    """Reads passages with a causal transformers model, whose LoRA adapter is optional.

    Args:
        context: the model's window in tokens; the ends of longer passages are not read.
        fixed: whether model and adapter are no longer trained, so that fused weights are cached."""

    def __init__(
        self, model: Any, prompt: PassagePrompt, adapter: LoraAdapter | None,
        context: int | None = None, *, fixed: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.prompt = model, prompt
        self.max_tokens = None if context is None else context - MAX_TOKENS * PATIENCE
        self._adapter, self._fuses = adapter, fixed and can_fuse_model(model)
        self.get_token_bytes = make_token_decoder(prompt.tokenizer)

    @cached_property
    def text_forward(self) -> TextForward:
        """The model's forward pass, which is called in the context of `activate_adapter`."""
        if self._fuses:
            return FusedForward(self.model, adapter=self._adapter)
        return make_transformers_forward(self.model)

    def activate_adapter(self) -> AbstractContextManager[None]:
        """Returns the context in which the model runs with the adapter, to read passages."""
        return nullcontext() if self._adapter is None or self._fuses else self._adapter.apply()

    def read_passages(self, question: str, passages: Sequence[str]) -> PassageReading:
        """Reads all passages, each after the same question, in a few forward calls."""
        return PassageReading(self, passages, question)


class PassageReading:
    """Reads passages with a question; `log_odds` says how probably each contains the answer."""

    def __init__(self, reader: PassageReader, passages: Sequence[str], question: str) -> None:
        prompt, limit = reader.prompt, reader.max_tokens
        if limit is not None:
            passages = [
                clip_text(passage, limit, lambda text: len(prompt.encode_prompt(question, text)))
                for passage in passages
            ]
        self._reader, self._passages = reader, passages
        ids = [prompt.encode_prompt(question, passage) for passage in passages]
        self._batch = PromptBatch(reader.text_forward, ids)
        self.log_odds: list[float] = []
        if passages:
            numbers = range(len(passages))
            none = torch.stack([self._compute_unanswered_log_probability(one) for one in numbers])
            self.log_odds = (torch.log1p(-none.exp().clamp(max=1 - 1e-7)) - none).tolist()

    def _compute_unanswered_log_probability(self, passage_number: int) -> Tensor:
        """Returns the log-probability () that the answer begins with `unanswered`, up to the first
        token after which the answer cannot be a quotation of the passage."""
        reader, ids = self._reader, self._reader.prompt.unanswered_ids
        passage = collapse_spaces(self._passages[passage_number]).encode()
        out = self._batch.logits[passage_number].log_softmax(-1)[ids[0]]
        text, continuation = reader.get_token_bytes(ids[0]), None
        for before, token in pairwise(ids):
            if text.strip() not in passage:
                break
            continuation = continuation or self._batch.start_continuations(passage_number)
            out = out + continuation.append_tokens([0], [before])[0].log_softmax(-1)[token]
            text += reader.get_token_bytes(token)
        return out

    def find_span(self, passage_number: int, min_log_probability: float = -math.inf) -> Span | None:
        """Returns a passage's most probable span, or None if it is below `min_log_probability`."""
        passage, reader = self._passages[passage_number], self._reader
        found = search_most_probable_span(
            collapse_spaces(passage), self._batch.logits[passage_number],
            self._batch.start_continuations(passage_number), reader.get_token_bytes,
            reader.prompt.line_end, min_log_probability,
        )  # fmt: skip
        if found is None:
            return None
        places = _map_collapsed_offsets(passage)
        return Span(places[found.start], places[found.end - 1] + 1, found.log_probability)


def _map_collapsed_offsets(passage: str) -> list[int]:
    """Returns the offset in `passage` of each character of `collapse_spaces(passage)`."""
    places: list[int] = []
    for word in re.finditer(r"\S+", passage):
        places += range(word.start() - bool(places), word.end())  # with the space before it
    return places


class SpanReader:
    """A reader that answers by quoting the most probable span of the best passage.

    Args:
        loaded: the models; `text_model` reads passages, and `model` writes free text.
        window: the maximum number of tokens in one input of the model.

    Raises PresetError, ModelError: the adapter is missing, damaged or of another model."""

    nbytes = 0

    def __init__(self, loaded: LoadedModel, preset: Preset, window: int) -> None:
        settings, model = preset.answer, loaded.text_model
        adapter = None
        if settings.adapter is not None:
            adapter = LoraAdapter.load(find_adapter_folder(settings.adapter), model)
            adapter.match_device_and_dtype(next(model.parameters()))
        prompt = PassagePrompt(loaded.tokenizer, settings.prompt, settings.unanswered)
        self.name = parse_reference(preset.model).name
        self.passages = PassageReader(model, prompt, adapter, window, fixed=True)
        self._loaded, self._preset, self._window = loaded, preset, window
        self._settings = settings

    @cached_property
    def _chat_prompt(self) -> PromptEncoder:
        """The chat prompt for free text, which the model writes without the adapter."""
        return PromptEncoder(self._loaded.tokenizer, self._preset.prompt)

    def check_length(self, question: str, max_new_tokens: int) -> int:
        """Counts a question's tokens in the longest prompt, and checks that they fit. Raises
        UsageError: the question is empty, or not UTF-8. LengthError: the question is too long."""
        validate_question(question)
        tokens, answer_tokens = len(self.passages.prompt.encode_prompt(question, "")), 0
        if self._should_write_free_text(question):
            tokens = max(tokens, len(self._chat_prompt.encode_question(question)))
            answer_tokens = max_new_tokens
        need = tokens + answer_tokens + min(ROOM, self._window // 2)
        if need > self._window:
            raise LengthError(
                f"the question, a passage and the answer take {need:,} tokens; the model's window "
                f"has {self._window:,} tokens",
                "ask a shorter question, or ask for a shorter answer",
            )
        return tokens

    @torch.inference_mode()
    def rank_passages(
        self, question: str, passages: Sequence[Passage], span_count: int = SPANS,
        unmentioned_share: float = 0.0,
    ) -> list[Passage]:  # fmt: skip
        """Reads passages, puts the passage with the best span first, and sorts the others by score.

        Args:
            span_count: the number of passages, of the highest scores, that are searched for spans.
            unmentioned_share: the share of a name that no document has; lowers all log-odds."""
        doubt = UNMENTIONED * unmentioned_share
        with self.passages.activate_adapter():
            reading = self.passages.read_passages(question, [one.text for one in passages])
            out = [
                replace(one, score=odds + self._settings.prior * one.score, log_odds=odds - doubt)
                for one, odds in zip(passages, reading.log_odds, strict=True)
            ]
            order = sorted(range(len(out)), key=lambda n: -out[n].score)
            best, highest = -1, -math.inf
            for n in order[:span_count]:
                if span := reading.find_span(n, highest - out[n].score):
                    start = out[n].start
                    out[n] = replace(out[n], quote=(start + span.start, start + span.end))
                    best, highest = n, span.log_probability + out[n].score
        return [out[n] for n in sorted(order, key=lambda n: n != best)]

    @torch.inference_mode()
    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: SamplingParams, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        """Answers as `Reader.answer` describes, from passages in the order of `rank_passages`."""
        question = expand_ellipsis(question, history)
        best, answered = passages[0] if passages else None, False
        if best is not None and best.quote is not None and best.log_odds is not None:
            threshold = self._settings.threshold
            answered = threshold is None or best.log_odds >= threshold
        if passages and self._should_write_free_text(question):
            text = "\n\n".join(one.text for one in passages[:FREE_PASSAGES])
            return replace(self._write_free_text(question, text, sampling, on_text), found=answered)
        if best is None or best.quote is None or not answered:
            on_text(NOT_TOLD)
            return Reply(NOT_TOLD, found=False)
        start, end = best.quote
        quoted = best.text[start - best.start : end - best.start]
        on_text(text := collapse_spaces(quoted))
        tokens = len(self.passages.prompt.encode_answer(quoted)) - 1
        return Reply(text, answer_tokens=tokens, quotation=Quotation(best.document, start, end))

    def close(self) -> None:
        """Does nothing, as only readers on servers have connections."""

    def _should_write_free_text(self, question: str) -> bool:
        """Whether the answer to a question is to be free text instead of a quotation."""
        form = self._settings.form
        return form == "text" or (form == "auto" and wants_free_text(question))

    def _write_free_text(
        self, question: str, text: str, sampling: SamplingParams, on_text: Callable[[str], None]
    ) -> Reply:
        """Generates an answer without the adapter, from as much of `text` as fits the context."""
        prompt, limit = self._chat_prompt, sampling.max_new_tokens or 0
        asked = prompt.encode_question(question)
        room = self._window - len(asked) - limit
        text = clip_text(text, room, lambda text: len(prompt.encode_document(text)))
        ids = prompt.encode_document(text) + asked
        return generate_reply(self._loaded.model, prompt.tokenizer, ids, sampling, limit, on_text)


class Span(NamedTuple):
    """Characters [start, end) of a passage, with the log-probability that they are the answer."""

    start: int
    end: int
    log_probability: float


class _AnswerHypothesis(NamedTuple):
    """The bytes of an answer's beginning, and all byte offsets in the passage where they occur."""

    log_probability: float
    text: bytes
    starts: tuple[int, ...]
    spaced: bool = False  # whether the space before the answer has been generated
    parent: int = 0
    token: int = 0


def search_most_probable_span(
    passage: str, first_logits: Tensor, continuation: Any,
    get_token_bytes: Callable[[int], bytes], line_end: int, above: float = -math.inf,
) -> Span | None:  # fmt: skip
    """Finds the span of a passage that the model most probably generates as its answer.

    Args:
        passage: the passage in one line, as in the prompt.
        get_token_bytes: returns a token's bytes; see `make_token_decoder`.
        continuation: runs continuations of the prompt; see `text_forward.PromptContinuations`.
        first_logits: (vocabulary,) logits of the first token of the answer.
        line_end: the token that ends an answer.
        above: the log-probability below which hypotheses are dropped."""
    words, raw = WordBoundaries(passage), passage.encode()
    sizes = [len(character.encode()) for character in passage]
    places = {at: number for number, at in enumerate(accumulate(sizes, initial=0))}
    """Maps byte offsets to character offsets, at the beginnings of characters and at the end."""
    starts = tuple(at for at, number in places.items() if words.can_start_span(number))
    live, logits, best = [_AnswerHypothesis(0.0, b"", starts)], first_logits[None], None
    for _ in range(MAX_TOKENS * (PATIENCE if words.spaceless else 1)):
        grown: list[_AnswerHypothesis] = []
        for number, (old, line) in enumerate(zip(live, logits.log_softmax(-1), strict=True)):
            longer = _extend_hypothesis(raw, old, line, get_token_bytes, number)
            goes_on = longer[0].log_probability - old.log_probability if longer else -math.inf
            ends, text = float(line[line_end]), old.text.rstrip()
            total = old.log_probability + ends
            for start in old.starts if text and total > above else ():
                last = places.get(start + len(text))
                if last is not None and words.can_end_span(last, is_preferred=ends >= goes_on):
                    best = Span(*words.extend_span(places[start], last), total)
                    above = total
                    break
            grown += longer
        grown.sort(key=lambda one: -one.log_probability)
        live = [one for one in grown[:BEAMS] if one.log_probability > above]
        if not live:
            break
        logits = continuation.append_tokens(
            [one.parent for one in live], [one.token for one in live]
        )
    return best


def _extend_hypothesis(
    passage: bytes, hypothesis: _AnswerHypothesis, log_probabilities: Tensor,
    get_token_bytes: Callable[[int], bytes], hypothesis_number: int,
) -> list[_AnswerHypothesis]:  # fmt: skip
    """Extends an answer's beginning by each of the likeliest tokens that continue the passage."""
    out: list[_AnswerHypothesis] = []
    values, tokens = log_probabilities.topk(min(CANDIDATES, log_probabilities.shape[0]))
    for value, token in zip(values.tolist(), tokens.tolist(), strict=True):
        piece, spaced = get_token_bytes(token), hypothesis.spaced
        if not piece:
            continue
        if not hypothesis.text and not spaced and piece.startswith(b" "):
            piece, spaced = piece[1:], True
        text = hypothesis.text + piece
        if text not in passage:  # nearly all are not, and this costs less than a look at each start
            continue
        starts = tuple([at for at in hypothesis.starts if passage.startswith(text, at)])
        if starts:
            total = hypothesis.log_probability + value
            out.append(_AnswerHypothesis(total, text, starts, spaced, hypothesis_number, token))
        if len(out) == BEAMS:
            break
    return out


BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
SPACE, BYTE_SPACE = "▁", "Ġ"
"""The letters for a space in the vocabularies of sentencepiece and byte-level BPE."""


def make_token_decoder(tokenizer: Any) -> Callable[[int], bytes]:
    """Returns a function that returns the bytes of a token id, or b"" for an unknown id."""
    example = tokenizer("a b", add_special_tokens=False)["input_ids"]
    names = "".join(tokenizer.convert_ids_to_tokens(example))
    letters = make_byte_by_letter()

    @cache
    def get_token_bytes(token: int) -> bytes:
        name = tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return b""
        if BYTE_SPACE in names:
            known = all(letter in letters for letter in name)
            return bytes(letters[letter] for letter in name) if known else name.encode()
        if SPACE in names:
            byte = BYTE_FALLBACK.fullmatch(name)
            return bytes([int(byte[1], 16)]) if byte else name.replace(SPACE, " ").encode()
        return str(tokenizer.decode([token])).encode()

    return get_token_bytes


def make_byte_by_letter() -> dict[str, int]:
    """Returns the byte for which each letter in a vocabulary of byte-level BPE stands."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {
        chr(0x100 + at): byte for at, byte in enumerate(hidden)
    }


MONEY = r"[$¢£¤¥֏؋৲৳૱௹฿៛\u20a0-\u20cf﷼＄￡￥￦]"
_FREE = r"(?<![^\s(\[{<\"'“”‘’«»„;,=|—`*_])"
"""A sign follows nothing, white space or an opening mark: `3-5` and `and/or` have no sign."""
SIGN = re.compile(
    rf"{_FREE}(?:"
    # -5, −5, .5, ~5, -.5, -$5, ¥500, #5, +49; no dash of `1914 –1918`
    rf"(?:[-−+±~≈<>≤≥#]|(?<!\d\s)–|{MONEY})*\.?(?=\d)"
    # (555) 1, (030) 12
    r"|\((?=\+?(?:\d{1,3}|0\d+)\)\s?\d)"
    # --keep, -v, #include, @name, /etc, //server, \alpha, ./run, ../up, .gitignore, ~/notes
    r"|(?:--?|#|@|//?|\\\\?|~/|\.{1,2}/|\.)(?=[^\W\d])"
    r")"
)
"""Matches the sign before a word, which belongs to the word and may be empty."""
UNIT = re.compile(rf"[%‰′″]|°[CF]?\b|°|{MONEY}(?!\d)")
"""Matches a unit that follows a number without a space."""
PAIRS = {"(": ")", "[": "]", "{": "}"}
_SPACELESS = re.compile(SPACELESS_CHARACTER)
_MONEY = re.compile(MONEY)
_POSSESSIVE = re.compile(r"['’]s\b")
_JOINERS = "\u200c\u200d\u00ad"
_BEFORE_CONSONANTS = "เแโใไເແໂໃໄ"
"""Vowels of Thai and Lao that are written before their consonant."""
_AFTER_CONSONANTS = "ะาำๅๆະາຳໆ"
_SMALL_KANA = "ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶー々ゝゞヽヾ"


class WordBoundaries:
    """Finds where spans of a text may start and end: at words, which include signs and units, such
    as `-5`, `¥500`, `--keep`, `/etc`, `5%` and `1,306`."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Whether the text has a script without spaces between words.
        self.spaceless = bool(_SPACELESS.search(text))
        signs = [sign.span() for sign in SIGN.finditer(text) if sign[0]]
        self._signs = {end: start for start, end in signs}
        self._sign_starts = {start for start, _ in signs}
        self._inside_signs = {at for start, end in signs for at in range(start + 1, end)}

    def can_start_span(self, offset: int) -> bool:
        """Whether a span may start at character `offset`: where a word or a word's sign starts."""
        here, before = self.text[offset : offset + 1], self.text[max(0, offset - 1) : offset]
        if offset in self._sign_starts or offset in self._signs:
            return True
        if not here or offset in self._inside_signs or _joins_previous_char(here):
            return False
        if _SPACELESS.match(here):
            return not _are_in_one_word(before, here)
        if _MONEY.match(here):
            return not _is_word_char(before)
        if not _is_word_char(here) or self._is_joining_mark(offset - 1, "'’°.,:-"):
            return False
        return not _is_word_char(before) or bool(_SPACELESS.match(before))

    def can_end_span(self, offset: int, is_preferred: bool = True) -> bool:
        """Whether a span may end before character `offset`: where a word ends, or, if the model
        prefers an end to more text (`is_preferred`), anywhere in a script without spaces."""
        before, after = self.text[max(0, offset - 1) : offset], self.text[offset : offset + 1]
        if not before or offset in self._inside_signs or offset in self._signs:
            return False
        if not after:
            return True
        if _joins_previous_char(after) or self._is_joining_mark(offset - 1):
            return False
        if _SPACELESS.match(after):
            inside = bool(_SPACELESS.match(before))
            return not inside or (is_preferred and not _are_in_one_word(before, after))
        possessive = _POSSESSIVE.match(self.text, offset)
        if _SPACELESS.match(before) or not _is_word_char(before) or possessive:
            return True
        return not (_is_word_char(after) or self._is_joining_mark(offset))

    def extend_span(self, start: int, end: int) -> tuple[int, int]:
        """Extends a span by an adjacent sign or unit, and by missing closing brackets."""
        start = self._signs.get(start, start)
        if self.text[end - 1].isdecimal() and (unit := UNIT.match(self.text, end)):
            end = unit.end()
        missing: list[str] = []
        for mark in self.text[start:end]:
            if mark in PAIRS:
                missing.append(PAIRS[mark])
            elif missing and mark == missing[-1]:
                missing.pop()
        while missing and self.text[end : end + 1] == missing.pop():
            end += 1
        return start, end

    def _is_joining_mark(self, offset: int, marks: str = "'’°.,:") -> bool:
        """Whether character `offset` is a mark inside a word or number, as in `1,306`."""
        if offset < 1 or self.text[offset] not in marks:
            return False
        before, after = self.text[offset - 1], self.text[offset + 1 : offset + 2]
        if self.text[offset] in ".,:":
            return before.isdecimal() and after.isdecimal()
        return _is_word_char(before) and _is_word_char(after)


def _is_word_char(character: str) -> bool:
    """Whether a character is a letter, a digit, `_`, a combining mark, or a joiner."""
    return character.isalnum() or character == "_" or _joins_previous_char(character)


def _joins_previous_char(character: str) -> bool:
    """Whether a character combines with the previous one, as combining marks and joiners do."""
    if not character or character.isascii():
        return False
    return unicodedata.category(character)[0] == "M" or character in _JOINERS + _AFTER_CONSONANTS


def _are_in_one_word(before: str, after: str) -> bool:
    """Whether two adjacent characters of a script without spaces always belong to one word."""
    if not before:
        return False
    katakana = all("\u30a1" <= one <= "\u30ff" and one != "・" for one in (before, after))
    return katakana or before in _BEFORE_CONSONANTS or after in _SMALL_KANA
