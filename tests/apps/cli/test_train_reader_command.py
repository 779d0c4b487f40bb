"""`esa train-reader`: from pairs and texts to an adapter; mistakes and interruptions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_fixtures import cache, runner, surroundings
from command import TINY, Esa
from reader_pairs import ANIMALS, write_text

from esa_cli.evaluation.reader_training.reader_trainer import ReaderTrainer
from esa_cli.models.text_passes.lora_adapter import CONFIG, WEIGHTS
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.adapter_files import adapter_folder

__all__ = ["cache", "surroundings"]

pytestmark = pytest.mark.training

PROMPT = "answer.prompt='{passage} {question} A:'"
SHORT = ["--examples", "24", "--rank", "2", "--batch", "8", "--set", PROMPT]
COMMAND = ["train-reader", "pairs", "texts", *TINY, *SHORT]


@pytest.fixture
def esa(surroundings: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Esa:
    """`esa` in a folder of its own with two texts."""
    write_text(tmp_path, "one", animals=ANIMALS[:4])
    write_text(tmp_path, "two", hour=3, animals=ANIMALS[:4])
    return runner(capsys)


def test_the_command(esa: Esa, tmp_path: Path) -> None:
    code, out, err = esa(*COMMAND, "--out", "new/adapter", "--held-out", "two")
    assert code == 0, err
    folder = tmp_path / "new" / "adapter"
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS, "training.json"}
    record = json.loads((folder / "training.json").read_text("utf-8"))
    assert record["model"] == "random:llama"
    assert record["held_out"].keys() == {"two"}
    assert f"{record['examples']} examples of 30 pairs" in out
    table = [line.split() for line in out.splitlines() if line]
    assert table[-2][-1] == "noticed"
    assert table[-1][0] == "two"
    assert "the adapter is in new/adapter; use it with" in err
    use = ["--set", "answer.from=text", "--set", "answer.adapter=new/adapter"]
    assert " ".join(use) in err
    answer = preset.load("tiny-random", use[1::2]).answer
    assert answer.source == "text"
    assert answer.adapter is not None
    assert adapter_folder(answer.adapter) == Path("new/adapter")
    assert "finding wrong passages" in err
    assert "two after" in err
    code, _, err = esa(*COMMAND, "--out", "new/adapter")
    assert code == 2
    assert "--out must have no adapter yet, got new/adapter" in err


def test_json_and_quiet(esa: Esa) -> None:
    code, out, err = esa(*COMMAND, "--out", "adapter", "--json", "--quiet", "--seed", "3")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["seed"] == 3
    assert record["scores"] == []
    assert record == json.loads(Path("adapter/training.json").read_text("utf-8"))


def test_ctrl_c_leaves_a_checkpoint(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads(esa(*COMMAND, "--out", "whole", "--json")[1])
    step = ReaderTrainer._step

    def interrupted(self: ReaderTrainer, batch: object) -> list[float]:
        if self.state.steps == 2:
            raise KeyboardInterrupt
        return step(self, batch)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ReaderTrainer, "_step", interrupted)
        code, out, err = esa(*COMMAND, "--out", "cut", "--json")
    assert (code, out) == (130, "")
    assert "cut has a checkpoint; --resume goes on from it" in err
    assert err.endswith("esa: interrupted\n")
    code, _, err = esa(*COMMAND, "--out", "cut")
    assert code == 2
    assert "add --resume" in err
    code, out, _ = esa(*COMMAND, "--out", "cut", "--resume", "--json")
    assert code == 0
    assert {**json.loads(out), "seconds": 0} == {**whole, "seconds": 0}
    assert (tmp_path / "cut" / WEIGHTS).read_bytes() == (tmp_path / "whole" / WEIGHTS).read_bytes()


def test_examples_that_are_too_long_are_counted(esa: Esa) -> None:
    code, _, err = esa(*COMMAND, "--out", "adapter", "--quiet", "--set", "context=300")
    assert code == 0
    assert "are left out: they have more than 300 tokens" in err


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["pairs", "texts"], 2, "--out must be a folder"),
        (["pairs", "texts", "--out", "note.md"], 2, "--out must be a folder, got the file note.md"),
        (["pairs", "texts", "--out", "note.md/x"], 2, "there is no folder"),
        (["pairs", "texts", "--out", "a", "--resume"], 2, "--out must have a checkpoint to resume"),
        (["texts", "texts", "--out", "a"], 3, "the folder of pairs must have files NAME.jsonl"),
        (["nosuch", "texts", "--out", "a"], 3, "the folder of pairs must have files NAME.jsonl"),
        (["pairs", "pairs", "--out", "a"], 3, "must have the SHA-256"),
        (["pairs", "nosuch", "--out", "a"], 3, "must have one file one.*, got 0 in nosuch"),
        (["pairs", "texts", "--out", "a", "--held-out", "on"], 2, "did you mean 'one'?"),
        (["pairs", "texts", "--out", "a", "--dtype", "float16"], 2, "must be float32 or bfloat16"),
        (["pairs", "texts", "--out", "a", "--set", "answer.prompt=' {question}'"], 4, "{passage}"),
        (["pairs", "texts", "--out", "a", "--set", "windw=3"], 4, "window"),
    ],
)
def test_mistakes(esa: Esa, options: list[str], code: int, words: str, tmp_path: Path) -> None:
    """One error, before the model is loaded, and nothing is written."""
    (tmp_path / "note.md").write_text("Somebody's own.\n", "utf-8")
    kept = sorted(tmp_path.rglob("*"))
    found, out, err = esa("train-reader", *TINY, *options)
    assert (found, out) == (code, ""), err
    assert words in err
    assert sorted(tmp_path.rglob("*")) == kept


def test_a_rank_is_not_given_with_an_adapter_to_start_from(esa: Esa) -> None:
    code, _, err = esa(*COMMAND, "--out", "new", "--start", "other")
    assert code == 2
    assert "--rank must be absent with --start" in err


def test_a_folder_that_cannot_be_written(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    code, _, err = esa(*COMMAND, "--out", "adapter")
    assert code == 3, err
    assert "cannot be written" in err
