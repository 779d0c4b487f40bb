"""Pairs and their texts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from question_pairs import TrainingText, read_training_texts, split_texts
from reader_pairs import write_text

from esa_cli.errors import DocumentError, UsageError

SHIPPED = Path(__file__).parents[3] / "benchmarks" / "training"


def texts(root: Path) -> list[TrainingText]:
    write_text(root, "one")
    return read_training_texts(*write_text(root, "two", hour=3))


def test_texts_with_their_pairs(tmp_path: Path) -> None:
    one, two = texts(tmp_path)
    assert (one.name, two.name) == ("one", "two")
    assert one.digest != two.digest
    assert len(one.pairs) == 54
    first, absent = one.pairs[0], one.pairs[8]
    assert first.answer is not None
    assert one.text[slice(*first.answer)] == "at 0"
    assert absent.answer is None
    assert one.text[slice(*absent.passage)].startswith("The cat of Arl")


def test_held_out_texts(tmp_path: Path) -> None:
    kept, held_out = split_texts(texts(tmp_path), ["two"])
    assert [text.name for text in kept] == ["one"]
    assert [text.name for text in held_out] == ["two"]
    with pytest.raises(UsageError, match="must name a text, got 'twoo'") as error:
        split_texts(texts(tmp_path), ["twoo"])
    assert "two" in error.value.hint
    with pytest.raises(UsageError, match="left to train on"):
        split_texts(texts(tmp_path), ["one", "two"])


def change(row: dict[str, Any], **changes: Any) -> str:
    return json.dumps({**row, **changes})


def test_mistakes(tmp_path: Path) -> None:
    """Each is one error that names the file and the line."""
    pairs, folder = write_text(tmp_path, "one")
    file, text = pairs / "one.jsonl", folder / "one.txt"
    head, row, *_ = (json.loads(line) for line in file.read_text("utf-8").splitlines())
    for line, words in {
        "{": "line 2",
        change(row, answer=[0, 0]): "offsets",
        change(row, answer=[0, 99_999]): "offsets",
        change(row, passage=[5, 9]): "offsets",
        change(row, passage=None): "line 2",
        change(row, question=" "): "no question",
        "[]": "line 2",
        '{"id": "x"}': "question|passage",
        "": "must have pairs, got none",
    }.items():
        file.write_text(f"{json.dumps(head)}\n{line}\n", "utf-8")
        with pytest.raises(DocumentError, match=words):
            read_training_texts(pairs, folder)
    file.write_text("", "utf-8")
    with pytest.raises(DocumentError, match="header"):
        read_training_texts(pairs, folder)
    write_text(tmp_path, "one")
    text.write_text(text.read_text("utf-8") + "More.", "utf-8")
    with pytest.raises(DocumentError, match="SHA-256"):
        read_training_texts(pairs, folder)
    text.unlink()
    with pytest.raises(DocumentError, match="one file one"):
        read_training_texts(pairs, folder)
    with pytest.raises(DocumentError, match="must have files NAME"):
        read_training_texts(folder, folder)


@pytest.mark.parametrize("file", sorted((SHIPPED / "pairs").glob("*.jsonl")), ids=lambda f: f.stem)
def test_the_pairs_of_the_repository(file: Path) -> None:
    head, *rows = (json.loads(line) for line in file.read_text("utf-8").splitlines())
    assert set(head) == {"name", "source", "sha256", "characters"}
    assert head["name"] == file.stem
    assert len({row["id"] for row in rows}) == len({row["question"] for row in rows}) == len(rows)
    absent = sum(row["answer"] is None for row in rows)
    assert 0.1 <= absent / len(rows) <= 0.35
    for row in rows:
        start, end = row["passage"]
        first, last = row["answer"] or (start, end)
        assert 0 <= start <= first < last <= end <= head["characters"], row["id"]
        assert (row["answer"] is None) == (row["kind"] == "absent")
        assert row["kind"] in ("plain", "reworded", "absent")
