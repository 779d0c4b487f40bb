"""Reads passages with a question: a model attends in both directions, and a trained head finds the
log-odds that a passage contains the answer, and the first and the last token of the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.models.text_passes.model_forward import compute_hidden_states
from esa_cli.models.text_passes.text_forward import (
    FusedForward,
    LoraAdapter,
    can_fuse_model,
    iterate_groups,
    pad_sequences,
)
from esa_cli.qa.finding.words import find_sentence_spans, find_shared_words
from esa_cli.qa.presets.preset import FIELDS, HEAD
from esa_cli.qa.reading.word_boundaries import WordBoundaries

MAX_TOKENS = 32
"""The maximum number of tokens of a span."""
PATIENCE = 3
"""The factor of `MAX_TOKENS` in scripts without spaces, whose characters take several tokens."""
HEAD_NAMES = {"start", "end", "has", "bias"}


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


class EncodedPrompt(NamedTuple):
    """The token ids of a prompt, the number of the passage's first token, and the characters
    [start, end) of the passage, with collapsed spaces, that each token of the passage covers."""

    ids: list[int]
    first: int
    offsets: list[tuple[int, int]]


class PassagePrompt:
    """Encodes prompts of a passage and a question by a template with `{passage}` and `{question}`,
    whose last token is the one at which the model says whether the passage contains the answer."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        self.tokenizer, self.template = tokenizer, template

    def encode_prompt(self, question: str, passage: str) -> EncodedPrompt:
        """Encodes a prompt; runs of white space in question and passage become one space."""
        texts = dict(zip(FIELDS, map(collapse_spaces, (passage, question)), strict=True))
        parts = [
            (texts.get(part, part), part == FIELDS[0])
            for part in re.split(r"(\{passage\}|\{question\})", self.template)
        ]
        place = [is_passage for _, is_passage in parts].index(True)
        start = sum(len(text) for text, _ in parts[:place])
        end = start + len(parts[place][0])
        out = self.tokenizer(
            "".join(text for text, _ in parts), add_special_tokens=False,
            split_special_tokens=True, return_offsets_mapping=True, verbose=False,
        )  # fmt: skip
        numbers = [n for n, (a, b) in enumerate(out["offset_mapping"]) if a < end and start < b]
        spans = [out["offset_mapping"][n] for n in numbers]
        offsets = [(max(a, start) - start, min(b, end) - start) for a, b in spans]
        return EncodedPrompt(list(out["input_ids"]), numbers[0] if numbers else 0, offsets)

    def count_answer_tokens(self, answer: str) -> int:
        """Counts the tokens of an answer after a space."""
        text = f" {collapse_spaces(answer)}"
        return len(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


class Span(NamedTuple):
    """Characters [start, end) of a passage, with the log-probability that they are the answer."""

    start: int
    end: int
    log_probability: float


class PassageReading(NamedTuple):
    """The log-odds that a passage contains the answer, and the passage's most probable span, or
    None if the passage has no word."""

    log_odds: float
    span: Span | None


class PassageReader:
    """Reads passages with a model, its LoRA adapter and the adapter's head.

    Without an adapter the model does not read: the span is the sentence that shares the most words
    with the question, and all log-odds are 0.

    Args:
        head: the vectors (H,) `start`, `end` and `has`, whose products with a token's hidden state
            are logits, and the `bias` (1,) of `has`.
        context: the model's window in tokens; the ends of longer passages are not read.
        fixed: whether model and adapter are no longer trained, so that fused weights are cached."""

    def __init__(
        self, model: Any, prompt: PassagePrompt, adapter: LoraAdapter | None = None,
        head: Mapping[str, Tensor] | None = None, context: int | None = None, *,
        fixed: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.prompt, self.context = model, prompt, context
        self._adapter, self._head, self._fuses = adapter, head, fixed and can_fuse_model(model)

    @classmethod
    def load(
        cls, folder: Path | None, model: Any, prompt: PassagePrompt, context: int | None = None
    ) -> PassageReader:
        """Loads the adapter and the head of a model from a folder, or reads without them. Raises
        ModelError: a file is missing, damaged or of another model."""
        if folder is None:
            return cls(model, prompt, context=context)
        weight, size = next(model.parameters()), model.config.hidden_size
        adapter = LoraAdapter.load(folder, model)
        adapter.match_device_and_dtype(weight)
        with convert_read_errors(f"the adapter {folder}", "use --set answer.adapter=null"):
            head = load_file(folder / HEAD)
            sizes = {name: len(tensor.flatten()) for name, tensor in head.items()}
            if sizes != dict.fromkeys(HEAD_NAMES, size) | {"bias": 1}:
                raise ValueError(f"{HEAD} must have {', '.join(sorted(HEAD_NAMES))} of the model")
            if not all(tensor.isfinite().all() for tensor in head.values()):
                raise ValueError(f"{HEAD} must have finite numbers")
        head = {name: tensor.float().to(weight.device) for name, tensor in head.items()}
        return cls(model, prompt, adapter, head, context, fixed=True)

    @cached_property
    def _fused(self) -> FusedForward:
        return FusedForward(self.model, adapter=self._adapter)

    def read_passages(self, question: str, passages: Sequence[str]) -> list[PassageReading]:
        """Reads all passages, each with the same question, in a few forward calls."""
        if self._head is None:
            return [PassageReading(0.0, _find_matching_sentence(question, one)) for one in passages]
        prompts = [self.prompt.encode_prompt(question, self._clip(question, p)) for p in passages]
        out: dict[int, PassageReading] = {}
        with nullcontext() if self._adapter is None or self._fuses else self._adapter.apply():
            order = sorted(range(len(prompts)), key=lambda n: len(prompts[n].ids))
            for group in iterate_groups(order):
                states = self._compute_states([prompts[n].ids for n in group])
                for n, rows in zip(group, states, strict=True):
                    out[n] = self._find_answer(passages[n], prompts[n], rows)
        return [out[n] for n in range(len(prompts))]

    def _clip(self, question: str, passage: str) -> str:
        if self.context is None:
            return passage
        encode = self.prompt.encode_prompt
        return clip_text(passage, self.context, lambda text: len(encode(question, text).ids))

    def _compute_states(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Returns hidden states (B, T, H) of B token sequences, padded to T tokens."""
        ids, device = pad_sequences(sequences), self.model.device
        lengths = torch.tensor([len(one) for one in sequences], device=device)
        if self._fuses:
            return self._fused.compute_states(ids, lengths)
        layers = len(self.model.base_model.layers)
        return compute_hidden_states(self.model, ids, layers, lengths)

    def _find_answer(self, passage: str, prompt: EncodedPrompt, states: Tensor) -> PassageReading:
        """Returns the log-odds and the span of a passage by the hidden states (T, H)."""
        assert self._head is not None, "the adapter has a head"
        head, end = self._head, prompt.first + len(prompt.offsets)
        odds = states[len(prompt.ids) - 1] @ head["has"].flatten() + head["bias"]
        logits = states[prompt.first : end] @ torch.stack((head["start"], head["end"])).T
        collapsed = collapse_spaces(passage)
        starts, ends = logits.T.cpu()
        span = find_most_probable_span(collapsed, starts, ends, prompt.offsets)
        if span is not None:
            places = _map_collapsed_offsets(passage)
            span = Span(places[span.start], places[span.end - 1] + 1, span.log_probability)
        return PassageReading(float(odds), span)


def find_most_probable_span(
    passage: str, start_logits: Tensor, end_logits: Tensor, offsets: Sequence[tuple[int, int]]
) -> Span | None:
    """Finds the span of a passage with the highest product of the probabilities of its first and
    its last token, which starts and ends at words. Returns None for a passage without words.

    Args:
        passage: with collapsed spaces.
        start_logits, end_logits: (n,), of the n tokens of the passage.
        offsets: the characters [start, end) of each token."""
    words = WordBoundaries(passage)
    starts = [start + (passage[start:end][:1] == " ") for start, end in offsets]
    ends = [end for _, end in offsets]
    can_start = torch.tensor([
        start < end and words.can_start_span(start)
        for start, end in zip(starts, ends, strict=True)
    ], dtype=torch.bool)  # fmt: skip
    can_end = torch.tensor([
        passage[end - 1] != " " and words.can_end_span(end) for end in ends
    ], dtype=torch.bool)  # fmt: skip
    scores = start_logits.log_softmax(0)[:, None] + end_logits.log_softmax(0)
    longest = MAX_TOKENS * (PATIENCE if words.spaceless else 1)
    allowed = (can_start[:, None] & can_end).triu().tril(longest - 1)
    if not allowed.any():
        return None
    best = int(scores.masked_fill(~allowed, -torch.inf).argmax())
    first, last = divmod(best, len(offsets))
    span = words.extend_span(starts[first], ends[last])
    return Span(*span, float(scores[first, last]))


def _find_matching_sentence(question: str, passage: str) -> Span | None:
    """Finds the first sentence of a passage that shares the most words with a question."""
    words = [start for start, _ in find_shared_words(passage, question)]
    sentences = find_sentence_spans(passage)
    counts = [sum(start <= word < end for word in words) for start, end in sentences]
    if not any(map(str.isalnum, passage)):
        return None
    return Span(*sentences[counts.index(max(counts))], 0.0)


def _map_collapsed_offsets(passage: str) -> list[int]:
    """Returns the offset in `passage` of each character of `collapse_spaces(passage)`."""
    places: list[int] = []
    for word in re.finditer(r"\S+", passage):
        places += range(word.start() - bool(places), word.end())  # with the space before it
    return places
