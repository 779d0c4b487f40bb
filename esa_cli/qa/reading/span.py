"""The default reader. A model reads each passage with the question and attends in both directions;
a trained head finds the log-odds that a passage contains the answer, and the first and the last
token of the answer. The answer is the most probable span of all passages; a calibrated probability
says how certain it is. Questions that ask for more than a quotation need another reader model."""

from __future__ import annotations

import json
import math
import re
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from esa_cli.errors import LengthError
from esa_cli.models import LoadedModel, parse_reference
from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.models.text_passes.text_forward import (
    FusedForward,
    LoraAdapter,
    can_fuse_model,
    iterate_group_states,
)
from esa_cli.qa.answering.prompt import validate_question
from esa_cli.qa.answering.reply import (
    NEEDS_READER,
    NOT_TOLD,
    Certainty,
    Quotation,
    Reply,
    Turn,
    find_last_answered_turn,
)
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import OTHER
from esa_cli.qa.finding.words import find_sentence_spans, find_shared_words
from esa_cli.qa.presets.preset import COMBINATION, FIELDS, HEAD, Preset, find_adapter_folder
from esa_cli.qa.reading.reader import Reader, SamplingParams, ignore_text
from esa_cli.qa.reading.table_rows import (
    find_cell_ends,
    find_named_row,
    find_other_cells,
    skip_column_name,
)
from esa_cli.qa.reading.word_boundaries import WordBoundaries
from esa_cli.system.progress import Progress, combine_progress_callbacks

ROOM = 1024
"""The number of tokens that are reserved for passages and answer."""
IN_CONTEXT, CONTEXT = 3, 250
"""The number of the best passages that are read again, with the characters on each side of them."""
UNMENTIONED = 4.5
"""The log-odds subtracted for a name that no document has: 33 of 41 questions are refused."""


class AnswerCombination(NamedTuple):
    """The conditional logistic regression that gives the probability that a passage's span is the
    answer, fit by `benchmarks/certainty.py` to answers to the development questions. Its
    weights are an intercept, those of a reading's log-odds and of its span's log-probability, and
    that of `Passage.late` or, without it, of the passage's score.

    `context_weights` are of these features with `Passage.late`, and of four features of a reading
    in context: 1, its log-odds, its span's log-probability, and whether the spans overlap; all four
    are 0 for a passage that is read only once. Without these weights none is read again."""

    weights: Sequence[float]
    bm25_weights: Sequence[float]
    answer: float  # the minimum probability of this certainty
    perhaps: float
    context_weights: Sequence[float] = ()

    @classmethod
    def load(cls, folder: Path | None) -> AnswerCombination:
        """Loads the combination of an adapter's folder; without one, log-odds and search score are
        added, and no answer is certain. Raises ModelError: the file is damaged."""
        path = None if folder is None else folder / COMBINATION
        if path is None or not path.exists():
            return cls((0.0, 1.0, 0.0, *5 * (0.0,)), (0.0, 1.0, 0.0, 1.0), math.inf, 0.0)
        with convert_read_errors(str(path), "use --set answer.adapter=null"):
            facts = json.loads(path.read_text("utf-8"))
            weights = list(map(float, facts["weights"]))
            bm25_weights = list(map(float, facts["bm25_weights"]))
            levels = float(facts["answer"]), float(facts["perhaps"])
            again = list(map(float, facts.get("context_weights", ())))
            return cls(weights, bm25_weights, *levels, again)

    def compute_log_odds(self, candidate: AnswerCandidate) -> float:
        """Returns the log-odds that the span of a passage answers, against no passage doing so."""
        if candidate.span is None:
            return -math.inf
        features = candidate.features
        every = (self.weights, self.bm25_weights, self.context_weights)
        weights = next(one for one in every if len(one) == len(features))
        return sum(weight * value for weight, value in zip(weights, features, strict=True))

    def get_certainty(self, probability: float) -> Certainty:
        if probability >= self.answer:
            return "answer"
        return "perhaps" if probability >= self.perhaps else "nothing"


class AnswerCandidate(NamedTuple):
    """The span of a passage, and the features of an `AnswerCombination`, which tell how probable it
    is that the span answers."""

    span: Span | None
    features: tuple[float, ...]


def compute_probabilities(log_odds: Sequence[float], answers: Sequence[str | None]) -> list[float]:
    """Returns the probability of each passage's answer if at most one answer is right, by log-odds
    against no passage having the answer. Passages with the same answer share it."""
    shares = torch.tensor([*log_odds, 0.0], dtype=torch.float64).softmax(0).tolist()
    totals = Counter[str | None]()
    for answer, share in zip(answers, shares, strict=False):
        totals[answer] += share
    return [totals[answer] for answer in answers]


