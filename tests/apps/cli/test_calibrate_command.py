"""`esa calibrate`, from a text to maps that `esa ask` uses; mistakes and interruptions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calibration_tools import small_files
from command import TINY, Esa

from esa_cli.attention.compression import LearnedCompressor
from esa_cli.evaluation.calibration.fitted_projections import METHODS
from esa_cli.models.attachment.fingerprint import read_model_fingerprint


@pytest.fixture(autouse=True)
def text(surroundings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esa_cli.qa.answering.session.FEED", 128)
    lines = [f"Gate {i} opens at {i % 24}, unless cat {i * i} sleeps.\n" for i in range(20)]
    Path("note.md").write_text("".join(lines), "utf-8")


def test_the_command_from_a_text_to_an_answer(esa: Esa) -> None:
    command = ["calibrate", "note.md", *TINY, "--rank", "6", "--k", "8"]
    command += ["--k", "999", "--out", "maps.safetensors"]
    code, out, err = esa(*command)
    assert code == 0, err
    table = [line.split() for line in out.splitlines()]
    assert [row[0] for row in table[1:5]] == ["0", "1", "mean", "mean"]
    assert "--set compressor.name=learned --set compressor.file=maps.safetensors" in err
    data = json.loads(esa(*command, "--json", "-q")[1])
    assert (data["model"], data["preset"], data["for"]) == ("random:llama", "tiny-random", "esa")
    assert data["ranks"] == [6, 6]
    assert data["held_out"] == round(0.2 * data["tokens"])
    assert data["k"] == [8, data["held_out"] // 2]
    assert "".join(table[0]) == "layerR" + "".join(f"{m}@{data['k'][1]}" for m in METHODS)
    methods = data["methods"]
    assert set(methods) == {"closed-form", "pca", "learned"}
    for name, method in methods.items():
        layers = method["layers"]
        assert [len(at_ks) for at_ks in layers] == [2, 2]
        for at in range(2):
            assert method["mean"][at] == pytest.approx(sum(layer[at] for layer in layers) / 2)
            assert f"{method['mean'][at]:.3f}" in out, name
    best = max(methods, key=lambda name: methods[name]["mean"][1])
    assert data["written"] == {"file": "maps.safetensors", "method": best}
    metadata = LearnedCompressor("maps.safetensors").metadata
    assert metadata["method"] == best
    assert json.loads(metadata["ranks"]) == [6, 6]
    assert read_model_fingerprint(metadata) is not None
    use = ["--set", "compressor.name=learned", "--set", "compressor.file=maps.safetensors"]
    code, answer, err = esa("ask", "note.md", "When?", *TINY, *use)
    assert code == 0, err
    assert answer.strip()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["nosuch.md"], 3),
        (["note.md", "--method", "lerned"], 2),
        (["note.md", "--out", "nosuch/maps.safetensors"], 2),
        (["note.md", "--for", "qest"], 2),
        (["note.md", "--out", "note.md"], 2),
        (["note.md", "--out", "other.md"], 2),
        (["note.md", "--tokens", "20"], 2),
        (["note.md", "--set", "window.chnk=3"], 4),
    ],
)
def test_mistakes(esa: Esa, options: list[str], code: int, tmp_path: Path) -> None:
    """Before anything is read, and nothing is overwritten."""
    (tmp_path / "other.md").write_text("Somebody's own.\n", "utf-8")
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    found, out, err = esa("calibrate", *options, *TINY)
    assert (found, out) == (code, ""), err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept


def test_no_room_on_the_way(esa: Esa, tmp_path: Path) -> None:
    """No bug is reported, and nothing is left."""
    command = ["calibrate", "note.md", *TINY, "-q", "--method", "pca", "--rank", "2"]
    assert esa(*command)[0] == 0
    kept = sorted(path.name for path in tmp_path.iterdir())
    with small_files(20_000):
        code, _, err = esa(*command, "--out", "other.safetensors")
    assert code == 6, err
    assert "cannot be written: File too large" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
