"""The prompt as two token lists: what is read once, and what is asked each time.

The chat template is rendered around markers and cut there, so that the document's tokens do not
depend on the question. Document and question are tokenised with special tokens switched off: a
text that spells out `<|im_end|>` is text, and cannot end the turn.
"""

from __future__ import annotations

from typing import Any

from .errors import ModelError, UsageError
from .preset import Prompt

DOCUMENT, QUESTION = "\ue000document\ue000", "\ue000question\ue000"
"""Private-use characters, which no template contains."""


class PromptTokens:
    """Turns documents and questions into token ids for one tokenizer and prompt.

    Args:
        tokenizer: of transformers. prompt: the preset's prompt.

    Raises:
        ModelError: the chat template loses or repeats the document.
    """

    def __init__(self, tokenizer: Any, prompt: Prompt) -> None:
        self.tokenizer = tokenizer
        self.chat = prompt.chat and bool(getattr(tokenizer, "chat_template", None))
        self._end = "\n" if prompt.chat else ""
        # A prompt that is nothing but the question is somebody else's, given to the letter.
        self._verbatim = prompt.after == "{question}"
        user = prompt.before + DOCUMENT + prompt.after.replace("{question}", QUESTION)
        text = self._render(user, prompt.system)
        if text.count(DOCUMENT) != 1 or text.count(QUESTION) != 1:
            raise ModelError(
                "the model's chat template does not keep the prompt as it is",
                "use a model whose template shows the user's words once",
            )
        self._head, rest = text.split(DOCUMENT)
        between, self._tail = rest.split(QUESTION)
        # A space before the question belongs to its first word's token.
        self._between = between.rstrip(" ")
        self._lead = between[len(self._between) :]

    def _render(self, user: str, system: str | None) -> str:
        if not self.chat:
            return f"{system}\n\n{user}{self._end}" if system else f"{user}{self._end}"
        messages = [{"role": "user", "content": user}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return str(
            # Templates that know no thinking mode ignore the switch; Qwen3 would answer with its
            # thoughts first, and run out of tokens in them.
            self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        )

    def _ids(self, text: str, special: bool) -> list[int]:
        if not text:
            return []
        out = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=not special, verbose=False
        )
        return list(out["input_ids"])

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """First and last character of each token of a document; those of `head` are not in it."""
        out = self.tokenizer(
            text,
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=True,
            verbose=False,
        )
        return [(int(low), int(high)) for low, high in out["offset_mapping"]]

    def text(self, question: str, prime: str = "") -> str:
        """What the model reads behind the document, as text."""
        return self._between + self._lead + question + self._tail + prime

    def document(self, text: str) -> list[int]:
        """Ids of everything up to the end of the document."""
        return self.head() + self._ids(text, special=False)

    def head(self) -> list[int]:
        """Ids of what stands before the document."""
        bos = self.tokenizer.bos_token or ""
        ids = self._ids(self._head, special=True)
        if not self.chat and getattr(self.tokenizer, "add_bos_token", False):
            return self._ids(bos, special=True) + ids
        return ids

    def own(self, text: str) -> tuple[int, int]:
        """First of the question's own words among the ids of `question`, and behind the last."""
        if not self._verbatim:
            text = text.strip()
        first = len(self._ids(self._between, special=True))
        return first, first + len(self._ids(self._lead + text, special=False))

    def question(self, text: str, prime: str = "") -> list[int]:
        """Ids of everything behind the document, up to where the model begins to answer.

        Args:
            prime: the first words of the answer, put into the model's mouth.

        Raises:
            UsageError: the question is empty.
        """
        if not self._verbatim:
            text = text.strip()
        if not text.strip():
            raise UsageError(
                "the question is empty", 'for example: esa ask book.txt "Who is Ahab?"'
            )
        pieces = (
            (self._between, True),
            (self._lead + text, False),
            (self._tail, True),
            (prime, False),
        )
        return [token for piece, special in pieces for token in self._ids(piece, special)]
