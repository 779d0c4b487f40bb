"""`--finder`: which finder ranks the passages."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Esa

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import PresetError, UsageError
from esa_cli.qa.presets.finder_names import locate_finder

TINY = ("--preset", "tiny-random", "--device", "cpu", "--dtype", "float32")


def test_the_option_replaces_the_finder(finder: Path) -> None:
    for name, chosen in (("words", None), (str(finder), str(finder)), ("a/b", "a/b")):
        answer = ModelOptions("tiny-random", finder=name, settings=["answer.finder=x"])
        assert answer.load_preset().answer.finder == chosen
    worded = ModelOptions(model="Qwen/Qwen3-4B", finder="words").load_preset().answer
    assert (worded.reader, worded.finder) == ("Qwen/Qwen3-4B", None), "as with the preset's own"
    assert locate_finder("lightonai/LateOn").ref is not None
    with pytest.raises(UsageError, match="needs answers from passages"):
        ModelOptions("tiny-random", finder=str(finder)).load_preset("esa")
    with pytest.raises(PresetError, match="must be a folder"):
        ModelOptions("tiny-random", finder="./nothing").load_preset()


def test_find_and_plan(esa: Esa, note: str, finder: Path) -> None:
    for name, read in (("words", ()), (str(finder), ("--read", "first"))):
        done = esa("find", note, "When?", *TINY, "--finder", name, *read, "--json")
        assert done.data["read"] is bool(read), done.err
    assert "(14 bytes a token)" in esa("plan", note, *TINY, "--finder", str(finder)).out
