"""Readers answer a question from passages; the prompt by which another model is asked.

`span.SpanReader` quotes the most probable span, `ChatReader` has a model of transformers word the
answer, and `server.ServerReader` one on a server with OpenAI's chat completions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from esa_cli import models
from esa_cli.errors import HistoryError, LengthError, ModelError
from esa_cli.models.text_passes.generation import Streamer, end_ids, generate
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.answering.reply import NOT_TOLD, Reply, Turn, says_not_told
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.preset import Prompt

MAX_PASSAGES = 8
"""Passages in the prompt of another model."""
MAX_TOKENS = 1024
"""Tokens of an answer where no number is set; at most a quarter of the model's window."""


@dataclass(frozen=True)
class Sampling:
    """How an answer is generated: None leaves its length to the reader; temperature 0 is greedy."""

    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


def ignore_text(piece: str) -> None:
    """An `on_text` that does nothing."""


class Reader(Protocol):
    """Answers questions from passages."""

    @property
    def name(self) -> str:
        """The name of the model, for people."""

    @property
    def nbytes(self) -> int:
        """Bytes of this machine's memory that the weights take beside the model that finds."""

    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: Sampling, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        """Returns the answer from passages, best first, without evidence and times. `on_text` is
        called with each piece; an exception raised in it ends the answer and passes through.

        Raises ReaderError: no answer came. HistoryError, LengthError: the prompt is too long."""

    def close(self) -> None:
        """Ends connections; the reader may be used again."""


SYSTEM = (
    "You answer questions about documents. Use only the numbered passages, which were found in "
    "them for the question; add nothing that they do not say. Answer shortly, in the language of "
    "the question, and quote where a quotation answers it. If the passages do not tell the answer, "
    f'say "{NOT_TOLD}" and nothing else.'
)
QUESTION = "Question: {question}"


def number_passages(passages: Sequence[Passage]) -> str:
    """Returns the passages as text, each below its number and its place."""
    parts = []
    for number, passage in enumerate(passages, 1):
        page = "" if passage.page is None else f", page {passage.page}"
        chapter = f", {passage.chapter}" if passage.chapter else ""
        text = " ".join(passage.text.split())
        parts.append(f"[{number}] {passage.document}{page}{chapter}\n{text}")
    return "\n\n".join(parts)


def chat_messages(
    question: str, passages: Sequence[Passage], history: Sequence[Turn]
) -> list[dict[str, str]]:
    """Returns the prompt as chat messages; turns without an answer join the system message."""
    system = [SYSTEM, *(turn.question for turn in history if not turn.answer)]
    turns = [turn for turn in history if turn.answer]
    asked = [QUESTION.format(question=turn.question.strip()) for turn in turns]
    asked.append(QUESTION.format(question=question.strip()))
    asked[0] = f"Passages:\n\n{number_passages(passages)}\n\n{asked[0]}"
    messages = [{"role": "system", "content": "\n\n".join(system)}]
    for text, turn in zip(asked, turns, strict=False):
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": turn.answer})
    return [*messages, {"role": "user", "content": asked[-1]}]


def generate_reply(
    model: Any, tokenizer: Any, ids: list[int], sampling: Sampling, max_tokens: int,
    on_text: Callable[[str], None],
) -> Reply:  # fmt: skip
    """Generates the answer of a causal model after the prompt `ids`."""
    streamer = Streamer(tokenizer, on_text)
    generate(
        model, ids, None, max_new_tokens=max_tokens, temperature=sampling.temperature,
        top_p=sampling.top_p, seed=sampling.seed, streamer=streamer,
    )  # fmt: skip
    text = streamer.text.strip()
    cut = streamer.count >= max_tokens and streamer.last not in end_ids(model)
    return Reply(text, found=not says_not_told(text), answer_tokens=streamer.count, cut=cut)


class ChatReader:
    """A `Reader` that is any causal model of transformers with its own chat template."""

    def __init__(self, loaded: models.LoadedModel) -> None:
        self.model: Any = loaded.model
        self.name = models.parse_reference(loaded.ref).name
        prompt = Prompt(system=SYSTEM, before="Passages:\n\n", after=f"\n\n{QUESTION}")
        try:
            self.prompt = PromptTokens(loaded.tokenizer, prompt)
        except ModelError:  # a chat template that knows no system role may refuse the message
            before = f"{SYSTEM}\n\n{prompt.before}"
            self.prompt = PromptTokens(loaded.tokenizer, Prompt(before=before, after=prompt.after))
        settings = self.model.config.get_text_config()
        self._window = int(getattr(settings, "max_position_embeddings", None) or 2**31)

    @property
    def nbytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in self.model.parameters())

    @torch.inference_mode()
    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: Sampling, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        """See `Reader.answer`. The prompt has as many passages as the window takes."""
        limit = sampling.max_new_tokens or min(MAX_TOKENS, self._window // 4)
        ids = self.prompt_ids(question, passages[:MAX_PASSAGES], history, limit)
        return generate_reply(self.model, self.prompt.tokenizer, ids, sampling, limit, on_text)

    def close(self) -> None:
        """See `Reader.close`."""

    def prompt_ids(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn], max_tokens: int
    ) -> list[int]:
        """Returns the prompt with as many of the best passages as fit. Raises LengthError."""
        prompt = self.prompt
        after = prompt.history(history) + prompt.question(question, later=bool(history))
        for count in range(len(passages), 0, -1):
            ids = prompt.document(number_passages(passages[:count])) + after
            if len(ids) + max_tokens <= self._window:
                return ids
        kind = HistoryError if history else LengthError
        raise kind(
            f"the question, a passage and the answer take {len(ids) + max_tokens:,} tokens; the "
            f"window of the reader {self.name} has {self._window:,}",
            "ask a shorter question, or choose a reader with a larger window",
        )
