"""A training text as tokens: its passages, their questions, and random crops of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from question_pairs import AnswerPair, Span, TrainingText

from esa_cli.evaluation.tasks.task_sample import StableRandom
from esa_cli.qa.finding.passage_finder import find_token_bounds

CROP_TOKENS = (50, 120)
"""Fewest and most tokens of a crop; a shorter passage is taken whole."""
CONTEXT = 24
"""Tokens of the text before a crop at most; they are read and not scored."""
QUESTIONS = 2
"""Questions of a crop at most."""


@dataclass(frozen=True)
class TokenQuestion:
    """A question of a passage; `answer` are tokens [first, last) of the text, None without one."""

    text: str
    kind: str
    answer: Span | None


@dataclass(frozen=True)
class TokenPassage:
    """Tokens [first, last) and characters [start, end) of the text, and questions about them."""

    tokens: Span
    characters: Span
    questions: tuple[TokenQuestion, ...]


@dataclass(frozen=True)
class PassageCrop:
    """Token ids, of which those before `start` are context, and questions about the others."""

    ids: list[int]
    start: int
    questions: list[TokenQuestion]


class FinderText:
    """A training text's tokens, and its passages in their order.

    Args:
        tokenizer: of transformers.
    """

    def __init__(self, text: TrainingText, tokenizer: Any) -> None:
        self.name, self.text = text.name, text.text
        out = tokenizer(
            text.text, add_special_tokens=False, split_special_tokens=True,
            return_offsets_mapping=True, verbose=False,
        )  # fmt: skip
        self.ids: list[int] = list(out["input_ids"])
        self._offsets = torch.tensor(out["offset_mapping"]).reshape(-1, 2)
        pairs: dict[Span, list[AnswerPair]] = defaultdict(list)
        for pair in text.pairs:
            pairs[pair.passage].append(pair)
        self.passages = [self._passage(span, pairs[span]) for span in sorted(pairs)]

    def crop(self, passage: TokenPassage, rng: StableRandom) -> PassageCrop:
        """A random part of a passage around the answer to one of its questions, with that question
        and others that it answers, too. Without an answer it is any part: the right topic."""
        first, last = passage.tokens
        chosen = passage.questions[rng.draw_integer_below(len(passage.questions))]
        place = first + rng.draw_integer_below(last - first)
        low, high = chosen.answer or (place, place + 1)
        wanted = CROP_TOKENS[0] + rng.draw_integer_below(CROP_TOKENS[1] - CROP_TOKENS[0] + 1)
        before = rng.draw_integer_below(max(0, wanted - (high - low)) + 1)
        end = min(last, max(high, max(first, low - before) + wanted))
        start = max(first, min(low - before, end - wanted))
        context = min(start, rng.draw_integer_below(CONTEXT + 1))
        others = [
            one for one in passage.questions
            if one is not chosen and one.answer and start <= one.answer[0] and one.answer[1] <= end
        ]  # fmt: skip
        more = rng.draw_items(others, min(QUESTIONS - 1, len(others)))
        return PassageCrop(self.ids[start - context : end], context, [chosen, *more])

    def whole(self, passage: TokenPassage) -> PassageCrop:
        """All of a passage, with its questions."""
        first, last = passage.tokens
        context = min(first, CONTEXT)
        return PassageCrop(self.ids[first - context : last], context, list(passage.questions))

    def _passage(self, span: Span, pairs: list[AnswerPair]) -> TokenPassage:
        questions = [
            TokenQuestion(
                pair.question, pair.kind, self._tokens(pair.answer) if pair.answer else None
            )
            for pair in pairs
        ]
        return TokenPassage(self._tokens(span), span, tuple(questions))

    def _tokens(self, span: Span) -> Span:
        first, last = find_token_bounds(self._offsets, torch.tensor([span]))
        return int(first), max(int(first) + 1, int(last))
