"""Reads a passage with a question: a model attends in both directions, and a trained head finds the
log-odds that the passage contains the answer, and the first and the last token of the answer."""

from __future__ import annotations

import math
import re
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.models.text_passes.text_forward import (
    FusedForward,
    LoraAdapter,
    can_fuse_model,
    iterate_group_states,
)
from esa_cli.qa.finding.words import find_sentence_spans, find_shared_words
from esa_cli.qa.presets.preset import FIELDS, HEAD
from esa_cli.qa.reading.table_rows import find_cell_ends, find_other_cells, skip_column_name
from esa_cli.qa.reading.word_boundaries import WordBoundaries
from esa_cli.system.progress import Progress, combine_progress_callbacks

MAX_TOKENS = 32
"""The maximum number of tokens of a span."""
PATIENCE = 3
"""The factor of `MAX_TOKENS` in scripts without spaces, whose characters take several tokens."""
HEAD_VECTORS, HEAD_BIASES = {"start", "end", "has", "request"}, {"bias", "request_bias"}
MAX_KEPT = 64
"""The number of a question's readings beyond which they are not kept for its next passages."""
_NEGATION = re.compile(
    r"(?:(?<!\w)(?<!or )(?:not|no|never|cannot|\w+n['’]t|nicht|nie|niemals|kein\w*|nunca|jamás|ne"
    r"|(?:n(?:e\s|['’])\w+\s)?(?:pas|jamais))"
    r"(?:[ \t]+|(?<!: no)\n)(?:(?!and |but |or |und )\w{1,3}\s+)?|[不没沒未])$",
    re.IGNORECASE,
)
"""Matches a negation at the end, and a short word after it; a value such as `key: no` is none."""
_ARTICLES = frozenset(("a", "an", "the"))


def collapse_spaces(text: str) -> str:
    """Returns the text in one line, with one space in place of each run of white space."""
    return " ".join(text.split())


def normalise_answer(text: str) -> str:
    """Returns the words of an answer in lower case, without articles unless there is no other."""
    words = re.findall(r"\w+", text.lower())
    return " ".join([word for word in words if word not in _ARTICLES] or words)


class EncodedPrompt(NamedTuple):
    """The token ids of a prompt, the number of the passage's first token, and the characters
    [start, end) of the passage, with collapsed spaces, that each token of the passage covers."""

    ids: list[int]
    first: int
    offsets: list[tuple[int, int]]


class Span(NamedTuple):
    """Characters [start, end) of a passage, with the log-probability that they are the answer."""

    start: int
    end: int
    log_probability: float


class PassageReading(NamedTuple):
    """The log-odds that a passage contains the answer, the passage's most probable span, or None if
    it has no word, and the log-odds that the question asks for more than a quotation."""

    log_odds: float
    span: Span | None
    request_log_odds: float = -math.inf


