"""A finder's windows from files take the place of BM25's; damaged files are named."""

from __future__ import annotations

import json
from pathlib import Path

from question_pairs import read_training_texts
from ranked_windows import read_ranked_windows
from reader_examples import ExampleText
from reader_pairs import write_text


def test_wrong_windows_are_those_of_the_file(tmp_path: Path) -> None:
    (text,) = read_training_texts(*write_text(tmp_path, "one"))
    pair, other = text.pairs[0], text.pairs[1]
    assert pair.answer is not None
    own, end = pair.passage, len(text.text)
    spans = [own, (end - 40, end), (own[1] + 2, own[1] + 60), (end - 50, end - 5)]
    (tmp_path / "one.jsonl").write_text(json.dumps({"id": pair.id, "windows": spans}) + "\n")
    windows = read_ranked_windows(tmp_path, [text])
    assert windows["one"].windows == {pair.id: spans}
    made = ExampleText(text, windows["one"].windows)
    shown = [" ".join(text.text[a:b].split()) for a, b in spans]
    assert made.wrong_windows(pair) == [shown[1], shown[2]]
    assert made.wrong_windows(other) == ExampleText(text).wrong_windows(other)
