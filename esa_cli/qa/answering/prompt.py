"""The prompt as two token lists: the document's, prefilled once, and those of each question.

The chat template is rendered around markers and cut there, so that the document's tokens do not
depend on the question. Document and question are tokenised with special tokens switched off: a
text that spells out `<|im_end|>` is text, and cannot end the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from esa_cli.attention.window import Window
from esa_cli.errors import HistoryError, LengthError, ModelError, UsageError
from esa_cli.models.files.checkpoint_files import reading
from esa_cli.models.tokenization.tokenizer import limited_rendering
from esa_cli.models.tokenization.windowed_tokenizer import WINDOW, tokenise
from esa_cli.qa.answering.reply import Turn
from esa_cli.qa.presets.preset import Prompt
from esa_cli.system.text import has_lone_surrogate

DOCUMENT, QUESTION, ANSWER = "\ue000document\ue000", "\ue000question\ue000", "\ue000answer\ue000"
"""Markers of private-use characters, which no template contains."""
_OTHER_PROMPT = "it may take no system prompt: use --set prompt.system=null, or prompt.chat=false"


class PromptTokens:
    """Turns documents and questions into token ids for one tokenizer of transformers and a preset's
    prompt. Raises ModelError: the chat template cannot be rendered, or loses or repeats the
    document."""

    def __init__(self, tokenizer: Any, prompt: Prompt) -> None:
        self.tokenizer = tokenizer
        self.chat = prompt.chat and bool(getattr(tokenizer, "chat_template", None))
        # A prompt that is only the question, as a benchmark's, is passed on unchanged.
        self._verbatim = prompt.after == "{question}"
        self._end = "\n" if prompt.chat and not self._verbatim else ""
        self._first = prompt.before + DOCUMENT + prompt.after.replace("{question}", QUESTION)
        self._later = prompt.after.replace("{question}", QUESTION).lstrip()
        self._system = prompt.system
        self._listed = False
        text = self._render(0)
        if self.chat and DOCUMENT not in text:
            self._listed = True
            text = self._render(0)
        if text.count(DOCUMENT) != 1 or text.count(QUESTION) != 1:
            raise ModelError(
                "the model's chat template does not keep the prompt as it is",
                "use a model whose template shows the user's words once",
            )
        self._head, rest = text.split(DOCUMENT)
        between, self._tail = rest.split(QUESTION)
        self._between, self._lead = _split_spaces(between)

    def _render(self, turns: int) -> str:
        """Renders a conversation of markers, up to the question after so many turns."""
        asked = [self._first, *[self._later] * turns]
        if not self.chat:
            text = f"{ANSWER}\n\n".join(user + self._end for user in asked)
            return f"{self._system}\n\n{text}" if self._system else text
        messages = [self._message("system", self._system)] if self._system is not None else []
        for user in asked[:-1]:
            messages.append(self._message("user", user))
            messages.append(self._message("assistant", ANSWER))
        messages.append(self._message("user", asked[-1]))
        # Qwen3 would spend its tokens on thoughts. Llama 3 would write today's date before the
        # document, whose keys would change daily.
        switches = {"enable_thinking": False, "date_string": "26 Jul 2024"}
        with reading("the model's chat template", _OTHER_PROMPT), limited_rendering():
            return str(
                self.tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, **switches
                )
            )

    def _message(self, role: str, text: str) -> dict[str, Any]:
        """A turn; some templates of multimodal models take only lists of parts."""
        return {"role": role, "content": [{"type": "text", "text": text}] if self._listed else text}

    def _ids(self, text: str, special: bool) -> list[int]:
        if not text:
            return []
        out = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=not special, verbose=False
        )
        return list(out["input_ids"])

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The first and last character of each token of a document, without `head`."""
        return [(low, high) for low, high in tokenise(self.tokenizer, text).offsets.tolist()]

    def text(self, question: str, answer_prefix: str = "") -> str:
        """The text of the prompt after the document."""
        return "".join(piece for piece, _ in self._asked(question, answer_prefix, False))

    def _asked(self, question: str, answer_prefix: str, later: bool) -> list[tuple[str, bool]]:
        """The pieces of the prompt after the document or an earlier answer, and whether each may
        have special tokens. Without a template, an answer prefix that begins with a space continues
        the question's line."""
        between, lead = self._between_turns if later else (self._between, self._lead)
        goes_on = not self.chat and answer_prefix.startswith(" ")
        tail = self._tail.rstrip("\n") if goes_on else self._tail
        question = question if self._verbatim else question.strip()
        return [(between, True), (lead + question, False), (tail, True), (answer_prefix, False)]

    def document(self, text: str) -> list[int]:
        """Ids of everything up to the end of the document."""
        if len(text) > WINDOW and self.tokenizer.is_fast:
            return [*self.head(), *tokenise(self.tokenizer, text).ids]
        return self.head() + self._ids(text, special=False)

    def head(self) -> list[int]:
        """Ids of the prompt before the document."""
        ids = self._ids(self._head, special=True)
        return ids if self.chat else self._begins() + ids

    def _begins(self) -> list[int]:
        """The id that the tokenizer puts before a text, if any; `add_bos_token` is not reliable, as
        in Llama 3's."""
        first = self.tokenizer.bos_token_id
        ids = list(self.tokenizer("a")["input_ids"])
        return [first] if first is not None and ids[:1] == [first] else []

    def question_span(self, text: str, later: bool = False) -> tuple[int, int]:
        """The span of the question's own words in the ids of `question`."""
        before, asked = (len(self._ids(*piece)) for piece in self._asked(text, "", later)[:2])
        return before, before + asked

    @cached_property
    def _between_turns(self) -> tuple[str, str]:
        """The text between an earlier answer and the next question."""
        return _split_spaces(self._render(1).split(ANSWER)[1].split(QUESTION)[0])

    def history(self, turns: Sequence[Turn]) -> list[int]:
        """Ids of earlier turns, between document and question. Raises ModelError: the chat template
        loses or repeats an answer."""
        if not turns:
            return []
        text = self._render(1)
        if text.count(ANSWER) != 1 or text.count(QUESTION) != 2:
            raise ModelError(
                "the model's chat template does not keep earlier answers as they are",
                "ask one question at a time, without the ones before",
            )
        tail = text.split(QUESTION)[1].split(ANSWER)[0]
        ids: list[int] = []
        for i, turn in enumerate(turns):
            before = self._asked(turn.question.strip(), "", later=i > 0)[:2]
            for piece in (*before, (tail, True), (turn.answer.strip(), False)):
                ids += self._ids(*piece)
        return ids

    def question(self, text: str, answer_prefix: str = "", later: bool = False) -> list[int]:
        """Ids of the prompt after the document, up to where the model begins to answer; with
        `later`, after `history`.

        Args:
            answer_prefix: the first words of the answer, which the model continues.

        Raises UsageError: the question is empty, or not UTF-8."""
        if not text.strip():
            raise UsageError(
                "the question must not be empty", 'for example: esa ask book.txt "Who is Ahab?"'
            )
        if has_lone_surrogate(text):
            raise UsageError("the question must be UTF-8", "type it again in a terminal that is")
        pieces = self._asked(text, answer_prefix, later)
        return [token for piece in pieces for token in self._ids(*piece)]