class SpanReader(Reader):
    """A reader that quotes the most probable span of the best passage. Raises PresetError,
    ModelError: the adapter is missing, damaged or of another model."""

    def __init__(self, loaded: LoadedModel, preset: Preset) -> None:
        settings, config = preset.answer, loaded.text_model.config
        longest = getattr(config, "max_position_embeddings", None) or preset.context
        folder = None if settings.adapter is None else find_adapter_folder(settings.adapter)
        self.name = parse_reference(preset.model).name
        self.window_tokens, self._settings = min(preset.context, longest), settings
        self.passages = PassageReader.load(
            folder, loaded.text_model, loaded.tokenizer, settings.prompt, self.window_tokens
        )
        self.combination = AnswerCombination.load(folder)

    def count_question_tokens(self, question: str) -> int:
        """Counts the tokens of the prompt with a question. Raises UsageError: the question is no
        text. LengthError: it leaves no room for a passage."""
        validate_question(question)
        tokens = len(self.passages.encode_prompt(question, "").ids)
        need = tokens + min(ROOM, self.window_tokens // 2)
        if need > self.window_tokens:
            raise LengthError(
                f"the question and a passage take {need:,} tokens; the model's window "
                f"has {self.window_tokens:,} tokens",
                "ask a shorter question",
            )
        return tokens

    @torch.inference_mode()
    def rank_passages(
        self, question: str, passages: Sequence[Passage], unmentioned_share: float = 0.0,
        progress: Progress | None = None, named: Collection[str] = (),
        texts: Mapping[str, str] | None = None,
    ) -> list[Passage]:  # fmt: skip
        """Reads passages, and sorts them by the log-odds that their span is the answer.

        Args:
            unmentioned_share: the share of a name that no document has; lowers all log-odds.
            progress: called with (passages read, all passages); its exceptions pass through.
            named: the documents that the question names; the log-odds of others are lowered.
            texts: of the documents by their names, which give the best passages a context."""
        candidates = self.read_candidates(question, passages, texts or {}, progress)
        read, answers = list[Passage](), list[str | None]()
        for one, candidate in zip(passages, candidates, strict=True):
            score, span = self.combination.compute_log_odds(candidate), candidate.span
            if named and one.document not in named:
                score -= OTHER
            quote = span and (one.start + span.start, one.start + span.end)
            answers.append(span and normalise_answer(one.text[span.start : span.end]))
            read.append(replace(one, score=score, quote=quote))
        doubt = UNMENTIONED * unmentioned_share
        shares = compute_probabilities([one.score - doubt for one in read], answers)
        ranked = [replace(one, probability=share) for one, share in zip(read, shares, strict=True)]
        return sorted(ranked, key=lambda one: -one.score)

    def read_candidates(
        self, question: str, passages: Sequence[Passage], texts: Mapping[str, str],
        progress: Progress | None = None,
    ) -> list[AnswerCandidate]:  # fmt: skip
        """Reads passages and, unless an answer is certain then, the best `IN_CONTEXT` of them again
        with their context, if `texts` has their document; see `rank_passages`. Of a table the row
        that the question names is read, at first alone."""
        rows = [find_named_row(one.text, question) for one in passages]
        parts = [one.text[start:end] for one, (start, end) in zip(passages, rows, strict=True)]
        readings = self.passages.read_passages(question, parts, progress)
        out = list[AnswerCandidate]()
        for one, (row, _), (odds, span, _) in zip(passages, rows, readings, strict=True):
            span = span and Span(row + span.start, row + span.end, span.log_probability)
            share = -math.inf if span is None else span.log_probability
            out.append(AnswerCandidate(span, (1.0, odds, share, *(one.late or (one.score,)))))
        if self.combination.context_weights and not self._is_certain(passages, out):
            out = self._add_context(question, passages, texts, out)
        return out

    def _is_certain(
        self, passages: Sequence[Passage], candidates: Sequence[AnswerCandidate]
    ) -> bool:
        log_odds = [self.combination.compute_log_odds(one) for one in candidates]
        answers = [
            one.span and normalise_answer(passage.text[one.span.start : one.span.end])
            for passage, one in zip(passages, candidates, strict=True)
        ]
        shares = compute_probabilities(log_odds, answers)
        return max(shares, default=0.0) >= self.combination.answer

    def _add_context(
        self, question: str, passages: Sequence[Passage], texts: Mapping[str, str],
        candidates: Sequence[AnswerCandidate],
    ) -> list[AnswerCandidate]:  # fmt: skip
        """Reads the best passages in context, and adds the features of these readings to those of
        all passages with late interaction."""
        scores = [self.combination.compute_log_odds(one) for one in candidates]
        order = sorted(range(len(passages)), key=lambda at: -scores[at])
        best = [at for at in order if passages[at].late and passages[at].document in texts]
        best = best[:IN_CONTEXT]
        wide = [_widen(passages[at], texts[passages[at].document]) for at in best]
        again = self.passages.read_passages(question, [text for text, _ in wide])
        more = dict.fromkeys(order, (0.0, 0.0, 0.0, 0.0))
        for at, (_, shift), (odds, other, _) in zip(best, wide, again, strict=True):
            span = candidates[at].span
            if span and other:
                same = other.start + shift < span.end and span.start < other.end + shift
                more[at] = 1.0, odds, other.log_probability, float(same)
        return [
            one if passages[at].late is None else one._replace(features=one.features + more[at])
            for at, one in enumerate(candidates)
        ]

    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: SamplingParams, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        """Answers as `Reader.answer` describes, from passages in the order of `rank_passages`."""
        reply = self._quote_best_passage(question, passages, history)
        on_text(reply.text_with_certainty)
        return reply

    def _quote_best_passage(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn]
    ) -> Reply:
        best = passages[0] if passages else None
        probability = None if best is None or best.quote is None else best.probability
        certainty = self.combination.get_certainty(probability or 0.0)
        if best is not None and certainty != "answer" and self._settings.form == "auto":
            texts = [one.text for one in passages[:3]]
            odds = [one.request_log_odds for one in self.passages.read_passages(question, texts)]
            if sum(odds) / len(odds) >= REQUEST:
                return Reply(NEEDS_READER, found=False, certainty="nothing")
        if best is None or best.quote is None or certainty == "nothing":
            return Reply(NOT_TOLD, found=False, certainty="nothing", probability=probability)
        start, end = best.quote
        quoted = collapse_spaces(best.text[start - best.start : end - best.start])
        if certainty == "answer" and not self._is_in_answering_sentence(question, best, history):
            certainty = "perhaps"
        encode = self.passages.tokenizer
        tokens = encode(f" {quoted}", add_special_tokens=False, verbose=False)["input_ids"]
        return Reply(
            quoted, certainty=certainty, probability=probability, answer_tokens=len(tokens),
            quotation=Quotation(best.document, start, end),
        )  # fmt: skip

    def _is_in_answering_sentence(
        self, question: str, passage: Passage, history: Sequence[Turn]
    ) -> bool:
        """Whether the sentences of a quotation, read without their neighbours, answer more probably
        than not. Wrong spans of right passages, such as another year's figure, seldom do."""
        assert passage.quote is not None
        start, end = (at - passage.start for at in passage.quote)
        spans = [at for at in find_sentence_spans(passage.text) if at[0] < end and start < at[1]]
        text = passage.text[spans[0][0] : spans[-1][1]] if spans else passage.text
        last = find_last_answered_turn(history)
        asked = [question, *([f"{last.question} {question}"] if last else [])]
        return any(self.passages.read_passages(one, [text])[0].log_odds >= 0 for one in asked)


