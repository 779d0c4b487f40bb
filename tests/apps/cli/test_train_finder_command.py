"""`esa train-finder`: from pairs and texts to a finder; mistakes and interruptions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cli_fixtures import cache, runner, surroundings
from command import TINY, Esa
from reader_pairs import write_text
from safetensors.torch import load_file

from esa_cli.evaluation.finder_training.finder_trainer import FinderTrainer
from esa_cli.models.text_passes.lora_adapter import CONFIG, WEIGHTS
from esa_cli.qa.finding.token_encoder import MAPS

__all__ = ["cache", "surroundings"]

pytestmark = pytest.mark.training

SMALL = ["--layers", "2", "--first", "1", "--rank", "2", "--dim", "8"]
COMMAND = ["train-finder", "pairs", "texts", *TINY, *SMALL, "--steps", "4", "--batch", "3"]


@pytest.fixture
def esa(surroundings: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Esa:
    """`esa` in a folder of its own with two texts."""
    write_text(tmp_path, "one")
    write_text(tmp_path, "two", hour=3)
    return runner(capsys)


def test_the_command(esa: Esa, tmp_path: Path) -> None:
    code, out, err = esa(*COMMAND, "--out", "new/finder", "--held-out", "two")
    assert code == 0, err
    folder = tmp_path / "new" / "finder"
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS, MAPS, "training.json"}
    record = json.loads((folder / "training.json").read_text("utf-8"))
    assert record["model"] == "random:llama"
    assert record["held_out"].keys() == {"two"}
    assert "4 steps with 12 of 6 passages" in out
    table = [line.split() for line in out.splitlines() if line]
    assert [row[:3] for row in table[-2:]] == [["two", "4", "finder"], ["two", "4", "BM25"]]
    assert "the finder is in new/finder; use it with" in err
    assert "--set answer.finder=new/finder" in err
    assert "tokenising texts" in err
    assert "two after 4 steps, by BM25" in err
    code, _, err = esa(*COMMAND, "--out", "new/finder")
    assert code == 2
    assert "--out must have no finder yet, got new/finder" in err


def test_json_and_quiet(esa: Esa) -> None:
    code, out, err = esa(*COMMAND, "--out", "finder", "--json", "--quiet", "--seed", "3")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["seed"] == 3
    assert record["scores"] == []
    assert record == json.loads(Path("finder/training.json").read_text("utf-8"))


def test_ctrl_c_leaves_a_checkpoint(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads(esa(*COMMAND, "--out", "whole", "--json")[1])
    step = FinderTrainer._step

    def interrupted(self: FinderTrainer, batch: object) -> list[float]:
        if self.state.steps == 2:
            raise KeyboardInterrupt
        return step(self, batch)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(FinderTrainer, "_step", interrupted)
        code, out, err = esa(*COMMAND, "--out", "cut", "--json")
    assert (code, out) == (130, "")
    assert "cut has a checkpoint; --resume goes on from it" in err
    code, _, err = esa(*COMMAND, "--out", "cut")
    assert code == 2
    assert "add --resume" in err
    code, out, _ = esa(*COMMAND, "--out", "cut", "--resume", "--json")
    assert code == 0
    assert {**json.loads(out), "seconds": 0} == {**whole, "seconds": 0}
    for name in (WEIGHTS, MAPS):  # not their bytes: the order of a file's metadata varies
        cut, want = (load_file(tmp_path / folder / name) for folder in ("cut", "whole"))
        assert cut.keys() == want.keys()
        assert all(torch.equal(cut[key], want[key]) for key in want)


def test_a_finder_to_start_from(esa: Esa, tmp_path: Path) -> None:
    code, _, err = esa(*COMMAND, "--out", "first")
    assert code == 0, err
    more = ["train-finder", "pairs", "texts", *TINY, "--start", "first", "--steps", "2"]
    code, out, err = esa(*more, "--batch", "3", "--out", "second", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert (record["layers"], record["dim"]) == (2, 8)
    assert (tmp_path / "second" / MAPS).exists()
    code, out, err = esa(*more, "--rank", "2", "--out", "third")
    assert (code, out) == (2, "")
    assert "sizes must be absent with --start, whose finder has them, got --rank" in err
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["pairs", "texts"], 2, "--out must be a folder for the finder"),
        (["pairs", "texts", "--out", "note.md"], 2, "--out must be a folder, got the file note.md"),
        (["pairs", "texts", "--out", "a", "--resume"], 2, "--out must have a checkpoint to resume"),
        (["texts", "texts", "--out", "a"], 3, "the folder of pairs must have files NAME.jsonl"),
        (["pairs", "texts", "--out", "a", "--held-out", "on"], 2, "did you mean 'one'?"),
        (["pairs", "texts", "--out", "a", "--dtype", "float16"], 2, "must be float32 or bfloat16"),
        (["pairs", "texts", "--out", "a"], 2, "--layers must be at most the model's 2, got 14"),
        (["pairs", "texts", "--out", "a", "--first", "14"], 2, "--first must be below --layers"),
        (["pairs", "texts", "--out", "a", *SMALL, "--dim", "998"], 2, "--dim must be at most"),
        (["pairs", "texts", "--out", "a", "--dim", "7"], 2, "--dim must be even, got 7"),
        (["pairs", "texts", "--out", "a", "--batch", "1"], 2, "--batch"),
        (["pairs", "texts", "--out", "a", "--start", "no"], 5, "esa train-finder"),
    ],
)
def test_mistakes(esa: Esa, options: list[str], code: int, words: str, tmp_path: Path) -> None:
    """One error, and nothing is written."""
    (tmp_path / "note.md").write_text("Somebody's own.\n", "utf-8")
    kept = sorted(tmp_path.rglob("*"))
    found, out, err = esa("train-finder", *TINY, *options)
    assert (found, out) == (code, ""), err
    assert words in err
    assert sorted(tmp_path.rglob("*")) == kept
