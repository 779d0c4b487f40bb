"""The section `answer` of presets: what it refuses, and whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from esa_cli.errors import PresetError
from esa_cli.qa.presets import preset, resolved_preset
from esa_cli.qa.presets.cache_key import settings_hash
from esa_cli.qa.presets.preset import AnswerSettings

FROM_TEXT = "answer.from=text"


def test_rows_are_the_default_and_text_is_named_from() -> None:
    assert preset.load("tiny-random").answer == AnswerSettings()
    assert AnswerSettings().source == "rows"
    assert preset.load("tiny-random", [FROM_TEXT]).answer.source == "text"
    assert AnswerSettings.model_validate({"from": "text"}).model_dump()["from"] == "text"


@pytest.mark.parametrize(
    "override",
    [
        "from=elsewhere", "form=verse", "passages=0", "passages=257", "passages=many", "prior=-0.5",
        "threshold=high", "adapter=3", "adaptor=x", "prompt=Text", "prompt='{passage}'",
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


def test_a_preset_of_the_same_model_inherits_it(tmp_path: Path) -> None:
    answer = extending(tmp_path, "answer: {passages: 7}\n").answer
    assert (answer.source, answer.passages, answer.adapter) == ("text", 7, "small")


@pytest.mark.parametrize("own", ["", "answer: {passages: 7}\n"])
def test_a_preset_of_another_model_does_not(tmp_path: Path, own: str) -> None:
    answer = extending(tmp_path, f"model: hf:some/model@main\n{own}").answer
    assert answer == AnswerSettings(passages=7 if own else 16)


def test_another_model_by_an_override_does_not(tmp_path: Path) -> None:
    extending(tmp_path, "")
    found = preset.load(str(tmp_path / "base.yaml"), ["model=hf:some/model@main", "answer.words=1"])
    assert found.answer == AnswerSettings(words=1)


def test_a_dump_is_the_same_preset(tmp_path: Path) -> None:
    made = preset.load("tiny-random", [FROM_TEXT, "answer.threshold=-1.5", "answer.form=span"])
    path = tmp_path / "tiny-random.yaml"
    path.write_text(preset.dump(made), "utf-8")
    assert preset.load(str(path)) == made


def test_a_method_answers_from_rows() -> None:
    made = preset.load("tiny-random", [FROM_TEXT, "answer.passages=3"])
    assert resolved_preset.apply("esa", made).answer.source == "rows"
    assert resolved_preset.compared(resolved_preset.AS_IS, made).answer.source == "text"


def test_rows_do_not_depend_on_it() -> None:
    made = [preset.load("tiny-random", more) for more in ([], [FROM_TEXT, "answer.words=0.5"])]
    assert settings_hash(made[0]) == settings_hash(made[1])
