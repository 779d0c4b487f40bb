"""The prompt in which a model reads one passage again, with the question, to quote the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from esa_cli.errors import PresetError
from esa_cli.qa.presets.preset import FIELDS, WorkedExample


def one_line(text: str) -> str:
    """The text with each run of white space as one space: line breaks of a page mean nothing."""
    return " ".join(text.split())


def clipped(text: str, most: int, tokens: Callable[[str], int]) -> str:
    """The beginning of `text` that has at most `most` of `tokens`; empty if there is none."""
    least = None
    while text and (over := tokens(text) - most) > 0:
        least = tokens("") if least is None else least
        own = over + most - least
        keep = max(0, min(len(text) - 1, len(text) * (own - over) // max(1, own)))
        space = max(text.rfind(" ", 0, keep), text.rfind("\n", 0, keep))
        text = text[: space if 2 * space > keep else keep]
    return text


class PassagePrompt:
    """Token ids of a passage with a question, and of the answers that may follow.

    Args:
        tokenizer: of transformers. template: text with {passage} and {question}, up to where the
            answer begins. unanswered: what the model answers when the passage does not say.
        examples: worked ones, which come first in the same form.

    Raises:
        PresetError: the template lacks a field.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str,
        unanswered: str,
        examples: Sequence[WorkedExample] = (),
    ) -> None:
        for field in FIELDS:
            if field not in template:
                raise PresetError(
                    f"answer.prompt must have {field}, got {template!r}", "see `esa presets show`"
                )
        self.tokenizer, self.template, self.unanswered = tokenizer, template, unanswered
        self.unanswered_ids = self.answer_ids(unanswered)
        self.line_end = self._encode("\n")[-1]
        self._examples = "".join(
            f"{self._filled(one.question, one.passage)} {one_line(one.answer or unanswered)}\n"
            for one in examples
        )
        self._example_ids = self._encode(self._examples)

    def ids(self, question: str, passage: str) -> list[int]:
        """The prompt up to where the answer begins."""
        return self._encode(self._examples + self._filled(question, passage))

    def shared(self, prompts: Sequence[Sequence[int]]) -> int:
        """The first tokens of these prompts that are those of the examples."""
        tokens = zip(self._example_ids, *prompts, strict=False)
        return sum(1 for _ in takewhile(lambda at: len(set(at)) == 1, tokens))

    def _filled(self, question: str, passage: str) -> str:
        pieces = {"{passage}": one_line(passage), "{question}": one_line(question)}
        parts = re.split(r"(\{passage\}|\{question\})", self.template)
        return "".join(pieces.get(part, part) for part in parts)

    def answer_ids(self, answer: str) -> list[int]:
        """An answer as the model gives it: after a space, ended by a line end."""
        return self._encode(f" {one_line(answer)}\n")

    def clipped(self, question: str, passage: str, most: int) -> str:
        """The beginning of the passage with which the prompt has at most `most` tokens."""
        return clipped(passage, most, lambda text: len(self.ids(question, text)))

    def texts(self, ids: Sequence[int]) -> str:
        """The text of some token ids."""
        return str(self.tokenizer.decode(list(ids)))

    def _encode(self, text: str) -> list[int]:
        out = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        return list(out["input_ids"])
