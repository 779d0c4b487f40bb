"""An untrained finder of the tiny random model."""

from __future__ import annotations

from pathlib import Path

from finder_encoder import new_finder, save_finder

from esa_cli import models


def tiny_finder(folder: Path) -> list[str]:
    """Options of a command with `--preset tiny-random` that finds by it."""
    loaded = models.load("random:llama", device="cpu", dtype="float32")
    made = new_finder(loaded.model, loaded.tokenizer, layers=2, first=1, rank=2, dim=6, seed=1)
    folder.mkdir()
    save_finder(made, folder, "random:llama")
    return ["--set", "answer.from=text", "--set", f"answer.finder={folder}"]
