"""Encodes documents and questions as token ids, so that a document is prefilled only once.

The chat template is rendered with markers in place of document and question, and cut at them. No
text of documents and questions becomes a special token, as `<|im_end|>`, which ends a message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from esa_cli.attention.window import Window
from esa_cli.errors import HistoryError, LengthError, ModelError, UsageError
from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.models.tokenization.tokenizer import WINDOW, limit_rendering_steps, tokenise_text
from esa_cli.qa.answering.reply import Turn
from esa_cli.qa.presets.preset import Prompt
from esa_cli.system.text import has_lone_surrogate

DOCUMENT, QUESTION, ANSWER = "\ue000document\ue000", "\ue000question\ue000", "\ue000answer\ue000"
"""Markers in the rendered prompt, made of private-use characters that no template contains."""
_OTHER_PROMPT = "it may take no system prompt: use --set prompt.system=null, or prompt.chat=false"


def validate_question(question: str) -> None:
    """Raises UsageError if a question is empty, or not UTF-8."""
    if not question.strip():
        hint = 'ask for example: esa ask book.txt "Who is Ahab?"'
        raise UsageError("the question must not be empty", hint)
    if has_lone_surrogate(question):
        raise UsageError("the question must be UTF-8", "ask in a terminal whose encoding is UTF-8")


class PromptEncoder:
    """Encodes documents and questions as token ids, with a tokenizer and the prompt of a preset.
    Raises ModelError: the chat template cannot be rendered, or drops the document."""

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
        text = self._render_marked_prompt(0)
        if self.chat and DOCUMENT not in text:
            self._listed = True
            text = self._render_marked_prompt(0)
        if text.count(DOCUMENT) != 1 or text.count(QUESTION) != 1:
            hint = "use a model whose chat template shows the user's words exactly once"
            raise ModelError("the model's chat template does not keep the prompt as it is", hint)
        self._head, rest = text.split(DOCUMENT)
        between, self._tail = rest.split(QUESTION)
        self._between, self._lead = _split_end_spaces(between)

    def _render_marked_prompt(self, earlier_turn_count: int) -> str:
        """Renders the prompt of a conversation, with markers in place of all texts."""
        asked = [self._first, *[self._later] * earlier_turn_count]
        if not self.chat:
            text = f"{ANSWER}\n\n".join(user + self._end for user in asked)
            return f"{self._system}\n\n{text}" if self._system else text
        texts = [] if self._system is None else [("system", self._system)]
        texts += [turn for user in asked for turn in (("user", user), ("assistant", ANSWER))]
        messages = [  # some chat templates need the text in a list
            {"role": role, "content": [{"type": "text", "text": text}] if self._listed else text}
            for role, text in texts[:-1]
        ]
        # Qwen3 would spend its tokens on thoughts. Llama 3 would write today's date before the
        # document, whose keys would change daily.
        switches = {"enable_thinking": False, "date_string": "26 Jul 2024"}
        with (
            convert_read_errors("the model's chat template", _OTHER_PROMPT),
            limit_rendering_steps(),
        ):
            options = {"tokenize": False, "add_generation_prompt": True, **switches}
            return str(self.tokenizer.apply_chat_template(messages, **options))

    def _encode_text(self, text: str, parse_special_tokens: bool) -> list[int]:
        if not text:
            return []
        options = {"add_special_tokens": False, "split_special_tokens": not parse_special_tokens}
        return list(self.tokenizer(text, **options, verbose=False)["input_ids"])

    def find_token_offsets(self, text: str) -> list[tuple[int, int]]:
        """Returns the characters [start, end) of each token of a document's text."""
        return [(low, high) for low, high in tokenise_text(self.tokenizer, text).offsets.tolist()]

    def render_question(self, question: str, answer_prefix: str = "") -> str:
        """Returns the text of the prompt that follows the document."""
        return "".join(piece for piece, _ in self._split_prompt(question, answer_prefix, False))

    def _split_prompt(
        self, question: str, answer_prefix: str, is_followup: bool
    ) -> list[tuple[str, bool]]:
        """Returns the pieces of the prompt between the document or previous answer and the answer,
        each with whether special tokens are parsed in it."""
        between, lead = self._text_between_turns if is_followup else (self._between, self._lead)
        # Without a chat template, such an answer prefix continues the line of the question.
        goes_on = not self.chat and answer_prefix.startswith(" ")
        tail = self._tail.rstrip("\n") if goes_on else self._tail
        question = question if self._verbatim else question.strip()
        return [(between, True), (lead + question, False), (tail, True), (answer_prefix, False)]

    def encode_document(self, text: str) -> list[int]:
        """Returns the token ids of the prompt up to the document's end."""
        if len(text) > WINDOW and self.tokenizer.is_fast:
            return [*self.encode_prompt_start(), *tokenise_text(self.tokenizer, text).ids]
        return self.encode_prompt_start() + self._encode_text(text, parse_special_tokens=False)

    def encode_prompt_start(self) -> list[int]:
        """Returns the token ids of the prompt before the document."""
        ids = self._encode_text(self._head, parse_special_tokens=True)
        first = [self.tokenizer.bos_token_id]
        if self.chat or first == [None] or self.tokenizer("a")["input_ids"][:1] != first:
            return ids
        return first + ids

    def find_question_tokens(self, question: str, is_followup: bool = False) -> tuple[int, int]:
        """Returns the range [first, end) of the question's own tokens in its encoded prompt."""
        pieces = self._split_prompt(question, "", is_followup)[:2]
        before, asked = (len(self._encode_text(*piece)) for piece in pieces)
        return before, before + asked

    @cached_property
    def _text_between_turns(self) -> tuple[str, str]:
        """The chat template's text between an earlier answer and the next question."""
        return _split_end_spaces(self._render_marked_prompt(1).split(ANSWER)[1].split(QUESTION)[0])

    def encode_history(self, turns: Sequence[Turn]) -> list[int]:
        """Returns the token ids of earlier turns. Raises ModelError: the template drops one."""
        if not turns:
            return []
        text = self._render_marked_prompt(1)
        if text.count(ANSWER) != 1 or text.count(QUESTION) != 2:
            wrong = "the model's chat template does not keep earlier answers as they are"
            raise ModelError(wrong, "ask each question without the earlier questions")
        tail = text.split(QUESTION)[1].split(ANSWER)[0]
        ids: list[int] = []
        for i, turn in enumerate(turns):
            before = self._split_prompt(turn.question.strip(), "", is_followup=i > 0)[:2]
            for piece in (*before, (tail, True), (turn.answer.strip(), False)):
                ids += self._encode_text(*piece)
        return ids

    def encode_question(
        self, question: str, answer_prefix: str = "", is_followup: bool = False
    ) -> list[int]:
        """Returns the token ids of the question's prompt after the document or, if `is_followup`,
        an earlier answer; the model continues `answer_prefix`. Raises UsageError."""
        validate_question(question)
        pieces = self._split_prompt(question, answer_prefix, is_followup)
        return [token for piece in pieces for token in self._encode_text(*piece)]


