"""A second model on this machine that words answers, with its own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from esa_cli import models
from esa_cli.errors import HistoryError, LengthError, ModelError
from esa_cli.models.generation import Streamer, end_ids, generate
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.answering.reply import Evidence, Turn
from esa_cli.qa.presets.preset import Prompt
from esa_cli.qa.second_model.answer_reader import (
    QUESTION,
    SYSTEM,
    Sampling,
    WrittenAnswer,
    numbered,
)

LONGEST = 1024
"""Tokens of an answer for which none are asked; at most a quarter of the model's window."""


class LocalReader:
    """Words answers with a causal model of transformers, which ESA need not support.

    Args:
        loaded: of `models.load`.
    """

    def __init__(self, loaded: models.LoadedModel) -> None:
        self.model: Any = loaded.model
        self.name = models.parse_reference(loaded.ref).name
        self._prompt = _prompt(loaded.tokenizer)
        self._context = _window(self.model)

    @property
    def nbytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in self.model.parameters())

    @torch.inference_mode()
    def write(
        self,
        question: str,
        passages: Sequence[Evidence],
        history: Sequence[Turn],
        sampling: Sampling,
        on_text: Callable[[str], None] | None = None,
    ) -> WrittenAnswer:
        """See `AnswerReader.write`. It is shown as many of the passages as its window takes."""
        most = sampling.max_new_tokens or min(LONGEST, self._context // 4)
        ids = self._ids(question, passages, history, most)
        streamer = Streamer(self._prompt.tokenizer, on_text)
        generate(
            self.model, ids, None, max_new_tokens=most, temperature=sampling.temperature,
            top_p=sampling.top_p, seed=sampling.seed, streamer=streamer,
        )  # fmt: skip
        ended = streamer.last in end_ids(self.model)
        cut = streamer.count >= most and not ended
        return WrittenAnswer(streamer.text.strip(), streamer.count, cut)

    def close(self) -> None:
        """See `AnswerReader.close`."""

    def _ids(
        self, question: str, passages: Sequence[Evidence], history: Sequence[Turn], most: int
    ) -> list[int]:
        """The prompt with the best passages that fit. Raises HistoryError, LengthError."""
        prompt = self._prompt
        behind = prompt.history(history) + prompt.question(question, later=bool(history))
        for count in range(len(passages), 0, -1):
            ids = prompt.document(numbered(passages[:count])) + behind
            if len(ids) + most <= self._context:
                return ids
        kind = HistoryError if history else LengthError
        raise kind(
            f"the question, a passage and the answer take {len(ids) + most:,} tokens; the window "
            f"of the reader {self.name} has {self._context:,}",
            "ask a shorter question, or choose a reader with a larger window",
        )


def _prompt(tokenizer: Any) -> PromptTokens:
    """The reader's prompt; where the chat template knows no system role, all in the user's turn."""
    before, after = "Passages:\n\n", f"\n\n{QUESTION}"
    try:
        return PromptTokens(tokenizer, Prompt(system=SYSTEM, before=before, after=after))
    except ModelError:  # such a template may refuse a system message
        return PromptTokens(tokenizer, Prompt(before=f"{SYSTEM}\n\n{before}", after=after))


def _window(model: Any) -> int:
    """Tokens that the model was trained on; a large number where its configuration has none."""
    settings = model.config.get_text_config()
    return int(getattr(settings, "max_position_embeddings", None) or 2**31)
