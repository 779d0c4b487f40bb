"""The preset's section `answer`: whether the answer comes from stored rows or from passages that
are found and read again as text, and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

PROMPT = "Question: {question}\nText: {passage}\nQuestion: {question}\nAnswer:"
FIELDS = ("{passage}", "{question}")
UNANSWERED = "(not told)"


class WorkedExample(BaseModel):
    """A passage with a question and its answer, words of the passage; None: it does not tell it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    passage: str
    question: str
    answer: str | None

    @field_validator("answer")
    @classmethod
    def _is_in_the_passage(cls, answer: str | None, info: ValidationInfo) -> str | None:
        if (answer is not None and answer not in info.data.get("passage", answer)) or answer == "":
            raise PydanticCustomError("quotation", "must be words of its passage, or null")
        return answer


class AnswerSettings(BaseModel):
    """How a question is answered.

    Args:
        source: `from` in a preset. `rows`: the question attends to selected rows of the prefilled
            documents, as in the paper. `text`: the passages that are found are read again as text,
            each alone with the question, and the most probable span of the best one is the answer.
        form: `span`: always a quotation. `text`: free text, written from the best passages.
            `auto`: free text for questions that ask for more than a quotation.
        documents: of folders, patterns and the library that are opened for a question, where these
            have more: the best by their words.
        passages: that are read again.
        prompt: around one passage; {question} may stand twice.
        examples: worked ones, in the form of `prompt` before each passage; not shown to an adapter,
            which was trained without them.
        unanswered: what a passage that does not tell is answered with, by the adapter's training
            or by the examples.
        adapter: folder of a LoRA adapter for reading passages; a name means a shipped one.
        reader: another model that words the answers from the passages: a hub id, a folder, a file,
            a name of `esa models list --known`, or the address of a server; None: the preset's own.
        finder: folder of a trained finder, whose reduced keys of read documents find passages that
            are worded otherwise; a name means a shipped one. words: weight of the words' score
            (BM25) beside theirs, in standard deviations, for a question whose words single out a
            passage; for others it is less.
        prior: weight of a passage's score in finding beside the log-odds that it tells the answer.
        threshold: log-odds of the answer's passage below which nothing is found that answers; None:
            never.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    source: Literal["rows", "text"] = Field(default="rows", alias="from")
    form: Literal["auto", "span", "text"] = "auto"
    documents: int = Field(default=8, ge=1)
    passages: int = Field(default=16, ge=1, le=256)
    prompt: str = PROMPT
    examples: list[WorkedExample] = []
    unanswered: str = UNANSWERED
    adapter: str | None = None
    reader: str | None = None
    finder: str | None = None
    words: float = Field(default=0.2, ge=0)
    prior: float = Field(default=1.0, ge=0)
    threshold: float | None = None

    @field_validator("prompt")
    @classmethod
    def _has_both_fields(cls, prompt: str) -> str:
        if not all(field in prompt for field in FIELDS):
            raise PydanticCustomError("fields", f"must have {' and '.join(FIELDS)}")
        return prompt

    @property
    def shown_examples(self) -> Sequence[WorkedExample]:
        """Those that come before a passage."""
        return [] if self.adapter else self.examples

    @property
    def needs_rows(self) -> bool:
        """Whether documents must have been read by the model before they are asked."""
        return self.source == "rows"

    @property
    def has_index(self) -> bool:
        """Whether documents may be read for finding."""
        return self.finder is not None

    @property
    def says_source(self) -> bool:
        """Whether `from` is set; else it is the default."""
        return "source" in self.model_fields_set

    @property
    def by_words(self) -> bool:
        """Whether the model only reads passages that are found by their words, as it is."""
        return self.source == "text" and not self.has_index
