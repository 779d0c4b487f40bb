"""Models that mix full layers with others, from a folder to an answer: tiny random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import HYBRID, build_model
from stored_answers import check_stored_answers

from esa_cli import models
from esa_cli.errors import PresetError, UsageError
from esa_cli.evaluation.calibration.fitted_maps import open_job
from esa_cli.models.files.random_model import write_tokenizer
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.resolved_preset import check_fits_model, resolve

pytestmark = pytest.mark.families

FAMILIES = ["gemma3_text", "gpt_oss", "cohere2"]
TEXT = " ".join(f"Gate {n} opens at {n * n % 97} past nine." for n in range(50))
QUESTION = "When does gate 17 open?"
MLPS = "nemotron_h"
"""Its layers are attention or an MLP alone."""
METHODS = {
    "the paper's": [],
    "consensus": ["selector.name=consensus", "score.name=vote"],
    "by words": ["selector.name=consensus", "score.name=bm25"],
    "the last layer's": ["selector.name=sentences", "score.name=infiniretri"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four layers each, the first and third with a window of 12 tokens."""
    out, ids = {}, {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256}
    for kind in FAMILIES:
        out[kind] = tmp_path_factory.mktemp(kind)
        layers = {**HYBRID, "num_hidden_layers": 4, "layer_types": 2 * HYBRID["layer_types"]}
        build_model(kind, vocab_size=259, **layers, **ids).save_pretrained(out[kind])
        write_tokenizer(out[kind])
    out[MLPS] = tmp_path_factory.mktemp(MLPS)
    layers = {"layers_block_type": 2 * ["mlp", "attention"]}
    build_model(MLPS, vocab_size=259, **layers, **ids).save_pretrained(out[MLPS])
    write_tokenizer(out[MLPS])
    return out


def load(folder: Path) -> Any:
    return models.load(str(folder), device="cpu", dtype="float32")


@pytest.mark.parametrize("kind", [*FAMILIES, MLPS])
@pytest.mark.parametrize("name", METHODS)
def test_a_stored_book_answers_as_one_in_memory(
    folders: dict[str, Path], tmp_path: Path, kind: str, name: str
) -> None:
    path, loaded = tmp_path / "gate.txt", load(folders[kind])
    path.write_text(TEXT, "utf-8")
    chosen = preset.load("tiny-random", METHODS[name])
    check_stored_answers(loaded, chosen, path, QUESTION, tmp_path / "library")


@pytest.mark.parametrize("kind", ["gemma3_text", "lfm2"])
def test_heads_in_layers_that_run_no_method_are_refused(kind: str) -> None:
    model: Any = build_model(kind, vocab_size=259)
    own = ["selector.name=consensus", "score.name=vote"]
    running = preset.load("tiny-random", [*own, "score.heads=[[1, 2]]"])
    check_fits_model(resolve(running).method, model)
    wrong = preset.load("tiny-random", [*own, "score.heads=[[1, 2], [0, 1]]"])
    with pytest.raises(PresetError, match=r"attend to all tokens \(1\), got layer 0"):
        check_fits_model(resolve(wrong).method, model)


def test_maps_are_not_fitted_to_layers_with_windows(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    chosen = preset.load("tiny-random")
    with pytest.raises(UsageError, match="some of this gemma3_text model's attend to a window"):
        open_job(load(folders["gemma3_text"]), chosen, TEXT, 2000, tmp_path)
