"""The default reader: it answers with the most probable span of the passages that were found, and
says with a calibrated probability how certain the answer is.

A question that asks for more than a quotation, such as a summary, needs another reader model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from esa_cli.errors import LengthError
from esa_cli.models import LoadedModel, parse_reference
from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.qa.answering.question_form import expand_ellipsis, validate_question, wants_free_text
from esa_cli.qa.answering.reply import NEEDS_READER, NOT_TOLD, Certainty, Quotation, Reply, Turn
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.preset import COMBINATION, Preset, find_adapter_folder
from esa_cli.qa.reading.passage_reader import (
    PassagePrompt,
    PassageReader,
    PassageReading,
    collapse_spaces,
)
from esa_cli.qa.reading.reader import SamplingParams, ignore_text

ROOM = 1024
"""The number of tokens that are reserved for passages and answer."""
UNMENTIONED = 4.5
"""The log-odds subtracted for a name that no document has: 33 of 41 questions are refused."""


class AnswerCombination:
    """The logistic regression that gives the probability that a passage's span is the answer, fit
    by `benchmarks/certainty.py` to answers to the development questions.

    Args:
        weights: an intercept and the weights of a reading's log-odds and of its span's
            log-probability, then of `Passage.late`.
        bm25_weights: the first three, and that of the score, for passages without `late`.
        answer, perhaps: the minimum probabilities of these certainties."""

    def __init__(
        self, weights: Sequence[float], bm25_weights: Sequence[float], answer: float, perhaps: float
    ) -> None:
        self.weights, self.bm25_weights = weights, bm25_weights
        self.answer, self.perhaps = answer, perhaps

    @classmethod
    def load(cls, folder: Path | None) -> AnswerCombination:
        """Loads the combination of an adapter's folder; without one, log-odds and search score are
        added, and no answer is certain. Raises ModelError: the file is damaged."""
        path = None if folder is None else folder / COMBINATION
        if path is None or not path.exists():
            return cls((0.0, 1.0, 0.0, *5 * (0.0,)), (0.0, 1.0, 0.0, 1.0), math.inf, 0.0)
        with convert_read_errors(str(path), "use --set answer.adapter=null"):
            facts = json.loads(path.read_text("utf-8"))
            weights, bm25_weights = (
                [float(value) for value in facts[name]] for name in ("weights", "bm25_weights")
            )
            return cls(weights, bm25_weights, float(facts["answer"]), float(facts["perhaps"]))

    def compute_log_odds(self, passage: Passage, reading: PassageReading) -> float:
        """Returns the log-odds that the span of a passage that was found is the answer."""
        if reading.span is None:
            return -math.inf
        weights, found = self.weights, passage.late
        if found is None:
            weights, found = self.bm25_weights, (passage.score,)
        features = (1.0, reading.log_odds, reading.span.log_probability, *found)
        return sum(weight * value for weight, value in zip(weights, features, strict=True))

    def get_certainty(self, probability: float) -> Certainty:
        """Returns the certainty of an answer with a probability."""
        if probability >= self.answer:
            return "answer"
        return "perhaps" if probability >= self.perhaps else "nothing"


class SpanReader:
    """A reader that answers by quoting the most probable span of the best passage.

    Args:
        loaded: the models; `text_model` reads passages.
        window: the maximum number of tokens in one input of the model.

    Raises PresetError, ModelError: the adapter is missing, damaged or of another model."""

    nbytes = 0

    def __init__(self, loaded: LoadedModel, preset: Preset, window: int) -> None:
        settings = preset.answer
        folder = None if settings.adapter is None else find_adapter_folder(settings.adapter)
        prompt = PassagePrompt(loaded.tokenizer, settings.prompt)
        self.name = parse_reference(preset.model).name
        self.passages = PassageReader.load(folder, loaded.text_model, prompt, window)
        self.combination = AnswerCombination.load(folder)
        self._window, self._settings = window, settings

    def check_length(self, question: str) -> int:
        """Counts a question's tokens in the prompt, and checks that they leave room for passages.
        Raises UsageError: the question is empty, or not UTF-8. LengthError: it is too long."""
        validate_question(question)
        tokens = len(self.passages.prompt.encode_prompt(question, "").ids)
        need = tokens + min(ROOM, self._window // 2)
        if need > self._window:
            raise LengthError(
                f"the question and a passage take {need:,} tokens; the model's window "
                f"has {self._window:,} tokens",
                "ask a shorter question",
            )
        return tokens

    @torch.inference_mode()
    def rank_passages(
        self, question: str, passages: Sequence[Passage], unmentioned_share: float = 0.0
    ) -> list[Passage]:
        """Reads passages, and sorts them by the probability that their span is the answer.

        Args:
            unmentioned_share: the share of a name that no document has; lowers all log-odds."""
        doubt, out = UNMENTIONED * unmentioned_share, list[Passage]()
        readings = self.passages.read_passages(question, [one.text for one in passages])
        for one, reading in zip(passages, readings, strict=True):
            score = self.combination.compute_log_odds(one, reading)
            probability = 1 / (1 + math.exp(min(doubt - score, 700.0)))
            span = reading.span
            quote = None if span is None else (one.start + span.start, one.start + span.end)
            out.append(replace(one, score=score, probability=probability, quote=quote))
        return sorted(out, key=lambda one: -one.score)

    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: SamplingParams, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        """Answers as `Reader.answer` describes, from passages in the order of `rank_passages`."""
        reply = self._quote_best_passage(expand_ellipsis(question, history), passages)
        on_text(reply.text_with_certainty)
        return reply

    def _quote_best_passage(self, question: str, passages: Sequence[Passage]) -> Reply:
        if passages and self._settings.form == "auto" and wants_free_text(question):
            return Reply(NEEDS_READER, found=False, certainty="nothing")
        best = passages[0] if passages else None
        if best is None or best.quote is None or best.probability is None:
            return Reply(NOT_TOLD, found=False, certainty="nothing")
        certainty = self.combination.get_certainty(best.probability)
        if certainty == "nothing":
            return Reply(NOT_TOLD, found=False, certainty=certainty, probability=best.probability)
        start, end = best.quote
        quoted = best.text[start - best.start : end - best.start]
        return Reply(
            collapse_spaces(quoted), certainty=certainty, probability=best.probability,
            answer_tokens=self.passages.prompt.count_answer_tokens(quoted),
            quotation=Quotation(best.document, start, end),
        )  # fmt: skip

    def close(self) -> None:
        """Does nothing, as only readers on servers have connections."""
