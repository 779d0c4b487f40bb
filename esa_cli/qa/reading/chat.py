"""A causal model of transformers that words answers, with its own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from esa_cli import models
from esa_cli.errors import HistoryError, LengthError, ModelError
from esa_cli.models.text_passes.generation import Streamer, end_ids, generate
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.answering.reply import Reply, Turn, says_not_told
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.preset import Prompt
from esa_cli.qa.reading.reader import MOST_PASSAGES, QUESTION, SYSTEM, Sampling, numbered, unheard

LONGEST = 1024
"""Tokens of an answer for which none are asked; at most a quarter of the model's window."""


def written(
    model: Any, tokenizer: Any, ids: list[int], sampling: Sampling, most: int,
    on_text: Callable[[str], None],
) -> Reply:  # fmt: skip
    """What a causal model says after a prompt, in at most `most` tokens."""
    streamer = Streamer(tokenizer, on_text)
    generate(
        model, ids, None, max_new_tokens=most, temperature=sampling.temperature,
        top_p=sampling.top_p, seed=sampling.seed, streamer=streamer,
    )  # fmt: skip
    text = streamer.text.strip()
    cut = streamer.count >= most and streamer.last not in end_ids(model)
    return Reply(text, found=not says_not_told(text), answer_tokens=streamer.count, cut=cut)


class ChatReader:
    """A `Reader` of `models.load`; ESA need not support the model."""

    def __init__(self, loaded: models.LoadedModel) -> None:
        self.model: Any = loaded.model
        self.name = models.parse_reference(loaded.ref).name
        self.prompt = _prompt(loaded.tokenizer)
        settings = self.model.config.get_text_config()
        self._window = int(getattr(settings, "max_position_embeddings", None) or 2**31)

    @property
    def nbytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in self.model.parameters())

    @torch.inference_mode()
    def answer(
        self,
        question: str,
        passages: Sequence[Passage],
        history: Sequence[Turn],
        sampling: Sampling,
        on_text: Callable[[str], None] = unheard,
    ) -> Reply:
        """See `Reader.answer`. The model is shown as many passages as its window takes."""
        most = sampling.max_new_tokens or min(LONGEST, self._window // 4)
        ids = self.prompt_ids(question, passages[:MOST_PASSAGES], history, most)
        return written(self.model, self.prompt.tokenizer, ids, sampling, most, on_text)

    def close(self) -> None:
        """See `Reader.close`."""

    def prompt_ids(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn], most: int
    ) -> list[int]:
        """The prompt with the best passages that leave room for an answer of `most` tokens. Raises
        HistoryError, LengthError."""
        prompt = self.prompt
        after = prompt.history(history) + prompt.question(question, later=bool(history))
        for count in range(len(passages), 0, -1):
            ids = prompt.document(numbered(passages[:count])) + after
            if len(ids) + most <= self._window:
                return ids
        kind = HistoryError if history else LengthError
        raise kind(
            f"the question, a passage and the answer take {len(ids) + most:,} tokens; the window "
            f"of the reader {self.name} has {self._window:,}",
            "ask a shorter question, or choose a reader with a larger window",
        )


def _prompt(tokenizer: Any) -> PromptTokens:
    """The reader's prompt; where the chat template knows no system role, all in the user's turn."""
    before, after = "Passages:\n\n", f"\n\n{QUESTION}"
    try:
        return PromptTokens(tokenizer, Prompt(system=SYSTEM, before=before, after=after))
    except ModelError:  # such a template may refuse a system message
        return PromptTokens(tokenizer, Prompt(before=f"{SYSTEM}\n\n{before}", after=after))
