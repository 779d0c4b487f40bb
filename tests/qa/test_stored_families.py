"""Families of models whose layers differ, from a folder to an answer: tiny random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import HYBRID, build_model
from stored_answers import check_stored_answers

from esa_cli import models
from esa_cli.errors import PresetError, UsageError
from esa_cli.evaluation.calibration.fitted_projections import (
    METHODS,
    AdamSettings,
    open_projection_fitter,
)
from esa_cli.models.files.random_model import write_byte_tokenizer
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import check_method_fits_model, resolve_preset

pytestmark = pytest.mark.families

TEXT = " ".join(f"Gate {n} opens at {n * n % 97} past nine." for n in range(40))
QUESTION = "When does gate 17 open?"
WINDOWS = {**HYBRID, "num_hidden_layers": 4, "layer_types": 2 * HYBRID["layer_types"]}
"""The first and third of four layers have a window of 12 tokens."""
PER_LAYER = {"vocab_size_per_layer_input": 259}
PAPER: list[str] = []
CONSENSUS = ["selector.name=consensus", "score.name=vote"]
LAST_LAYER = ["selector.name=sentences", "score.name=infiniretri"]
CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("gemma3_text", WINDOWS, CONSENSUS),
    ("gpt_oss", WINDOWS, ["selector.name=consensus", "score.name=bm25"]),
    ("nemotron_h", {"layers_block_type": 2 * ["mlp", "attention"]}, LAST_LAYER),
    ("gemma4_text", PER_LAYER, PAPER),
    ("gemma3n_text", PER_LAYER, [*CONSENSUS, "score.heads=[[1, 2], [4, 1]]"]),
    ("deepseek_v3", {}, CONSENSUS),
    ("deepseek_v2", {}, LAST_LAYER),
]
"""Windows, layers of an MLP alone, layers that read the rows of others, latents."""


def load(kind: str, folder: Path, **sizes: Any) -> Any:
    ids = {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256}
    build_model(kind, vocab_size=259, **sizes, **ids).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return models.load(str(folder), device="cpu", dtype="float32")


@pytest.mark.parametrize(("kind", "sizes", "method"), CASES, ids=[case[0] for case in CASES])
def test_a_stored_book_answers_as_one_in_memory(
    tmp_path: Path, kind: str, sizes: dict[str, Any], method: list[str]
) -> None:
    loaded, path = load(kind, tmp_path / kind, **sizes), tmp_path / "gate.txt"
    path.write_text(TEXT, "utf-8")
    check_stored_answers(
        loaded, load_preset("tiny-random", method), path, QUESTION, tmp_path / "library"
    )


def test_heads_in_layers_that_run_no_method_are_refused() -> None:
    model: Any = build_model("gemma3_text", vocab_size=259)
    running = load_preset("tiny-random", [*CONSENSUS, "score.heads=[[1, 2]]"])
    check_method_fits_model(resolve_preset(running).method, model)
    wrong = load_preset("tiny-random", [*CONSENSUS, "score.heads=[[1, 2], [0, 1]]"])
    with pytest.raises(PresetError, match="got layer 0"):
        check_method_fits_model(resolve_preset(wrong).method, model)


def test_maps_are_fitted_to_latents(tmp_path: Path) -> None:
    loaded, chosen = load("deepseek_v3", tmp_path / "model"), load_preset("tiny-random")
    (tmp_path / "work").mkdir()
    job = open_projection_fitter(loaded, chosen, TEXT, 200, tmp_path / "work")
    job.store_queries_and_keys()
    assert job.stored.width == 24
    training = AdamSettings()
    study = job.measure_recall(6, METHODS, training, [8])
    job.save_best_projections(tmp_path / "maps", study, training)
    path = tmp_path / "gate.txt"
    path.write_text(TEXT, "utf-8")
    maps = ["compressor.name=learned", f"compressor.file={tmp_path / 'maps'}"]
    check_stored_answers(
        loaded, load_preset("tiny-random", maps), path, QUESTION, tmp_path / "library"
    )


def test_maps_are_not_fitted_to_layers_with_windows(tmp_path: Path) -> None:
    loaded = load("gemma3_text", tmp_path / "model", **WINDOWS)
    with pytest.raises(UsageError):
        open_projection_fitter(loaded, load_preset("tiny-random"), TEXT, 2000, tmp_path / "work")
