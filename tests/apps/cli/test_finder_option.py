"""`--finder`: which finder ranks the passages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Esa

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import PresetError, UsageError
from esa_cli.models.files.model_reference import ModelRef
from esa_cli.qa.presets.preset_files import locate_finder

TINY = ("--preset", "tiny-random", "--device", "cpu", "--dtype", "float32")


def test_the_option_replaces_the_finder(finder: Path) -> None:
    for name, chosen in (("words", None), (str(finder), str(finder)), ("a/b", "a/b")):
        answer = ModelOptions("tiny-random", finder=name, settings=["answer.finder=x"])
        assert answer.load_preset().answer.finder == chosen
    worded = ModelOptions(model="Qwen/Qwen3-4B", finder="words").load_preset().answer
    assert (worded.reader, worded.finder) == ("Qwen/Qwen3-4B", None), "as with the preset's own"
    assert isinstance(locate_finder("lightonai/LateOn"), ModelRef)
    with pytest.raises(UsageError, match="needs answers from passages"):
        ModelOptions("tiny-random", finder=str(finder)).load_preset("esa")
    with pytest.raises(PresetError, match="must be a folder"):
        ModelOptions("tiny-random", finder="./nothing").load_preset()


def test_find_and_plan(esa: Esa, note: str, finder: Path) -> None:
    for name, read in (("words", ()), (str(finder), ("--read", "first"))):
        done = esa("find", note, "When?", *TINY, "--finder", name, *read, "--json")
        assert done.data["read"] is bool(read), done.err
    assert "(14 bytes a token)" in esa("plan", note, *TINY, "--finder", str(finder)).out


def test_bench_finders_counts_the_passages_found(esa: Esa, finder: Path) -> None:
    boat = "A grey boat lies at the pier, and nobody knows whose it is. " * 40
    Path("gate.txt").write_text(f"{boat}\n\nThe northern gate opens at nine.\n\n{boat}")
    row = {"question": "When does the northern gate open?", "documents": ["gate.txt"]}
    rows = [{**row, "passage": "gate opens at nine"}, {**row, "passage": "at ten"}]
    Path("asked.jsonl").write_text(json.dumps(rows[0]))
    done = esa("bench", "finders", "asked.jsonl", *TINY, "--finder", str(finder), "--json")
    words, ours = done.data["finders"]
    assert (words["finder"], words["found_1"], words["bytes"]) == ("words", 1, 0)
    assert (ours["finder"], ours["questions"]) == (str(finder), 1)
    assert ours["bytes"] > 14 * 1000
    assert "found_3" in esa("bench", "finders", "asked.jsonl", *TINY).out
    Path("asked.jsonl").write_text(json.dumps(rows[1]))
    assert (
        "no document has the passage 'at ten'" in esa("bench", "finders", "asked.jsonl", *TINY).err
    )
    assert "needs a file of questions" in esa("bench", "finders").err