def _widen(passage: Passage, text: str) -> tuple[str, int]:
    """Returns a passage with `CONTEXT` characters of its document on each side, to whole words, and
    where it begins, counted from the passage's beginning."""
    low, high = max(0, passage.start - CONTEXT), min(len(text), passage.end + CONTEXT)
    while 0 < low < passage.start and not text[low - 1].isspace():
        low += 1
    while passage.end < high < len(text) and not text[high].isspace():
        high -= 1
    return text[low:high], low - passage.start


# -- Reading passages

MAX_TOKENS = 32
"""The maximum number of tokens of a span."""
PATIENCE = 3
"""The factor of `MAX_TOKENS` in scripts without spaces, whose characters take several tokens."""
HEAD_VECTORS, HEAD_BIASES = {"start", "end", "has", "request"}, {"bias", "request_bias"}
MAX_KEPT = 64
"""The number of a question's readings beyond which they are not kept for its next passages."""
REQUEST = 3.0
"""The minimum mean log-odds, with three passages, of a question that asks for more than a
quotation: with one, 83 % of such questions in English, 49 % in other languages and 0.3 % of other
questions reach them, of pairs about texts that the head was not fitted to."""
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

    Without an adapter the model does not read: the span is the sentence that shares the most words
    with the question, and all log-odds are 0.

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
    """Returns where the negation before a span begins, or else `start`: without it, "allowed" would
    be quoted from "not allowed" and "not be allowed"."""
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