class PassageReader:
    """Reads passages with a model, its LoRA adapter and the adapter's head.

    Without an adapter the span is the sentence with most words of the question; log-odds are 0.

    Args:
        template: of a prompt, with `{passage}` and `{question}`; at its last token the model says
            whether the passage contains the answer.
        head: the vectors (H,) `start`, `end`, `has` and `request`, whose products with a token's
            hidden state are logits, and (1,) the `bias` of `has` and the `request_bias`.
        context: the model's window in tokens; the ends of longer passages are not read."""

    def __init__(
        self, model: Any, tokenizer: Any, template: str, adapter: LoraAdapter | None = None,
        head: Mapping[str, Tensor] | None = None, context: int = sys.maxsize,
    ) -> None:  # fmt: skip
        self.model, self.tokenizer = model, tokenizer
        self.template, self.context = template, context
        self._adapter, self._head = adapter, head
        self._question, self._readings = "", dict[str, PassageReading]()

    @classmethod
    def load(
        cls, folder: Path | None, model: Any, tokenizer: Any, template: str,
        context: int = sys.maxsize,
    ) -> PassageReader:  # fmt: skip
        """Loads the adapter and the head of a model from a folder, or reads without them. Raises
        ModelError: a file is missing, damaged or of another model."""
        if folder is None:
            return cls(model, tokenizer, template, context=context)
        weight, size = next(model.parameters()), model.config.hidden_size
        adapter = LoraAdapter.load(folder, model)
        adapter.match_device_and_dtype(weight)
        with convert_read_errors(f"the adapter {folder}", "use --set answer.adapter=null"):
            no_request = {"request": torch.zeros(size), "request_bias": torch.tensor([-100.0])}
            head = no_request | load_file(folder / HEAD)
            sizes = {name: len(tensor.flatten()) for name, tensor in head.items()}
            wanted = dict.fromkeys(HEAD_VECTORS, size) | dict.fromkeys(HEAD_BIASES, 1)
            if sizes != wanted:
                raise ValueError(f"{HEAD} must have {', '.join(sorted(wanted))} of the model")
            if not all(tensor.isfinite().all() for tensor in head.values()):
                raise ValueError(f"{HEAD} must have finite numbers")
        head = {name: tensor.float().to(weight.device) for name, tensor in head.items()}
        return cls(model, tokenizer, template, adapter, head, context)

    @cached_property
    def _fused(self) -> FusedForward | None:
        can_fuse = can_fuse_model(self.model)
        return FusedForward(self.model, adapter=self._adapter) if can_fuse else None

    def read_passages(
        self, question: str, passages: Sequence[str], progress: Progress | None = None
    ) -> list[PassageReading]:
        """Reads all passages, each with the same question, in groups of a few passages, and calls
        `progress` before and after each group with (passages read, all passages). The last readings
        of a question are kept, as its best passages are asked for more than one thing."""
        if self._adapter is None:
            return [PassageReading(0.0, _find_matching_sentence(question, one)) for one in passages]
        if self._question != question or len(self._readings) > MAX_KEPT:
            self._question, self._readings = question, {}
        readings = self._readings
        new = [one for one in dict.fromkeys(passages) if one not in readings]
        prompts = [self.encode_prompt(question, one) for one in new]
        progress = combine_progress_callbacks(progress)
        count = len(readings)
        progress(0, len(prompts))
        for group, states in self.iterate_states([prompt.ids for prompt in prompts]):
            for n, rows in zip(group, states, strict=True):
                readings[new[n]] = self._find_answer(question, new[n], prompts[n], rows)
            progress(len(readings) - count, len(prompts))
        return [readings[one] for one in passages]

    def encode_prompt(self, question: str, passage: str) -> EncodedPrompt:
        """Encodes a prompt with what fits of a passage; runs of white space become one space."""
        passage = collapse_spaces(passage)
        texts = dict(zip(FIELDS, (passage, collapse_spaces(question)), strict=True))
        parts = re.split(r"(\{passage\}|\{question\})", self.template)
        start = sum(len(texts.get(part, part)) for part in parts[: parts.index(FIELDS[0])])
        end = start + len(passage)
        out = self.tokenizer(
            "".join(texts.get(part, part) for part in parts), add_special_tokens=False,
            split_special_tokens=True, return_offsets_mapping=True, verbose=False,
        )  # fmt: skip
        ids, places = list(out["input_ids"]), enumerate(out["offset_mapping"])
        covered = [(n, a, b) for n, (a, b) in places if a < end and start < b]
        offsets = [(max(a, start) - start, min(b, end) - start) for _, a, b in covered]
        over = len(ids) - self.context
        if over > 0 and passage:
            room = offsets[-over - 1][1] if over < len(offsets) else 0
            return self.encode_prompt(question, passage[: min(room, len(passage) - 1)])
        return EncodedPrompt(ids, covered[0][0] if covered else 0, offsets)

    def iterate_states(
        self, sequences: Sequence[Sequence[int]]
    ) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Yields groups of sequences with hidden states, as `iterate_group_states` does."""
        assert self._adapter is not None
        depth = len(self.model.base_model.layers)
        given = self.model, self._adapter, self._fused, sequences, depth
        return iterate_group_states(*given, bidirectional=True)

    def _find_answer(
        self, question: str, passage: str, prompt: EncodedPrompt, states: Tensor
    ) -> PassageReading:
        """Returns the log-odds and the span of a passage by the hidden states (T, H)."""
        assert self._head is not None, "the adapter has a head"
        head, end = self._head, prompt.first + len(prompt.offsets)
        last = states[len(prompt.ids) - 1]
        odds = last @ head["has"].flatten() + head["bias"]
        request = last @ head["request"].flatten() + head["request_bias"]
        logits = states[prompt.first : end] @ torch.stack((head["start"], head["end"])).T
        collapsed = collapse_spaces(passage)
        starts, ends = logits.T.cpu()
        places = _map_collapsed_offsets(passage)
        cells = [bisect_left(places, end) for end in find_cell_ends(passage)]
        others = [
            (bisect_left(places, a), bisect_left(places, b))
            for a, b in find_other_cells(passage, question)
        ]
        span = find_most_probable_span(collapsed, starts, ends, prompt.offsets, cells, others)
        if span is not None:
            end = places[span.end - 1] + 1
            start = skip_column_name(passage, places[span.start], end)
            span = Span(find_negation(passage, start), end, span.log_probability)
        return PassageReading(float(odds), span, float(request))


def find_most_probable_span(
    passage: str, start_logits: Tensor, end_logits: Tensor, offsets: Sequence[tuple[int, int]],
    cell_ends: Sequence[int] = (), other_cells: Sequence[tuple[int, int]] = (),
) -> Span | None:  # fmt: skip
    """Finds the span of a passage, with collapsed spaces, that starts and ends at words and has the
    highest product of the probabilities of its first and its last token. Returns None for a passage
    without words. The logits (n,) and the `offsets` are of the passage's n tokens. No span goes
    beyond the next one of the `cell_ends`, or out of a speech, or starts in `other_cells`."""
    words = WordBoundaries(passage)
    starts = [start + (passage[start:end][:1] == " ") for start, end in offsets]
    ends = [end for _, end in offsets]
    pairs = zip(starts, ends, strict=True)
    can_start = torch.tensor([
        a < b and words.can_start_span(a) and not any(x <= a < y for x, y in other_cells)
        for a, b in pairs
    ]).bool()  # fmt: skip
    can_end = torch.tensor([passage[b - 1] != " " and words.can_end_span(b) for b in ends]).bool()
    stops = [words.find_last_end(start, cell_ends) for start in starts]
    within = torch.tensor(ends) <= torch.tensor(stops)[:, None]
    scores = start_logits.log_softmax(0)[:, None] + end_logits.log_softmax(0)
    longest = MAX_TOKENS * (PATIENCE if words.spaceless else 1)
    allowed = (can_start[:, None] & can_end & within).triu().tril(longest - 1)
    if not allowed.any():
        return None
    first, last = divmod(int(scores.masked_fill(~allowed, -torch.inf).argmax()), len(offsets))
    return Span(*words.extend_span(starts[first], ends[last]), float(scores[first, last]))


def find_negation(passage: str, start: int) -> int:
    """Returns where the negation before a span begins, as in "not be allowed", or else `start`."""
    found = _NEGATION.search(passage, max(0, start - 30), start)
    return found.start() if found else start


def _find_matching_sentence(question: str, passage: str) -> Span | None:
    """Finds the first sentence of a passage that shares the most words with a question."""
    if not any(map(str.isalnum, passage)):
        return None
    words, sentences = find_shared_words(passage, question), find_sentence_spans(passage)
    counts = [sum(start <= word < end for word, _ in words) for start, end in sentences]
    return Span(*sentences[counts.index(max(counts))], 0.0)


def _map_collapsed_offsets(passage: str) -> list[int]:
    """Returns the offset in `passage` of each character of `collapse_spaces(passage)`."""
    places: list[int] = []
    for word in re.finditer(r"\S+", passage):
        places += range(word.start() - bool(places), word.end())  # with the space before it
    return places
