"""Readers answer a question from passages of documents.

`span.SpanReader` quotes the most probable span of a passage; for `ChatReader` a transformers model
writes the answer, and for `server.ServerReader` a server with OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from esa_cli import models
from esa_cli.errors import HistoryError, LengthError, ModelError
from esa_cli.models.text_passes.generation import AnswerStreamer, generate
from esa_cli.qa.answering.prompt import PromptEncoder
from esa_cli.qa.answering.reply import NOT_TOLD, Reply, Turn, says_nothing_found
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.preset import Prompt

MAX_PASSAGES = 8
"""The maximum number of passages in the prompt of another model."""
MAX_TOKENS = 1024
"""The default number of tokens of an answer; at most a quarter of the model's window."""
TOKEN_BYTES = 3
"""The bytes of text that fill at most a token of any model."""
Prompted = TypeVar("Prompted")


@dataclass(frozen=True)
class SamplingParams:
    """How a model generates an answer; a reader chooses `max_new_tokens` if it is None."""

    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


def ignore_text(piece: str) -> None:
    """Ignores a piece of an answer; the default of callbacks that receive an answer's text."""


class Reader(Protocol):
    """A model that answers questions from passages."""

    name: str
    """The reader model's name, as people see it."""
    window_tokens: int
    """The number of tokens of prompt and answer together that the model can process."""

    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: SamplingParams, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        """Answers a question from passages, best first; the caller adds evidence and durations.
        `on_text` is called with each piece of the answer, and may raise an exception to end it.

        Raises ReaderError: no answer came. HistoryError, LengthError: the prompt is too long."""

    def close(self) -> None:
        """Closes a reader's connections to its server, if any; the next question opens them."""
        return

    def make_fitting_prompt(
        self, make_prompt: Callable[[Sequence[Passage]], Prompted],
        count_tokens: Callable[[Prompted], int], passages: Sequence[Passage],
        history: Sequence[Turn], max_answer_tokens: int,
    ) -> Prompted:  # fmt: skip
        """Returns the prompt with as many of the passages as fit into the window together with the
        answer. Raises LengthError, or HistoryError if there are earlier turns: not one fits."""
        tokens = 0
        for count in range(len(passages), 0, -1):
            prompt = make_prompt(passages[:count])
            tokens = count_tokens(prompt) + max_answer_tokens
            if tokens <= self.window_tokens:
                return prompt
        kind = HistoryError if history else LengthError
        raise kind(
            f"the question, a passage and the answer take {tokens:,} tokens; "
            f"the window of the reader {self.name} has {self.window_tokens:,} tokens",
            "ask a shorter question, or choose a reader with a larger window",
        )


SYSTEM = (
    "You answer questions about documents. Use only the numbered passages, which were found in "
    "them for the question; add nothing that they do not say. Answer shortly, in the language of "
    "the question, and quote where a quotation answers it. If the passages do not tell the answer, "
    f'say "{NOT_TOLD}" and nothing else.'
)
QUESTION = "Question: {question}"


def format_numbered_passages(passages: Sequence[Passage]) -> str:
    """Returns one text of all passages, each under a line with number, document and page. Lines
    of code and tables are kept, and indented, so that none looks like the head of a passage."""
    parts = []
    for number, passage in enumerate(passages, 1):
        page = "" if passage.page is None else f", page {passage.page}"
        chapter = f", {passage.chapter}" if passage.chapter else ""
        lines = passage.list_lines() if passage.has_lines else [" ".join(passage.text.split())]
        text = "\n".join(("    " * passage.has_lines) + line for line in lines)
        parts.append(f"[{number}] {passage.document}{page}{chapter}\n{text}")
    return "\n\n".join(parts)


def make_chat_messages(
    question: str, passages: Sequence[Passage], history: Sequence[Turn]
) -> list[dict[str, str]]:
    system = [SYSTEM, *(turn.question for turn in history if not turn.answer)]
    turns = [turn for turn in history if turn.answer]
    asked = [QUESTION.format(question=turn.question.strip()) for turn in turns]
    asked.append(QUESTION.format(question=question.strip()))
    asked[0] = f"Passages:\n\n{format_numbered_passages(passages)}\n\n{asked[0]}"
    messages = [{"role": "system", "content": "\n\n".join(system)}]
    for text, turn in zip(asked, turns, strict=False):
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": turn.answer})
    return [*messages, {"role": "user", "content": asked[-1]}]


class ChatReader(Reader):
    """A reader whose answers come from any causal transformers model with a chat template."""

    def __init__(self, loaded: models.LoadedModel) -> None:
        self.model: Any = loaded.model
        self.name = models.parse_reference(loaded.ref).name
        prompt = Prompt(system=SYSTEM, before="Passages:\n\n", after=f"\n\n{QUESTION}")
        try:
            self.prompt = PromptEncoder(loaded.tokenizer, prompt)
        except ModelError:  # a chat template that knows no system role may refuse the message
            before = f"{SYSTEM}\n\n{prompt.before}"
            self.prompt = PromptEncoder(loaded.tokenizer, Prompt(before=before, after=prompt.after))
        settings = self.model.config.get_text_config()
        self.window_tokens = int(getattr(settings, "max_position_embeddings", None) or 2**31)
        self.nbytes = sum(one.nbytes for one in self.model.parameters())

    @torch.inference_mode()
    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: SamplingParams, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        """Answers as `Reader.answer` describes, from as many passages as fit into the context."""
        limit = sampling.max_new_tokens or min(MAX_TOKENS, self.window_tokens // 4)
        ids = self.encode_prompt(question, passages[:MAX_PASSAGES], history, limit)
        streamer = AnswerStreamer(self.prompt.tokenizer, on_text)
        generate(
            self.model, ids, None, streamer, max_new_tokens=limit,
            temperature=sampling.temperature, top_p=sampling.top_p, seed=sampling.seed,
        )  # fmt: skip
        text, count = streamer.text.strip(), len(streamer.ids)
        found = not says_nothing_found(text)
        return Reply(text, found=found, answer_tokens=count, cut=streamer.cut)

    def encode_prompt(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        max_answer_tokens: int,
    ) -> list[int]:  # fmt: skip
        """Returns the token ids of a prompt with as many passages as fit. Raises LengthError."""
        prompt = self.prompt
        after = prompt.encode_history(history)
        after += prompt.encode_question(question, is_followup=bool(history))
        return self.make_fitting_prompt(
            lambda some: prompt.encode_document(format_numbered_passages(some)) + after,
            len, passages, history, max_answer_tokens,
        )  # fmt: skip
