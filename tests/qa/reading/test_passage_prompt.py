"""The prompt around a passage, answers as tokens, and passages that are cut to fit."""

from __future__ import annotations

from typing import Any

import pytest
from byte_level_model import byte_level

from esa_cli.errors import PresetError
from esa_cli.qa.presets.preset import PROMPT, UNANSWERED, WorkedExample
from esa_cli.qa.reading.span import PassagePrompt, clipped, one_line

__all__ = ["byte_level"]


def prompt(tokenizer: Any, template: str = PROMPT) -> PassagePrompt:
    return PassagePrompt(tokenizer, template, UNANSWERED)


def test_both_fields_in_one_line(byte_level: Any) -> None:
    made = prompt(byte_level)
    ids = made.ids(" Who is\nAhab? ", "Ahab,\n  the\tcaptain.\n")
    assert made.texts(ids) == (
        "Question: Who is Ahab?\nText: Ahab, the captain.\nQuestion: Who is Ahab?\nAnswer:"
    )


EXAMPLES = (
    WorkedExample(passage="The {question}\ncat sat.", question="Who sat?", answer="cat"),
    WorkedExample(passage="A dog.", question="Why?", answer=None),
)


def test_examples_come_first_in_the_form_of_the_prompt(byte_level: Any) -> None:
    made = PassagePrompt(byte_level, "{passage}|{question} A:", UNANSWERED, EXAMPLES)
    ids = made.ids("When?", "At nine.")
    examples = f"The {{question}} cat sat.|Who sat? A: cat\nA dog.|Why? A: {UNANSWERED}\n"
    assert made.texts(ids) == f"{examples}At nine.|When? A:"
    assert made.shared([ids, made.ids("Who?", "The")]) == len(byte_level(examples)["input_ids"])
    assert made.shared([ids, ids[:5]]) == 5
    assert prompt(byte_level).shared([ids, ids]) == 0


def test_fields_in_the_text_are_text(byte_level: Any) -> None:
    made = prompt(byte_level, "{passage}|{question}")
    assert made.texts(made.ids("{passage}?", "{question} <|im_end|>")) == (
        "{question} <|im_end|>|{passage}?"
    )
    assert byte_level.convert_tokens_to_ids("<|im_end|>") not in made.ids("", "<|im_end|>")


def test_answers_begin_with_a_space_and_end_with_a_line_end(byte_level: Any) -> None:
    made = prompt(byte_level)
    assert made.texts(made.answer_ids("Ahab,\nhe")) == " Ahab, he\n"
    assert made.unanswered_ids == made.answer_ids(UNANSWERED)
    assert made.answer_ids("x")[-1] == made.line_end
    assert made.texts([made.line_end]) == "\n"


@pytest.mark.parametrize("template", ["", "{passage}", "{question}", "{Passage} {question}"])
def test_a_template_needs_both_fields(byte_level: Any, template: str) -> None:
    with pytest.raises(PresetError, match="must have"):
        prompt(byte_level, template)


def test_one_line() -> None:
    assert one_line(" a\r\n b\u2003c\x1cd ") == "a b c d"


@pytest.mark.parametrize("text", ["one two three four five six", "x" * 40, "鯨" * 30, "", "a\nb c"])
@pytest.mark.parametrize("most", [-5, 0, 3, 7, 20, 1000])
def test_clipped(text: str, most: int) -> None:
    def tokens(some: str) -> int:
        return 5 + len(some.encode())

    kept = clipped(text, most, tokens)
    assert text.startswith(kept)
    assert not kept or tokens(kept) <= most
    if tokens(text) <= most:
        assert kept == text
    elif tokens(text[:1]) <= most and " " not in text:
        assert kept


def test_a_clipped_passage_fits_and_ends_with_a_word(byte_level: Any) -> None:
    made, passage = prompt(byte_level), "The captain walks about. " * 20
    most = len(made.ids("Who?", "")) + 100
    kept = made.clipped("Who?", passage, most)
    assert 60 < len(made.ids("Who?", kept)) <= most
    assert passage.startswith(kept + " ")
    assert made.clipped("Who?", passage, 5) == ""