def _split_end_spaces(text: str) -> tuple[str, str]:
    stripped = text.rstrip(" ")
    return stripped, text[len(stripped) :]


class EncodedQuestion(NamedTuple):
    """The token ids of a question and of earlier questions and answers, without the documents."""

    before: list[int]  # earlier questions and answers
    ids: list[int]  # the prompt from the question to the answer
    span: tuple[int, int]  # absolute positions [first, last) of the question's text
    ids_without_prefix: list[int]  # `ids` without the tokens at their end that begin the answer
    start: int  # the number of cached tokens before `before`

    @classmethod
    def encode(
        cls, prompt: PromptEncoder, question: str, answer_prefix: str, history: Sequence[Turn],
        cached_tokens: int,
    ) -> EncodedQuestion:  # fmt: skip
        """Encodes a question and earlier turns. Raises UsageError: the question is empty."""
        later = bool(history)
        ids = prompt.encode_question(question, answer_prefix, later)
        before, span = prompt.encode_history(history), prompt.find_question_tokens(question, later)
        start = cached_tokens + len(before)
        asked = ids[: len(prompt.encode_question(question, "", later))]
        return cls(before, ids, (start + span[0], start + span[1]), asked, cached_tokens)

    def find_last_chunk_start(self, chunk_size: int) -> int:
        """Returns the absolute position of the first token of the question's last chunk."""
        return self.start + len(self.before) + max(0, len(self.ids) - chunk_size)

    def check_fits_context(self, window: Window, context_tokens: int, answer_tokens: int) -> None:
        """Raises LengthError, or HistoryError if there are earlier turns, if question and answer do
        not fit the context together with the document, or with the tokens selected of it."""
        asked = len(self.before) + len(self.ids) + answer_tokens
        if self.find_last_chunk_start(window.chunk) <= window.full_attention_limit:
            room, what = context_tokens - self.start, "the whole document"
        elif window.ending is not None:
            seen = window.initial + window.selected + window.ending
            room, what = context_tokens - seen, "the selected tokens"
        else:
            return
        if asked <= room:
            return
        beside = f"beside {what}, the model's window has room for {room:,}"
        if self.before:
            wrong = f"question, earlier questions and the answer take {asked:,} tokens; {beside}"
            raise HistoryError(wrong, "ask without the oldest earlier questions")
        wrong = f"the question and the answer take {asked:,} tokens; {beside}"
        raise LengthError(wrong, "ask a shorter question")
