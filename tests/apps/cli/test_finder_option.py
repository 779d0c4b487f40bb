"""`--finder`: which finder ranks the passages."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Esa

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import PresetError, UsageError

TINY = ("--preset", "tiny-random", "--device", "cpu", "--dtype", "float32")
QUESTION = "When does the gate open?"


def test_the_option_replaces_the_finder_of_the_preset_and_of_set(finder: Path) -> None:
    tiny = ModelOptions("tiny-random", settings=[f"answer.finder={finder}"])
    assert tiny.load_preset().answer.finder == str(finder)
    for name, chosen in (("words", None), (str(finder), str(finder))):
        answer = ModelOptions("tiny-random", finder=name, settings=tiny.settings).load_preset()
        assert (answer.answer.source, answer.answer.finder) == ("text", chosen)
    worded = ModelOptions(model="Qwen/Qwen3-4B", finder="words").load_preset().answer
    assert (worded.reader, worded.finder) == ("Qwen/Qwen3-4B", None), "as with the preset's own"


def test_what_cannot_find_is_refused(finder: Path) -> None:
    with pytest.raises(UsageError, match="--finder words needs answers from passages"):
        ModelOptions("tiny-random", finder="words", settings=["answer.from=rows"]).load_preset()
    with pytest.raises(UsageError, match="needs answers from passages"):
        ModelOptions("tiny-random", finder=str(finder)).load_preset("esa")
    with pytest.raises(PresetError, match="must be a folder"):
        ModelOptions("tiny-random", finder="./nothing").load_preset()


def test_find_by_words_and_by_a_folder(esa: Esa, note: str, finder: Path) -> None:
    for name, read in (("words", False), (str(finder), True)):
        more = ("--read", "first") if read else ()
        done = esa("find", note, QUESTION, *TINY, "--finder", name, *more, "--json")
        assert done.code == 0, done.err
        assert done.data["read"] is read


def test_the_plan_says_the_bytes_a_token(esa: Esa, note: str, finder: Path) -> None:
    plan = esa("plan", note, *TINY, "--finder", str(finder))
    assert "bytes a token)" in plan.out
    facts = esa("plan", note, *TINY, "--finder", str(finder), "--json").data
    assert (facts["finder"], facts["token_bytes"]) == (str(finder), 6 + 8)
