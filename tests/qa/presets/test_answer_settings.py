"""The section `answer` of presets: what it refuses, and whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from esa_cli.errors import PresetError
from esa_cli.qa.presets import preset, resolved_preset
from esa_cli.qa.presets.preset import AnswerSettings

FROM_TEXT = "answer.from=text"
TOLD = "{passage: The cat sat., question: 'Who sat?', answer: cat}"


@pytest.mark.parametrize(
    "override",
    [
        "from=elsewhere", "form=verse", "passages=0", "passages=257", "passages=many", "prior=-0.5",
        "threshold=high", "adapter=3", "adaptor=x", "prompt=Text", "prompt='{passage}'",
        "examples=[3]", "examples=[{passage: a, question: b}]",
        "examples=[{passage: a, question: b, answer: ''}]",
        "examples=[{passage: The cat., question: 'Who?', answer: dog}]",
        "examples=[{passage: a, question: b, answer: a, text: c}]",
    ],
)  # fmt: skip
def test_what_does_not_hold_is_refused(override: str) -> None:
    with pytest.raises(PresetError) as error:
        preset.load("tiny-random", [FROM_TEXT, f"answer.{override}"])
    assert f"answer.{override.partition('=')[0]}" in str(error.value)
    assert "adapter" in error.value.hint or override != "adaptor=x"


def extending(folder: Path, text: str) -> preset.Preset:
    (folder / "base.yaml").write_text(
        "extends: tiny-random\nanswer: {from: text, passages: 5, adapter: small}\n", "utf-8"
    )
    path = folder / "other.yaml"
    path.write_text(f"extends: base.yaml\n{text}", "utf-8")
    return preset.load(str(path))


@pytest.mark.parametrize("own", ["", "answer: {passages: 7}\n"])
def test_a_preset_of_another_model_does_not(tmp_path: Path, own: str) -> None:
    answer = extending(tmp_path, f"model: hf:some/model@main\n{own}").answer
    assert answer == AnswerSettings(passages=7 if own else 16)


def test_examples_are_of_no_model(tmp_path: Path) -> None:
    base = f"extends: tiny-random\nanswer: {{from: text, examples: [{TOLD}]}}\n"
    (tmp_path / "base.yaml").write_text(base, "utf-8")
    found = preset.load(str(tmp_path / "base.yaml"), ["model=hf:some/model@main"]).answer
    assert found.source == "rows"
    assert [one.answer for one in found.examples] == ["cat"]
    own = ["model=hf:some/model@main", "answer.examples=[]"]
    assert preset.load(str(tmp_path / "base.yaml"), own).answer == AnswerSettings()


def test_an_adapter_is_shown_no_examples() -> None:
    made = preset.load("tiny-random", [f"answer.examples=[{TOLD}]"]).answer
    assert list(made.shown_examples) == made.examples
    assert not made.model_copy(update={"adapter": "small"}).shown_examples


def test_a_method_answers_from_rows() -> None:
    made = preset.load("tiny-random", [FROM_TEXT, "answer.passages=3"])
    assert resolved_preset.apply("esa", made).answer.source == "rows"
    assert resolved_preset.compared(resolved_preset.AS_IS, made).answer.source == "text"
