"""An untrained finder of the tiny random model."""

from __future__ import annotations

from pathlib import Path

from esa_cli import models
from esa_cli.qa.finding.token_encoder import TokenEncoder


def tiny_finder(folder: Path) -> list[str]:
    """Options of a command with `--preset tiny-random` that finds by it."""
    loaded = models.load("random:llama", device="cpu", dtype="float32")
    made = TokenEncoder.new(
        loaded.model, loaded.tokenizer, layers=2, first=1, rank=2, dim=6, seed=1
    )
    folder.mkdir()
    made.save(folder, "random:llama")
    return ["--set", "answer.from=text", "--set", f"answer.finder={folder}"]
