"""The default reader. The answer is the most probable span of all passages, each of which a model
reads with the question; a calibrated probability says how certain the answer is. Questions that ask
for more than a quotation need another reader model."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from esa_cli.errors import LengthError
from esa_cli.models import LoadedModel, parse_reference
from esa_cli.models.files.checkpoint_files import convert_read_errors
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
from esa_cli.qa.finding.words import find_overlapping_sentences
from esa_cli.qa.presets.preset import COMBINATION, Preset, find_adapter_folder
from esa_cli.qa.reading.passage_reader import PassageReader, Span, collapse_spaces, normalise_answer
from esa_cli.qa.reading.reader import Reader, SamplingParams, ignore_text
from esa_cli.qa.reading.table_rows import find_named_row
from esa_cli.system.progress import Progress

ROOM = 1024
"""The number of tokens that are reserved for passages and answer."""
IN_CONTEXT, CONTEXT = 3, 250
"""The number of the best passages that are read again, with the characters on each side of them."""
UNMENTIONED = 4.5
"""The log-odds subtracted for a name that no document has: 33 of 41 questions are refused."""
REQUEST = 3.0
"""The minimum mean log-odds, with three passages, of a question that asks for more than a
quotation: with one, 83 % of such questions in English, 49 % in other languages and 0.3 % of other
questions reach them, of pairs about texts that the head was not fitted to."""


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
    """The span of a passage, its normalised text, and the features of an `AnswerCombination`."""

    span: Span | None
    answer: str | None
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
        read = list[Passage]()
        for one, candidate in zip(passages, candidates, strict=True):
            score, span = self.combination.compute_log_odds(candidate), candidate.span
            if named and one.document not in named:
                score -= OTHER
            quote = span and (one.start + span.start, one.start + span.end)
            read.append(replace(one, score=score, quote=quote))
        doubt = UNMENTIONED * unmentioned_share
        answers = [one.answer for one in candidates]
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
            answer = span and normalise_answer(one.text[span.start : span.end])
            features = (1.0, odds, share, *(one.late or (one.score,)))
            out.append(AnswerCandidate(span, answer, features))
        if self.combination.context_weights:
            log_odds = [self.combination.compute_log_odds(one) for one in out]
            shares = compute_probabilities(log_odds, [one.answer for one in out])
            if max(shares, default=0.0) < self.combination.answer:
                order = sorted(range(len(out)), key=lambda at: -log_odds[at])
                return self._add_context(question, passages, texts, out, order)
        return out

    def _add_context(
        self, question: str, passages: Sequence[Passage], texts: Mapping[str, str],
        candidates: Sequence[AnswerCandidate], order: Sequence[int],
    ) -> list[AnswerCandidate]:  # fmt: skip
        """Reads the best passages, of all in `order`, in context, and adds the features of these
        readings to those of all passages with late interaction."""
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
            quotations=(Quotation(best.document, start, end),),
        )  # fmt: skip

    def _is_in_answering_sentence(
        self, question: str, passage: Passage, history: Sequence[Turn]
    ) -> bool:
        """Whether the sentences of a quotation, read without their neighbours, answer more probably
        than not. Wrong spans of right passages, such as another year's figure, seldom do."""
        assert passage.quote is not None
        start, end = (at - passage.start for at in passage.quote)
        spans = find_overlapping_sentences(passage.text, start, end)
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