def _split_spaces(between: str) -> tuple[str, str]:
    """Splits off trailing spaces: a space before a question belongs to its first word's token."""
    text = between.rstrip(" ")
    return text, between[len(text) :]


@dataclass(frozen=True)
class EncodedQuestion:
    """Ids of a question and its earlier turns, which follow the documents in the cache.

    Args:
        before: of the earlier turns. ids: of the question's turn, up to where the answer begins.
        span: absolute positions [first, last) of the question's text.
        answer_prefix: the number of tokens at the end of `ids` that begin the answer.
        start: the number of cached tokens before `before`.
    """

    before: list[int]
    ids: list[int]
    span: tuple[int, int]
    answer_prefix: int = 0
    start: int = 0

    @property
    def ids_before_answer(self) -> list[int]:
        """`ids` without the answer prefix."""
        return self.ids[: len(self.ids) - self.answer_prefix]

    @classmethod
    def of(
        cls, prompt: PromptTokens, question: str, prime: str, history: Sequence[Turn], start: int
    ) -> EncodedQuestion:
        """Encodes a question after `start` cached tokens. Raises UsageError: it is empty."""
        later = bool(history)
        ids, before = prompt.question(question, prime, later), prompt.history(history)
        first, last = (start + len(before) + at for at in prompt.question_span(question, later))
        prime_ids = len(ids) - len(prompt.question(question, "", later))
        return cls(before, ids, (first, last), prime_ids, start)

    def last(self, chunk: int) -> int:
        """The position of the last chunk of the question's turn."""
        return self.start + len(self.before) + max(0, len(self.ids) - chunk)

    def check(self, window: Window, context: int, answer: int) -> None:
        """Checks that the tokens attended to, with the answer, fit the model's window: all tokens
        with full attention, else I and the selected ones beside a turn that `window.ending` keeps
        local. Raises HistoryError: they do not fit with earlier turns. LengthError: nor without."""
        asked = len(self.before) + len(self.ids) + answer
        if self.last(window.chunk) <= window.dense_below:
            room, what = context - self.start, "the document, all of it in view"
        elif window.ending is not None:
            seen = window.initial + window.selected + window.ending
            room, what = context - seen, "what is selected"
        else:
            return
        if asked <= room:
            return
        beside = f"beside {what}, the model's window has room for {room:,}"
        if self.before:
            raise HistoryError(
                f"the question, the turns before it and the answer take {asked:,} tokens; {beside}",
                "ask without the oldest turns",
            )
        raise LengthError(
            f"the question and the answer take {asked:,} tokens; {beside}", "ask a shorter question"
        )
